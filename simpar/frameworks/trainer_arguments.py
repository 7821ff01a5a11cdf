"""Hugging Face's ``TrainingArguments``, which its Trainer, TRL and LLaMA-Factory share."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.frameworks import hugging_face, placeholders, rules
from simpar.frameworks.hub import HUB, as_shipped
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, TargetNumerics
from simpar.units import MIB

OPTIMIZERS = {"adamw": "adamw_torch_fused", "sgd": "sgd"}
NUMERICS = TargetNumerics(OPTIMIZERS)
PARSER = "transformers 5.23 (TrainingArguments)"


def losses(s: Subject) -> Iterator[Loss]:
    """Losses of the Trainer: tensor and context parallelism, ZeRO-1, replicas of shards, 8 bits."""
    yield from hugging_face.losses(s)
    yield from rules.no_axis(s, "tp", "the Trainer takes a mesh of tensor-parallel ranks from code, no option")
    yield from rules.no_axis(s, "cp", "the Trainer takes a mesh of context-parallel ranks from code, no option")
    yield from sharded_losses(s)
    yield from rules.chosen(s, master_weights="parameters are fp32")
    if s.plan.data_parallel.hsdp > 1:
        yield Loss("hsdp", s.plan.data_parallel.hsdp, "states are sharded over all ranks")


def sharded_losses(s: Subject) -> Iterator[Loss]:
    """What Accelerate's FSDP, on which trainers are based, does not have."""
    data = s.plan.data_parallel
    if data.zero == 1:
        yield Loss("zero", 1, "FSDP shards gradients with the optimizer states: zero 2 or 3")
    yield from rules.offload_of_shards(s)
    where_sharded = "a layer is the unit of communication"
    yield from rules.chosen(
        s,
        **({"bucket_bytes": where_sharded} if data.zero else {}),
        overlap_grad_reduce="gradients overlap always",
        overlap_param_gather="parameters are fetched ahead always",
        grad_dtype="gradients are reduced as they are computed",
    )


def released(s: Subject) -> Iterator[Loss]:
    """Losses for a model without a name on the hub."""
    if s.graph.name not in HUB or not as_shipped(s.graph):
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
        "optim": OPTIMIZERS[numerics.optimizer],
        "bf16": numerics.precision == "bf16",
        "fp16": numerics.precision == "fp16",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
    }
    if s.plan.data_parallel.zero < 2:
        result["gradient_checkpointing"] = full
        if s.chose("bucket_bytes"):
            result["ddp_bucket_cap_mb"] = max(1, round(float(s.plan.data_parallel.bucket_bytes or 0) / MIB))
        return result
    return result | {
        "gradient_checkpointing": False,
        "fsdp": True,
        "fsdp_config.version": 2,
        "fsdp_config.reshard_after_forward": bool(s.plan.data_parallel.reshard_after_forward),
        "fsdp_config.activation_checkpointing": full,
        "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.cpu_offload": s.plan.offload.offload_parameters == "cpu",
        "fsdp_config.state_dict_type": "SHARDED_STATE_DICT",
    }


def notes(s: Subject) -> Iterator[str]:
    """Notes on all of them for the user."""
    yield "Learning rate, data and number of steps are placeholders: a plan does not say them."
    if s.plan.data_parallel.zero == 2:
        yield "zero 2 becomes FSDP that keeps gathered parameters until the backward pass."
