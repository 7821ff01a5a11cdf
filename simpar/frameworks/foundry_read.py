"""LLM Foundry back to a plan: the YAML of its ``scripts/train/train.py``, and commands of composer that name one.

Source: mosaicml/llm-foundry 8c8dd48 (``scripts/train/yamls``, ``llmfoundry/models/mpt/configuration_mpt.py``); it
trains by PyTorch's FSDP, as Composer sets it up.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.match import find_released
from simpar.frameworks.overrides import (
    assigned,
    choice,
    command_of,
    is_config,
    laid_over,
    load_beside,
    mapping,
    reader_of,
)
from simpar.frameworks.reader import DeviceHabits, Reader
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.trainer_adapters import USUAL_TARGETS, targets_of
from simpar.frameworks.trainer_arguments import TrainerArguments
from simpar.frameworks.words import Assumed, WordTable

SHARDING = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3}
PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32", "amp_fp8": "fp8"}
OPTIMIZERS = {"decoupled_adamw": "adamw", "adamw": "adamw", "adam": "adamw", "decoupled_lionw": "lion",
              "decoupled_lionw_8b": "lion_8bit", "adalr_lion": "lion", "clip_lion": "lion"}  # fmt: skip
KERNELS = {"flash": None, "torch": "eager"}
MPT = ("d_model", "n_heads", "n_layers", "expansion_ratio", "vocab_size", "no_bias", "learned_pos_emb", "max_seq_len")
"""Fields of MPT's config, which the hub's has, too."""
PEFT = "model.peft_config."
LEAST_MICRO = 1
"""Sequences of a pass where Composer finds the number out ("auto"): what has to fit, and divides every batch."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of LLM Foundry, or in a command with one. Raises UserError naming file, option, value."""
    data = mapping(text, name) if is_config(name) else _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no config of LLM Foundry: it has train_loader and global_train_batch_size")
    given = reader_of(data, name)
    seq_len, batch = given.whole("max_seq_len"), given.whole("global_train_batch_size")
    micro, assumed = given.get("device_train_microbatch_size"), list[Assumed]()
    if micro in (None, "auto"):
        why = "device_train_microbatch_size is auto: the largest that fits is tried out"
        micro, assumed = LEAST_MICRO, [Assumed("micro_batch", LEAST_MICRO, why, (2, 4, 8))]
    else:
        micro = given.whole("device_train_microbatch_size")
    shards = any(key.startswith("fsdp_config.") for key in given)
    sharding = choice(given, "fsdp_config.sharding_strategy", SHARDING, 3 if shards else 0)
    precision = choice(given, "precision", PRECISIONS, "bf16")
    pure = str(given.get("fsdp_config.mixed_precision", "DEFAULT")).upper() == "PURE"
    model, config, note = _model(given)
    values: dict[str, Any] = {
        "stack": "llm-foundry",
        "model": model,
        "zero": sharding,
        "micro_batch": micro,
        "precision": precision,
        "reduce_dtype": "bf16" if pure and precision == "bf16" and sharding else None,
        "recompute": "full" if given.get("fsdp_config.activation_checkpointing") else "none",
        "optimizer": choice(given, "optimizer.name", OPTIMIZERS, "adamw"),
        "attention_kernel": choice(given, "model.attn_config.attn_impl", KERNELS),
        "expandable_segments": given.get("expandable_segments", True) is not False,
        **_adapters(given),
        "training": {**({"seq_len": seq_len} if seq_len else {}), **({"global_batch": batch} if batch else {})} or None,
    }
    notes = tuple(filter(None, (note, *given.misspelt())))
    asks = {"model": "" if config else note}
    return Imported(plan_said(values), given.words(), notes, asks=asks, config=config, assumed=tuple(assumed))


def _adapters(given: ConfigReader) -> dict[str, Any]:
    """Adapters of a model of the hub, as PEFT's config says them; {} where all is trained. Raises UserError."""
    own = {key.removeprefix(PEFT): value for key, value in given.values_.items() if key.startswith(PEFT)}
    if not own:
        return {}
    peft = TrainerArguments(own, given.source, {key: f"{PEFT}{key}" for key in own})
    if str(peft.one("peft_type")).upper() != "LORA":
        raise UserError(f"{given.source}: {PEFT}peft_type = {own.get('peft_type')!r}: allowed: LORA")
    result = {
        "lora_rank": peft.number("r") or 8,
        "lora_targets": targets_of(peft, USUAL_TARGETS, []),
        "lora_dropout": peft.rate("lora_dropout", usual=0.0),
        "frozen_dtype": "bf16",
    }
    for key in peft.used & set(own):
        given.get(f"{PEFT}{key}")
    return result


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of LLM Foundry."""
    return "train_loader" in data and bool({"global_train_batch_size", "device_train_microbatch_size"} & set(data))


def _model(given: ConfigReader) -> tuple[str | None, dict[str, Any] | None, str]:
    """The shipped model, or the config of MPT's layers, and a note. Raises UserError for other models."""
    kind = str(given.get("model.name"))
    if kind.startswith("hf_"):
        named = str(given.get("model.pretrained_model_name_or_path"))
        released = find_released(named, given.source)
        return released, None, "" if released else f"The model {named} is not shipped: give --model."
    if kind != "mpt_causal_lm":
        raise UserError(f"{given.source}: model.name = {kind}: allowed: mpt_causal_lm, hf_causal_lm")
    config = {key: given.get(f"model.{key}") for key in MPT if f"model.{key}" in given}
    attention, ffn = (str(given.get(key) or usual) for key, usual in (
        ("model.attn_config.attn_type", "multihead_attention"), ("model.ffn_config.ffn_type", "mptmlp"),
    ))  # fmt: skip
    alibi, rope = (bool(given.get(f"model.attn_config.{each}")) for each in ("alibi", "rope"))
    if rope or attention != "multihead_attention" or ffn != "mptmlp" or "model.block_overrides" in given:
        return (
            None,
            None,
            "The model has layers that no config here says (rope, grouped queries, experts): give --model.",
        )
    defaults = {"model_type": "mpt", "no_bias": False, "learned_pos_emb": True}
    note = "The model is built of the config (model_type mpt)."
    return None, {**defaults, **config, "attn_config": {"alibi": alibi}}, note


def _starts(words: Sequence[str]) -> bool:
    started = {PurePath(word).name for word in words}
    named = any(word.endswith((".yaml", ".yml")) for word in words)
    return named and ("composer" in started or any("llmfoundry" in word for word in words))


def _of_command(text: str, name: str) -> dict[str, Any]:
    """The config that a command names, with its ``key=value`` words over it."""
    words = command_of(text, name, _starts)
    config = next(word for word in words if word.endswith((".yaml", ".yml")))
    return laid_over(load_beside(config, name), assigned(words))


READER = Reader(
    name="llm-foundry",
    description="LLM Foundry: the YAML of its training, and commands of composer with one",
    read=read,
    starts=_starts,
    owns=owns,
    devices=DeviceHabits(spawns=True, caps=True),
    words=WordTable(
        idle=(
            "variables.*", "run_name", "tokenizer.*", "tokenizer_name", "train_loader.*", "eval_loader.*",
            "scheduler.*", "algorithms.*", "max_duration", "eval_*", "seed", "global_seed", "device_eval*",
            "progress_bar", "log_*", "console_log_interval", "callbacks.*", "loggers.*", "save_*", "load_*",
            "autoresume", "python_log_level", "optimizer.lr", "optimizer.betas", "optimizer.eps",
            "optimizer.weight_decay", "dist_timeout", "icl_*",
            "model.init_device", "model.init_config*", "model.pretrained", "model.resid_pdrop", "model.emb_pdrop",
            "model.use_auth_token", "model.config_overrides.max_seq_len", "data_*", "metadata.*", "max_split_size_mb",
            "fsdp_config.activation_checkpointing_reentrant", "fsdp_config.limit_all_gathers", "fsdp_config.verbose",
            "fsdp_config.state_dict_type", "fsdp_config.sync_module_states", "fsdp_config.mixed_precision",
            "model.attn_config.alibi_bias_max", "model.attn_config.qk_ln", "model.loss_fn",
            "model.peft_config.lora_alpha", "model.peft_config.task_type", "model.peft_config.bias", "dataset.*",
            "model.use_flash_attention_2", "model.config_overrides", "model.trust_remote_code",
        ),
        deciding={
            "fsdp_config.activation_cpu_offload": "activations wait on the host: memory and time",
            "fsdp_config.cpu_offload": "parameters wait on the host: memory and time",
            "fsdp_config.backward_prefetch*": "when parameters are gathered: overlap",
            "fsdp_config.forward_prefetch*": "when parameters are gathered: overlap",
            "fsdp_config.use_orig_params": "how parameters are flattened: memory",
            "fsdp_config.activation_checkpointing_target*": "which layers are recomputed: memory and time",
            "model.attn_config.attn_uses_sequence_id": "tokens see their own document alone: attention's time",
            "model.attn_config.clip_qkv": "an operator in every layer: time",
            "model.fc_type*": "kernels of products: time",
            "model.norm_type": "the norm: memory",
            "model.config_overrides.attn_config*": "the layers' attention: memory and time",
            "model.config_overrides.n*": "a model of other sizes: memory and time",
            "model.config_overrides.d_model": "a model of other sizes: memory and time",
            "model.ffn_config.*": "the MLP's layers: memory and time",
            "compile_config*": "what is compiled: time and memory",
            "tp_config*": "tensor parallelism: memory and communication",
            "parallelism_config*": "how the mesh is laid out: memory and communication",
        },
    ),
)  # fmt: skip
