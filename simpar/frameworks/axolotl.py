"""Axolotl: its YAML config, for full fine-tuning of a released model under FSDP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simpar.frameworks import hugging_face, placeholders, rules, trainer_arguments
from simpar.frameworks.hub import HUB, QUANTISED
from simpar.frameworks.launch import launchers
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target
from simpar.frameworks.yaml_text import yaml_file

CONFIG = "axolotl.yaml"


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: what the config cannot express. It has hybrid sharding; axes other than data are not exported."""
    yield from trainer_arguments.released(s)
    yield from hugging_face.losses(s)
    yield from rules.no_axis(s, "tp", "the exporter knows data parallelism with FSDP for it")
    yield from rules.no_axis(s, "cp", "the exporter knows data parallelism with FSDP for it")
    yield from trainer_arguments.sharded_losses(s)
    if s.plan.numerics.master_weights:
        precision = s.plan.numerics.precision
        yield Loss("master_weights", True, f"{precision} loads parameters of {precision}, with no copy in fp32")
    if s.chose("bucket_bytes") and not s.plan.data_parallel.zero:
        yield Loss("bucket_bytes", s.plan.data_parallel.bucket_bytes, "buckets are as DDP makes them")


def options(s: Subject) -> Options:
    """Options by their dotted names."""
    data, numerics = s.plan.data_parallel, s.plan.numerics
    full = s.plan.memory.recompute == "full"
    result: Options = {
        "base_model": HUB.get(s.graph.name, s.graph.name),
        "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
        "output_dir": "output",
        "sequence_len": s.training.seq_len,
        "sample_packing": True,
        "pad_to_sequence_len": True,
        "micro_batch_size": s.plan.micro_batch,
        "gradient_accumulation_steps": s.microbatches,
        "max_steps": placeholders.STEPS,
        "optimizer": trainer_arguments.OPTIMIZERS[numerics.optimizer],
        "learning_rate": placeholders.LEARNING_RATE,
        "lr_scheduler": "cosine",
        "weight_decay": placeholders.WEIGHT_DECAY,
        "max_grad_norm": placeholders.CLIPPED_NORM,
        "bf16": numerics.precision == "bf16",
        "fp16": numerics.precision == "fp16",
        "gradient_checkpointing": full and data.zero < 2,
        "attn_implementation": "sdpa" if numerics.precision == "fp32" else "flash_attention_2",
    }
    if (widened := QUANTISED.get(s.graph.name)) is not None:
        result |= {"model_quantization_config": widened, "model_quantization_config_kwargs": {"dequantize": True}}
    if data.zero < 2:
        return result
    return result | {
        "dp_shard_size": s.dp // data.hsdp,
        "dp_replicate_size": data.hsdp,
        "fsdp_version": 2,
        "fsdp_config.reshard_after_forward": bool(data.reshard_after_forward),
        "fsdp_config.activation_checkpointing": full,
        "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.offload_params": s.plan.offload.offload_parameters == "cpu",
        "fsdp_config.state_dict_type": "SHARDED_STATE_DICT",
    }


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The YAML and the launchers."""
    return {CONFIG: yaml_file(s, given), **launchers(s, ["-m axolotl.cli.train", CONFIG])}


AXOLOTL = Target(
    name="axolotl",
    description="Axolotl: its YAML, full parameters under FSDP",
    version="Axolotl 0.19.0 (AxolotlInputConfig)",
    stacks=("fsdp",),
    losses=losses,
    options=options,
    files=files,
    notes=trainer_arguments.notes,
    features=("offload", "a part"),
    numerics=trainer_arguments.NUMERICS,
)
