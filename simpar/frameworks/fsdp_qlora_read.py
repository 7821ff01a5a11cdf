"""fsdp_qlora: the arguments of its ``train.py``, which starts one process per device itself, as a plan.

Defaults are those of ``train.py`` (AnswerDotAI/fsdp_qlora 05ed9f2, ``fsdp_qlora``).
"""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.match import find_released
from simpar.frameworks.overrides import command_of
from simpar.frameworks.reader import SPAWNS, Reader
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.trainer_adapters import USUAL_TARGETS
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand, split_command
from simpar.frameworks.trainer_read import low_states
from simpar.frameworks.trainer_sharding import nodes_of
from simpar.frameworks.words import Assumed, WordTable

SCRIPT, TELLING = "train.py", ("context_length", "use_cpu_offload", "reentrant_checkpointing", "low_memory")
"""Arguments that tell it from others with a ``train_type``."""
STORED = {"full": None, "lora": "bf16", "custom_lora": "bf16", "qlora": "nf4", "custom_qlora": "nf4",
          "hqq_lora": "nf4", "bnb_dora": "nf4", "hqq_dora": "nf4"}  # fmt: skip
"""What is trained, and how the weights beside adapters are stored; None where these are trained."""
SHARDING = {"full_shard": (3, False), "shard_grad_op": (2, False), "ddp": (0, False), "hybrid_full_shard": (3, True),
            "hybrid_shard_grad_op": (2, True)}  # fmt: skip
"""The stage, and whether every node has a replica."""
PRECISIONS = {"bf16": "bf16", "fp32": "fp32", "fp16_autocast": "fp16", "bf16_autocast": "bf16",
              "bf16_buffers_autocast": "bf16"}  # fmt: skip
LOW = ("bf16", "bf16_buffers_autocast")
"""Precisions whose parameters are bf16 alone; others keep and gather fp32."""
ALL = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
TARGETS = {"all": ALL, "default": USUAL_TARGETS}
"""Projections with adapters: all but attention's output, or PEFT's."""
OPTIMIZERS = {"adamw": None, "fused_adamw": "fused", "adam": None, "fused_adam": "fused"}
"""How the update runs, by the names of AdamW and Adam."""
LEFT_OPEN = (2, 4)
"""Parts of the longest sequence that data may be: padded to the longest of a micro-batch."""


def read(text: str, name: str) -> Imported:
    """The plan in a command that starts ``train.py``. Raises UserError naming file, option and value."""
    command = split_command(command_of(text, name, _starts))
    if command is None:
        raise UserError(f"{name}: no command of fsdp_qlora, such as python train.py --train_type qlora")
    return _plan(TrainerArguments(command.flags, name, command.written), command)


def _plan(given: TrainerArguments, command: TrainerCommand) -> Imported:
    named = str(given.told("model_name") or "meta-llama/Llama-2-7b-hf")
    model = find_released(named, given.source)
    note = "" if model else f"The model is {named}: give --model."
    micro, accumulation = given.number("batch_size") or 1, given.number("gradient_accumulation_steps") or 1
    told = _choice(given, "precision", PRECISIONS, "bf16")
    zero, per_node = SHARDING[_choice(given, "sharding_strategy", SHARDING, "full_shard")]
    length = given.number("context_length") or 512
    away = "none" if given.on("use_cpu_offload") is False else "cpu"
    adapters = _adapters(given, told)
    values: dict[str, Any] = {
        "model": model,
        "stack": "huggingface",
        "dp": given.number("world_size"),
        "zero": zero,
        "hsdp": nodes_of(command) if per_node else None,
        "defer_grad_reduce": True in (given.on("no_sync"), given.on("sync") is False) if zero >= 2 else None,
        "micro_batch": micro,
        "precision": PRECISIONS[told],
        "recompute": "none" if given.on("use_gradient_checkpointing") is False else "full",
        "offload_optimizer": away,
        "offload_parameters": away,
        "offload_activations": 1.0 if given.on("use_activation_cpu_offload") else None,
        "attention_kernel": "sdpa",
        "training": {"seq_len": length},
        **_optimizer(given),
        **adapters,
    }
    if not adapters and told in LOW:
        values |= low_states("adamw")
    notes = (note, *_notes(given), *given.misspelt(WORDS))
    why = "sequences are as long as the data, padded to the longest of a micro-batch: the longest allowed"
    return Imported(
        plan_said(values),
        given.words(),
        tuple(filter(None, notes)),
        per_replica=micro * accumulation,
        asks={"model": note} if note else {},
        assumed=(Assumed("seq_len", length, why, tuple(length // part for part in LEFT_OPEN if length // part)),),
    )


def _choice(given: TrainerArguments, key: str, allowed: Sequence[str] | dict[str, Any], usual: str) -> str:
    """The value of an argument of several; the usual one if it is not given. Raises UserError."""
    told = str(given.one(key) or usual).lower()
    if told not in allowed:
        raise given.refused(key, ", ".join(allowed))
    return told


def _adapters(given: TrainerArguments, precision: str) -> dict[str, Any]:
    """Adapters and the dtype beside them; {} where all parameters are trained. Raises UserError."""
    kind = _choice(given, "train_type", STORED, "qlora")
    if kind.endswith("dora"):
        given.leave("train_type")  # norms of whole matrices are trained beside the products
    stored = STORED[kind]
    if stored is None:
        return {}
    targets = TARGETS[_choice(given, "lora_target_modules", TARGETS, "all")]
    return {
        "lora_rank": given.number("lora_rank") or 64,
        "lora_targets": targets,
        "lora_dropout": given.rate("lora_dropout", usual=0.1),
        "frozen_dtype": "fp32" if stored == "bf16" and precision not in LOW else stored,
    }


def _optimizer(given: TrainerArguments) -> dict[str, Any]:
    """Adam as torch runs it, or SGD, which has no momentum here. Raises UserError."""
    name = _choice(given, "optimizer", (*OPTIMIZERS, "sgd"), "adamw")
    return {"optimizer": "sgd"} if name == "sgd" else {"optimizer": "adamw", "optimizer_kernels": OPTIMIZERS[name]}


def _notes(given: TrainerArguments) -> list[str]:
    if str(given.told("train_type") or "").startswith("hqq"):
        return ["HQQ's 4 bits are taken for NF4: the same bits with a scale for each group of weights."]
    return []


def _starts(words: Sequence[str]) -> bool:
    command = split_command(words) if words else None
    if command is None or PurePath(command.script).name != SCRIPT or "train_type" not in command.flags:
        return False
    return not set(TELLING).isdisjoint(command.flags)


WORDS = WordTable(
    idle=(
        "num_epochs", "dataset", "dataset_samples", "reentrant_checkpointing", "low_memory", "save_model",
        "output_dir", "lora_alpha", "verbose", "lr", "apply_gradient_clipping", "grad_norm", "wd", "profil*",
        "lr_scheduler", "loading_workers", "log_to", "master_addr", "master_port", "seed", "project_name", "name",
        "group", "entity", "n_bits", "max_steps", "with_stack", "with_shapes", "export_*", "wait_steps",
        "warmup_steps", "active_steps", "repeat",
    ),
    deciding={
        "train_type": "norms of whole matrices beside adapters (DoRA): time and memory",
        "llama_pro_path": "which layers are trained: memory and time",
    },
)  # fmt: skip

READER = Reader(
    name="fsdp_qlora",
    description="fsdp_qlora: arguments of its train.py",
    read=read,
    starts=_starts,
    words=WORDS,
    has_dotted_flags=False,
    devices=SPAWNS,
)
