"""LitGPT: the YAML of its finetuning and pretraining, and ``litgpt`` commands, as a plan.

Defaults are those of ``finetune/``, ``pretrain.py`` and ``args.py`` (Lightning-AI/litgpt 2685705).
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from simpar.architectures.catalogue import find_model
from simpar.errors import UserError
from simpar.frameworks.match import find_released
from simpar.frameworks.overrides import ToldReader, choice, command_of, is_config, load_beside, mapping, reader_of, real
from simpar.frameworks.reader import SPAWNS, Reader
from simpar.frameworks.recipes import flat, nest_names
from simpar.frameworks.target import Imported, Sized, plan_said
from simpar.frameworks.trainer_arguments import split_command
from simpar.frameworks.trainer_read import low_states
from simpar.frameworks.words import Assumed, WordTable

METHODS = {"finetune": "lora", "finetune_lora": "lora", "finetune_full": "full", "pretrain": "pretrain"}
OTHER_METHODS = ("adapter", "adapter_v2", "finetune_adapter", "finetune_adapter_v2")
USUAL = {"lora": (16, 1), "full": (16, 1), "pretrain": (512, 4)}
"""Sequences of a step and of a rank's pass, by what is done."""
PRECISIONS = {"bf16-true": ("bf16", True), "bf16-mixed": ("bf16", False), "32-true": ("fp32", False),
              "16-true": ("fp16", True), "16-mixed": ("fp16", False)}  # fmt: skip
"""The precision of products, and whether parameters have it, too."""
BITS = {"bnb.nf4": "nf4", "bnb.nf4-dq": "nf4", "bnb.fp4": "nf4", "bnb.fp4-dq": "nf4", "bnb.int8-training": "int8"}
ADAPTED = {"query": ("q_proj",), "key": ("k_proj",), "value": ("v_proj",), "projection": ("o_proj",),
           "mlp": ("gate_proj", "up_proj", "down_proj")}  # fmt: skip
OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd", "pagedadamw": "paged_adamw", "adamw8bit": "adamw_8bit",
              "pagedadamw8bit": "paged_adamw_8bit", "lion": "lion"}  # fmt: skip
LEFT_OPEN = (2, 4)
"""Parts of the longest sequence that data may be: padded to the longest of a micro-batch."""


def read(text: str, name: str) -> Imported:
    """The plan in a config, or in a command with or without one. Raises UserError naming file, option and value."""
    if is_config(name):
        data = mapping(text, name)
        if not owns(data):
            raise UserError(f"{name}: no config of LitGPT: it has checkpoint_dir or model_name, and train")
        method = "lora" if any(key.startswith("lora_") for key in data) else "full"
        return _plan(reader_of(data, name), "pretrain" if "model_name" in data else method)
    method, data = _of_command(text, name)
    return _plan(reader_of(data, name), method)


def _of_command(text: str, name: str) -> tuple[str, dict[str, Any]]:
    """What a command does, and its options over those of its config. Raises UserError."""
    command = split_command(command_of(text, name, _starts))
    loose = () if command is None else command.loose
    does, after = (loose[0], loose[1:]) if loose else ("", ())
    if does == "finetune" and after[:1] and f"finetune_{after[0]}" in (*METHODS, *OTHER_METHODS):  # of earlier versions
        does, after = f"finetune_{after[0]}", after[1:]
    if command is None or does not in METHODS:
        raise UserError(f"{name}: litgpt {does}: allowed: {', '.join(METHODS)}")
    options = {key: value for key, value in command.flags.items() if key != "config"}
    data = {key: value for file in command.configs for key, value in flat(load_beside(file, name)).items()}
    named = next((word for word in after if not is_config(word)), None)
    key = "model_name" if METHODS[does] == "pretrain" else "checkpoint_dir"
    return METHODS[does], nest_names({**data, **options, **({key: named} if named else {})})


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of LitGPT."""
    train = data.get("train")
    named = "model_name" in data or "checkpoint_dir" in data
    return named and isinstance(train, Mapping) and "micro_batch_size" in train


def _plan(given: ToldReader, method: str) -> Imported:
    model, note = _model(given)
    told, nodes = given.get("devices", "auto" if method == "pretrain" else 1), given.whole("num_nodes") or 1
    devices = None if str(told) in ("auto", "-1") else given.whole("devices") or 1
    shards = devices is None or devices * nodes > 1
    precision, low = choice(given, "precision", PRECISIONS, ("bf16", False))
    batch, micro = (given.whole(f"train.{key}_batch_size") or usual for key, usual in
                    zip(("global", "micro"), USUAL[method], strict=True))  # fmt: skip
    length = given.whole("train.max_seq_length")
    adapters = _adapters(given, low=low, shards=shards) if method == "lora" else {}
    values: dict[str, Any] = {
        "model": model,
        "stack": "fsdp",
        "dp": devices * nodes if devices else None,
        "zero": 3 if shards else 0,
        "hsdp": nodes if method == "pretrain" and shards else None,
        "defer_grad_reduce": True if shards else None,  # Fabric.no_backward_sync
        "micro_batch": micro,
        "precision": precision,
        "recompute": "full" if shards and method != "pretrain" else "none",
        "attention_kernel": "sdpa",
        "fused_kernels": "compiled" if method == "pretrain" else None,
        "training": {"global_batch": batch, **({"seq_len": length} if length else {})},
        **_optimizer(given, method),
        **adapters,
    }
    if low and not adapters:
        values |= low_states(values["optimizer"])
    assumed = []
    if length and method != "pretrain":
        why = "sequences are padded to the longest of a micro-batch: the longest allowed"
        assumed.append(Assumed("seq_len", length, why, tuple(length // part for part in LEFT_OPEN)))
    return Imported(
        plan_said(values), given.words(), tuple(filter(None, (note, *given.misspelt(WORDS)))),
        asks={"model": note}, assumed=tuple(assumed), sized=Sized("huggingface"),
    )  # fmt: skip


def _model(given: ToldReader) -> tuple[str | None, str]:
    """The model of a folder of weights, or of a name; and a note where it is not shipped."""
    named = given.name_of("checkpoint_dir") or given.name_of("model_name")
    if named is None:
        return None, "The config names no model: give --model."
    sizes = any(key.startswith("model_config.") and given.values_[key] is not None for key in given)
    model = None if sizes else find_released(named, given.source) or find_model(PurePath(named).name)
    return model, "" if model else f"The model {named} is not shipped, or has sizes of its own: give --model."


def _adapters(given: ToldReader, *, low: bool, shards: bool) -> dict[str, Any]:
    """Adapters and the weights beside them. Raises UserError."""
    bits = choice(given, "quantize", BITS)
    if bits and shards:
        raise UserError(f"{given.source}: quantize = {given['quantize']}: allowed: one device, or none")
    usual = {"query": True, "value": True}
    targets = [name for part, names in ADAPTED.items() if given.get(f"lora_{part}", usual.get(part)) for name in names]
    if not targets:
        raise UserError(f"{given.source}: lora_query = false: allowed: at least one of lora_{', lora_'.join(ADAPTED)}")
    dropout = real(given, "lora_dropout")
    return {
        "lora_rank": given.whole("lora_r") or 8,
        "lora_targets": tuple(targets),
        "lora_dropout": 0.05 if dropout is None else dropout,
        "frozen_dtype": bits or ("bf16" if low or shards else "fp32"),
    }


def _optimizer(given: ToldReader, method: str) -> dict[str, Any]:
    """The optimizer by the last part of its name; beside 4 or 8 bits it is bitsandbytes' paged one."""
    named = given.get("optimizer.class_path") or given.get("optimizer") or "AdamW"
    name = str(named).rpartition(".")[2].lower()
    if name not in OPTIMIZERS:
        raise UserError(f"{given.source}: optimizer = {named}: allowed: {', '.join(OPTIMIZERS)}")
    quantized = method == "lora" and given.get("quantize") is not None
    return {
        "optimizer": "paged_adamw" if quantized and name == "adamw" else OPTIMIZERS[name],
        "optimizer_kernels": "fused" if method == "pretrain" and name in ("adamw", "adam") else None,
    }


def _starts(words: Sequence[str]) -> bool:
    """Whether a command is LitGPT's training; others of its commands train nothing."""
    at = next((at for at, word in enumerate(words[:4]) if PurePath(word).name == "litgpt"), None)
    does = words[at + 1] if at is not None and at + 1 < len(words) else ""
    return does in METHODS or does in OTHER_METHODS


WORDS = WordTable(
    idle=(
        "out_dir", "data", "data.*", "data_dir", "train.save_interval", "train.log_interval", "train.lr_*",
        "train.epochs", "train.max_tokens", "train.max_steps", "train.max_time", "train.max_norm", "train.min_lr",
        "train.weight_decay", "train.learning_rate", "train.beta*", "eval", "eval.*", "log.*", "logger_name", "seed",
        "access_token", "resume", "optimizer.init_args*", "optimizer.lr", "lora_alpha", "tokenizer_dir",
        "initial_checkpoint_dir", "quantize", "lora_*", "initial_validation", "ops", "verbose",
    ),
    deciding={
        "lora_head": "an adapter beside the head: memory",
        "train.tie_embeddings": "one table for words and for the head: memory",
        "model_config*": "sizes of the model: memory and time",
    },
)  # fmt: skip

READER = Reader(
    name="litgpt",
    description="LitGPT: its YAML, and litgpt finetune_lora, finetune_full, finetune and pretrain",
    read=read,
    starts=_starts,
    owns=owns,
    words=WORDS,
    devices=SPAWNS,
)
