"""Targets that train with Hugging Face's ``TrainingArguments``: its Trainer, TRL, Axolotl and LLaMA-Factory.

The Trainer's arguments are written as JSON, beside a script that trains a model of the plan's architecture; the others
take YAML and a released model.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from simpar.frameworks import hugging_face, placeholders, rules, trainer_tuning
from simpar.frameworks.hub import HUB, QUANTISED, as_shipped
from simpar.frameworks.launch import comment, launchers
from simpar.frameworks.recipes import nest_names
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target, TargetNumerics
from simpar.frameworks.yaml_text import config_and_launchers
from simpar.plan.choices.execution import split_parts
from simpar.units import MIB

OPTIMIZERS = {
    "adamw": "adamw_torch", "sgd": "sgd", "adamw_8bit": "adamw_bnb_8bit", "paged_adamw": "paged_adamw_32bit",
    "paged_adamw_8bit": "paged_adamw_8bit", "adafactor": "adafactor", "lion": "lion_32bit", "lion_8bit": "lion_8bit",
}  # fmt: skip
ADAM = {None: "adamw_torch", "foreach": "adamw_torch", "fused": "adamw_torch_fused"}
"""Names of AdamW by the kernels of its update; torch runs it operation by operation over all arrays unless told."""
BITSANDBYTES = frozenset(["adamw_8bit", "paged_adamw", "paged_adamw_8bit", "lion", "lion_8bit"])
"""Optimizers that are another library's."""
LIGER = {"norm": "rms_norm", "activation": "swiglu", "rope": "rope", "loss": "cross_entropy"}
"""Liger's names of what it fuses (``liger_kernel_config``)."""
ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flash2": "flash_attention_2", "flash3": "flash_attention_3"}
"""transformers' names of attention kernels (``attn_implementation``)."""
FLASH_ATTN = {"eager": "disabled", "sdpa": "sdpa", "flash2": "fa2", "flash3": "fa3"}
"""LLaMA-Factory's (``AttentionFunction``)."""
ARGUMENTS = "training_args.json"
_SCRIPT = '''"""Train a causal language model on random tokens with Hugging Face's Trainer."""

import argparse

import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

VOCAB, SAMPLES = {vocab}, 1 << 20


class RandomTokens(torch.utils.data.Dataset):
    """Random tokens: replace them with your data."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        tokens = torch.randint(VOCAB, (self.length,), generator=torch.Generator().manual_seed(index))
        return {{"input_ids": tokens, "labels": tokens}}


def main():
    """Build the model, let the Trainer shard it, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="arguments of the Trainer")
    parser.add_argument("--model_name_or_path", required=True, help="folder with a config.json")
    parser.add_argument("--dtype", required=True, help="of parameters, as torch names it")
    parser.add_argument("--block_size", type=int, required=True, help="tokens of a sequence")
    parser.add_argument("--attn_implementation", help="kernel of attention, as transformers names it")
    given = parser.parse_args()
    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file(given.config)
    config = AutoConfig.from_pretrained(given.model_name_or_path)
    model = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, given.dtype), attn_implementation=given.attn_implementation
    )
    Trainer(model=model, args=arguments, train_dataset=RandomTokens(given.block_size)).train()


if __name__ == "__main__":
    main()
'''


def losses(s: Subject) -> Iterator[Loss]:
    """Losses of the Trainer: tensor and context parallelism, ZeRO-1, replicas of shards, 8 bits."""
    yield from hugging_face.losses(s)
    yield from attention_losses(s)
    yield from kernel_losses(s, known=LIGER)
    yield from rules.no_axis(s, "tp", "the Trainer takes a mesh of tensor-parallel ranks from code, no option")
    yield from rules.no_axis(s, "cp", "the Trainer takes a mesh of context-parallel ranks from code, no option")
    yield from sharded_losses(s)
    yield from rules.chosen_losses(s, master_weights="parameters are fp32")
    if s.plan.data_parallel.hsdp > 1:
        yield Loss("hsdp", s.plan.data_parallel.hsdp, "states are sharded over all ranks")


def sharded_losses(s: Subject) -> Iterator[Loss]:
    """What Accelerate's FSDP, on which trainers are based, does not have."""
    data = s.plan.data_parallel
    if data.zero == 1:
        yield Loss("zero", 1, "FSDP shards gradients with the optimizer states: zero 2 or 3")
    yield from rules.offload_of_shards(s)
    where_sharded = "a layer is the unit of communication"
    yield from rules.chosen_losses(
        s,
        **({"bucket_bytes": where_sharded} if data.zero else {}),
        overlap_grad_reduce="gradients overlap always",
        overlap_param_gather="parameters are fetched ahead always",
        grad_dtype="gradients are reduced as they are computed",
    )


def attention_losses(s: Subject) -> Iterator[Loss]:
    """Attention kernels that transformers does not have, or not for the precision."""
    kernel = s.plan.execution.attention_kernel
    if kernel is not None and kernel not in ATTENTION:
        yield Loss("attention_kernel", kernel, "transformers has eager, sdpa, flash_attention_2 and flash_attention_3")
    elif kernel in ("flash2", "flash3") and s.plan.numerics.precision == "fp32":
        yield Loss("attention_kernel", kernel, "FlashAttention takes bf16 and fp16")


def kernel_losses(s: Subject, known: Collection[str]) -> Iterator[Loss]:
    """Fused operators other than ``known`` ones and those of torch.compile, and updates that no optimizer has."""
    fused, kernels = s.plan.execution.fused_kernels, s.plan.execution.optimizer_kernels
    if fused != "compiled" and (others := sorted({*split_parts(fused)}.difference(known))):
        has = f"{', '.join(known)} by Liger, or all of a layer by torch.compile" if known else "torch.compile or none"
        yield Loss("fused_kernels", fused, f"the target has {has}, not {', '.join(others)}")
    if kernels is not None and (s.plan.numerics.optimizer != "adamw" or kernels not in ADAM):
        yield Loss("optimizer_kernels", kernels, "the target has adamw_torch (foreach) and adamw_torch_fused")


def fused_options(s: Subject) -> Options:
    """Liger's kernels, or torch.compile of the model."""
    fused = s.plan.execution.fused_kernels
    if fused == "compiled":
        return {"torch_compile": True}
    parts = split_parts(fused)
    if not parts:
        return {}
    chosen = {theirs: ours in parts for ours, theirs in LIGER.items()}
    return {"use_liger_kernel": True, "liger_kernel_config": {**chosen, "fused_linear_cross_entropy": False}}


def optimizer_name(s: Subject) -> str:
    """The trainers' name of the optimizer."""
    name = s.plan.numerics.optimizer
    return ADAM.get(s.plan.execution.optimizer_kernels, ADAM[None]) if name == "adamw" else OPTIMIZERS[name]


def released(s: Subject) -> Iterator[Loss]:
    """Losses for a model without a name on the hub."""
    if s.graph.name not in HUB or not as_shipped(s.graph, s.plan.tuning):
        yield Loss("model", s.graph.name, "the target loads a released model by its name on the hub")


def released_losses(s: Subject) -> Iterator[Loss]:
    """Losses of the Trainer, and of models that are not on the hub."""
    yield from released(s)
    yield from losses(s)


def arguments(s: Subject) -> Options:
    """Options by name; FSDP's options by dotted name."""
    numerics = s.plan.numerics
    full = s.plan.memory.recompute == "full"
    result: Options = {
        "output_dir": "output",
        "per_device_train_batch_size": s.plan.micro_batch,
        "gradient_accumulation_steps": s.microbatches,
        "max_steps": placeholders.STEPS,
        "learning_rate": placeholders.LEARNING_RATE,
        "weight_decay": placeholders.WEIGHT_DECAY,
        "max_grad_norm": placeholders.CLIPPED_NORM,
        "optim": optimizer_name(s),
        "bf16": numerics.precision == "bf16",
        "fp16": numerics.precision == "fp16",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        **fused_options(s),
    }
    if rules.reduces_each(s):
        result[rules.SYNC_EACH] = True
    if (steps := s.plan.execution.empty_cache_steps) is not None:
        result["torch_empty_cache_steps"] = steps
    if s.plan.data_parallel.zero < 2:
        result["gradient_checkpointing"] = full
        if s.chose("bucket_bytes"):
            result["ddp_bucket_cap_mb"] = max(1, round(float(s.plan.data_parallel.bucket_bytes or 0) / MIB))
        return result
    return result | {
        "gradient_checkpointing": False,
        "fsdp": True,
        "fsdp_config.version": 2,
        **_sharding(s, "cpu_offload"),
    }


def _sharding(s: Subject, offload: str) -> Options:
    """FSDP's own options; ``offload`` is the name of the one that keeps parameters on the host."""
    return {
        "fsdp_config.reshard_after_forward": s.plan.data_parallel.reshards,
        "fsdp_config.activation_checkpointing": s.plan.memory.recompute == "full",
        "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        f"fsdp_config.{offload}": s.plan.offload.offload_parameters == "cpu",
        "fsdp_config.state_dict_type": "SHARDED_STATE_DICT",
    }


def notes(s: Subject) -> Iterator[str]:
    """Notes on all of them for the user."""
    yield "Learning rate, data and number of steps are placeholders: a plan does not say them."
    if s.plan.numerics.optimizer in BITSANDBYTES:
        yield f"`{optimizer_name(s)}` needs `bitsandbytes`."
    if s.plan.execution.fused_kernels not in (None, "none", "compiled"):
        yield "`use_liger_kernel` needs `liger-kernel`."
    if s.plan.data_parallel.zero == 2:
        yield "zero 2 becomes FSDP that keeps gathered parameters until the backward pass."
    yield from trainer_tuning.adapter_notes(s)


def _transformers_files(s: Subject, given: Options) -> Mapping[str, str]:
    """The arguments, the model's config, the script and the launchers."""
    kernel = s.plan.execution.attention_kernel
    own = [f"--config {ARGUMENTS}", *hugging_face.of_model(s)]
    own += [f"--attn_implementation {ATTENTION[kernel]}"] if kernel in ATTENTION else []
    return {
        ARGUMENTS: json.dumps(nest_names(given), indent=2) + "\n",
        "config.json": hugging_face.config_json(s),
        hugging_face.SCRIPT: "\n".join(comment(s)) + "\n" + _SCRIPT.format(vocab=s.graph.dims["vocab"]),
        **launchers(s, [hugging_face.SCRIPT, *own]),
    }


def _transformers_notes(s: Subject) -> Iterator[str]:
    """Notes on the Trainer's script, and on all of them."""
    yield "`train.py` feeds random tokens: put your data into `RandomTokens`. Needs `accelerate`."
    yield from notes(s)


def _trl_losses(s: Subject) -> Iterator[Loss]:
    """Losses of the Trainer, and weights that ``trl sft`` loads as they are."""
    yield from released_losses(s)
    yield from trainer_tuning.adapter_losses(s, says_dtype=True)
    if s.graph.name in QUANTISED:
        yield Loss("model", s.graph.name, "its weights on the hub have 4 or 8 bits, which no option of it widens")


def _trl_options(s: Subject) -> Options:
    """The Trainer's options, and TRL's own."""
    return {
        "model_name_or_path": HUB.get(s.graph.name, s.graph.name),
        "dtype": "float32",
        "dataset_name": "roneneldan/TinyStories",  # plain text: base models have no chat template
        "max_length": s.training.seq_len,
        "packing": True,
        **arguments(s),
        **trainer_tuning.in_trl(s),
    } | _attention(s)


def _attention(s: Subject) -> Options:
    kernel = s.plan.execution.attention_kernel
    return {} if kernel is None else {"attn_implementation": ATTENTION[kernel]}


def _axolotl_losses(s: Subject) -> Iterator[Loss]:
    """Losses: what the config cannot express. It has hybrid sharding; axes other than data are not exported."""
    yield from released(s)
    yield from hugging_face.losses(s)
    yield from attention_losses(s)
    yield from kernel_losses(s, known=())
    yield from rules.no_axis(s, "tp", "the exporter knows data parallelism with FSDP for it")
    yield from rules.no_axis(s, "cp", "the exporter knows data parallelism with FSDP for it")
    yield from sharded_losses(s)
    yield from trainer_tuning.adapter_losses(s)
    trains_all = s.plan.tuning.lora_rank is None  # adapters are fp32
    if s.plan.numerics.master_weights and trains_all:
        precision = s.plan.numerics.precision
        yield Loss("master_weights", True, f"{precision} loads parameters of {precision}, with no copy in fp32")
    if s.plan.data_parallel.zero < 2 and s.dp > 1 and s.plan.numerics.precision != "fp32" and trains_all:
        why = "without FSDP gradients and moments have the dtype of the parameters, which the exporter does not know"
        yield Loss("zero", s.plan.data_parallel.zero, f"{why}: zero 2 or 3, or fp32")
    if s.chose("bucket_bytes") and not s.plan.data_parallel.zero:
        yield Loss("bucket_bytes", s.plan.data_parallel.bucket_bytes, "buckets are as DDP makes them")


def _axolotl_options(s: Subject) -> Options:
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
        "optimizer": optimizer_name(s),
        "learning_rate": placeholders.LEARNING_RATE,
        "lr_scheduler": "cosine",
        "weight_decay": placeholders.WEIGHT_DECAY,
        "max_grad_norm": placeholders.CLIPPED_NORM,
        "bf16": numerics.precision == "bf16",
        "fp16": numerics.precision == "fp16",
        "gradient_checkpointing": full and data.zero < 2,
        "attn_implementation": "sdpa" if numerics.precision == "fp32" else "flash_attention_2",
        **fused_options(s),
        **({rules.SYNC_EACH: True} if rules.reduces_each(s) else {}),
        **trainer_tuning.in_axolotl(s),
    } | _attention(s)
    if (chunks := s.plan.execution.loss_chunks) is not None:
        result |= {"chunked_cross_entropy": True, "chunked_cross_entropy_num_chunks": chunks}
    if (widened := QUANTISED.get(s.graph.name)) is not None:
        result |= {"model_quantization_config": widened, "model_quantization_config_kwargs": {"dequantize": True}}
    if data.zero < 2:
        return result
    return result | {
        "dp_shard_size": s.dp // data.hsdp,
        "dp_replicate_size": data.hsdp,
        "fsdp_version": 2,
        **_sharding(s, "offload_params"),
    }


def _llama_factory_losses(s: Subject) -> Iterator[Loss]:
    """Losses of the Trainer and of its adapters."""
    yield from released_losses(s)
    yield from trainer_tuning.adapter_losses(s)


def _llama_factory_options(s: Subject) -> Options:
    """The Trainer's options, and LLaMA-Factory's own.

    LLaMA-Factory checkpoints activations unless that is disabled; under FSDP, FSDP's own option is used.
    """
    given, kernel = arguments(s), s.plan.execution.attention_kernel
    is_own = bool(given.pop("gradient_checkpointing"))
    return {
        "model_name_or_path": HUB.get(s.graph.name, s.graph.name),
        "stage": "pt",
        "do_train": True,
        **trainer_tuning.in_llama_factory(s),
        "dataset": "c4_demo",
        "cutoff_len": s.training.seq_len,
        "packing": True,
        "disable_gradient_checkpointing": not is_own,
        **given,
        **({} if kernel is None else {"flash_attn": FLASH_ATTN[kernel]}),
    }


TRANSFORMERS = Target(
    name="transformers",
    description="Hugging Face's Trainer: TrainingArguments with FSDP, and a script",
    version="transformers 5.23 (TrainingArguments)",
    losses=losses,
    options=arguments,
    files=_transformers_files,
    notes=_transformers_notes,
    features=(
        "offload",
        "a part",
        "attention_kernel",
        "defer_grad_reduce",
        "empty_cache_steps",
        "expandable_segments",
        "fused_kernels",
        "optimizer_kernels",
    ),
    numerics=TargetNumerics(OPTIMIZERS),
)
TRL = replace(
    TRANSFORMERS,
    name="trl",
    description="TRL: the YAML of supervised fine-tuning (trl sft)",
    version="TRL 1.16.0 (SFTConfig, ScriptArguments, ModelConfig)",
    losses=_trl_losses,
    options=_trl_options,
    features=(*TRANSFORMERS.features, "tuning"),
    files=config_and_launchers("sft.yaml", "-m trl.scripts.sft", "--config sft.yaml"),
    notes=notes,
)
AXOLOTL = replace(
    TRL,
    name="axolotl",
    description="Axolotl: its YAML, all parameters or adapters, under FSDP",
    version="Axolotl 0.19.0 (AxolotlInputConfig)",
    losses=_axolotl_losses,
    options=_axolotl_options,
    features=(*TRL.features, "loss_chunks"),
    files=config_and_launchers("axolotl.yaml", "-m axolotl.cli.train", "axolotl.yaml"),
)
LLAMA_FACTORY = replace(
    TRL,
    name="llama-factory",
    description="LLaMA-Factory: the YAML of llamafactory-cli train, all parameters or adapters",
    version="LLaMA-Factory 0.9.5 (hparams)",
    losses=_llama_factory_losses,
    options=_llama_factory_options,
    files=config_and_launchers("train.yaml", "-m llamafactory.launcher", "train.yaml"),
    how="The data set `c4_demo` is in the folder `data` of its repository; name your own with `dataset_dir`.",
)
