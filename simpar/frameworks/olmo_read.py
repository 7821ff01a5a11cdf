"""OLMo back to a plan: the YAML of ``scripts/train.py``, and commands that give it one.

Source: allenai/OLMo, version 0.6 (``olmo/config.py``, ``olmo/model.py``, ``olmo/train.py`` and ``scripts/train.py``);
it trains by torch's FullyShardedDataParallel or by its DistributedDataParallel.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from simpar.architectures.recompute import FULL, NONE, by_layer, policy_of_every
from simpar.errors import UserError
from simpar.frameworks.overrides import choice, command_of, is_config, laid_over, load_beside, mapping, reader_of
from simpar.frameworks.reader import DeviceHabits, Reader
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.trainer_arguments import split_command
from simpar.frameworks.trainer_sharding import nodes_of
from simpar.frameworks.words import ReadWords, WordTable

USUAL = {
    "model.d_model": 768, "model.n_heads": 12, "model.n_layers": 12, "model.mlp_ratio": 4,
    "model.max_sequence_length": 1024, "model.vocab_size": 50257, "model.embedding_size": 50304,
    "global_train_batch_size": 512, "device_train_microbatch_size": 16,
}  # fmt: skip
PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32"}
SHARDING = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "_hybrid_shard_zero2": 2}
OPTIMIZERS = {"adamw": "adamw", "lionw": "lion"}
STRATEGIES = ("fsdp", "ddp", "single")
RECOMPUTED = {
    "whole_layer": (FULL,), "one_in_two": (FULL, NONE), "one_in_three": (FULL, NONE, NONE),
    "one_in_four": (FULL, NONE, NONE, NONE), "one_in_eight": (FULL, *[NONE] * 7), "two_in_three": (NONE, FULL, FULL),
    "three_in_four": (NONE, FULL, FULL, FULL),
}  # fmt: skip
"""The modes of layers in turn, by ``activation_checkpointing``."""
IN_PARTS = "fine_grained"
"""Another value of it: norms, attention and activations are recomputed one by one."""
WRAPPED_BY_LAYER = ("by_block", "by_block_and_size")
OF_NORMS = ("model.layer_norm_type", "model.layer_norm_with_affine", "model.norm_after", "model.attention_layer_norm")
WANTED = (("model.rope", True, False), ("model.alibi", False, False), ("model.activation_type", "swiglu", "swiglu"))
"""Words of the model that must have a value, with it and what OLMo takes where nothing is said."""
EMBEDDED = "model.embedding_size"
HYBRID = "hybrid"
TELLING = (
    "--device_train_microbatch_size", "--fsdp.wrapping_strategy", "--fsdp.sharding_strategy",
    "--save_interval_ephemeral", "--save_interval_unsharded", "--try_load_latest_save", "--remote_save_folder",
    "--sharded_checkpointer",
)  # fmt: skip
"""Flags by which a command is known where its config is not here."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of OLMo, or in a command with one. Raises UserError naming file, option and value."""
    data, nodes = (mapping(text, name), None) if is_config(name) else _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no config of OLMo: it has a section model and device_train_microbatch_size")
    given = reader_of(data, name)
    left: dict[str, Any] = {}
    layers = given.size("model.n_layers", USUAL)
    sharding = _sharding(given, nodes, left)
    precision = choice(given, "precision", PRECISIONS, "fp32")
    pure = given.get("fsdp.precision", "pure") == "pure"
    values: dict[str, Any] = {
        "stack": "fsdp" if sharding["kind"] == "fsdp" else "ddp",
        **sharding,
        "micro_batch": given.size("device_train_microbatch_size", USUAL),
        "precision": precision,
        "reduce_dtype": "bf16" if pure and precision == "bf16" and sharding["kind"] == "fsdp" else None,
        "recompute": _recompute(given, layers, left),
        "optimizer": choice(given, "optimizer.name", OPTIMIZERS, "lion"),
        "fused_kernels": "compiled" if _compiles(given) else "none",
        "attention_kernel": "sdpa",
        "training": {
            "seq_len": given.size("model.max_sequence_length", USUAL),
            "global_batch": given.size("global_train_batch_size", USUAL),
        },
    }
    config = _model(given, layers)
    note = f"The model is built of the config (model_type {config['model_type']})."
    words = given.words()
    return Imported(plan_said(values), ReadWords(words.used, {**words.unread, **left}), (note,), config=config)


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of OLMo."""
    model = data.get("model")
    return isinstance(model, Mapping) and "d_model" in model and "device_train_microbatch_size" in data


def _sharding(given: ConfigReader, nodes: int | None, left: dict[str, Any]) -> dict[str, Any]:
    """How states are shared out; ``left`` gets the words that decide beside it. Raises UserError."""
    strategy = str(given.get("distributed_strategy") or STRATEGIES[0])
    if strategy not in STRATEGIES:
        named = ", ".join(STRATEGIES)
        raise UserError(f"{given.source}: distributed_strategy = {strategy}: allowed: {named}")
    if strategy != "fsdp":
        given.used |= {word for word in given.values_ if word.startswith("fsdp.")}
        return {"kind": None, "zero": 0, **({"dp": 1} if strategy == "single" else {})}
    word = "fsdp.sharding_strategy"
    zero = choice(given, word, SHARDING, 3)
    wrapped = given.get("fsdp.wrapping_strategy")
    if zero and wrapped not in WRAPPED_BY_LAYER:
        left["fsdp.wrapping_strategy"] = wrapped or "not said"
    replicas, copies = "fsdp.hybrid_sharding_num_model_replicas", None
    if HYBRID in str(given.get(word, "")).lower():
        copies = given.whole(replicas) or nodes
        left |= {word: given.get(word)} if copies is None else {}
    given.used.add(replicas)  # of others, there are none
    return {"kind": "fsdp", "zero": zero, "hsdp": copies}


def _recompute(given: ConfigReader, layers: int, left: dict[str, Any]) -> str:
    """The policy of recomputation: layer by layer where not all of them do. Raises UserError."""
    word = given.get("activation_checkpointing")
    if not word:
        return NONE
    if word == IN_PARTS:
        left["activation_checkpointing"] = word
        return "selective"
    turns = RECOMPUTED.get("whole_layer" if word is True else word)
    if turns is None:
        allowed = ", ".join((*RECOMPUTED, IN_PARTS))
        raise UserError(f"{given.source}: activation_checkpointing = {word!r}: allowed: {allowed}")
    if len(turns) == 1:
        return FULL
    if turns.count(FULL) == 1:
        return policy_of_every(len(turns))
    return by_layer((turns[layer % len(turns)], 1) for layer in range(layers))


def _compiles(given: ConfigReader) -> bool:
    """Whether blocks are compiled: there is a section, which says how."""
    said = {word for word in given.values_ if word.startswith("compile.") or word == "compile"}
    given.used |= said
    return any(given.values_[word] is not None for word in said)


def _model(given: ConfigReader, layers: int) -> dict[str, Any]:
    """The config of a decoder like OLMo's or Llama's. Raises UserError for other layers."""
    hidden, heads = given.size("model.d_model", USUAL), given.size("model.n_heads", USUAL)
    for word, value, usual in WANTED:
        if (told := given.get(word, usual)) != value:
            raise UserError(
                f"{given.source}: {word} = {told}: no config is built with it; allowed: {value}, or --model"
            )
    width = given.whole("model.mlp_hidden_size") or given.size("model.mlp_ratio", USUAL) * hidden
    words, rows = given.size("model.vocab_size", USUAL), given.whole(EMBEDDED) if EMBEDDED in given else USUAL[EMBEDDED]
    shared = 1 if given.get("model.multi_query_attention") else None
    return {
        "model_type": _family(given), "vocab_size": rows or words,
        "hidden_size": hidden, "intermediate_size": width // 2,  # that of both halves of the gate
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": given.whole("model.n_kv_heads") or shared or heads,
        "tie_word_embeddings": given.get("model.weight_tying", True) is not False,
        "attention_bias": given.get("model.include_bias", True) is not False,
        "rope_theta": float(given.get("model.rope_theta", 10_000)),
        **({"clip_qkv": clip} if (clip := given.get("model.clip_qkv")) else {}),
    }  # fmt: skip


def _family(given: ConfigReader) -> str:
    """The family whose norms a config asks for. Raises UserError if none has them."""
    kind = str(given.get("model.layer_norm_type", "default"))
    weighs = given.get("model.layer_norm_with_affine", True) is not False
    after, normed = (bool(given.get(word)) for word in OF_NORMS[2:])
    if kind == "rms" and weighs:
        families = {(False, False): "llama", (False, True): "qwen3", (True, True): "olmo2"}
    else:
        families = {(False, False): "stablelm" if weighs else "olmo"}
    family = families.get((after, normed))
    if family is None or (kind == "rms" and not weighs):
        told = ", ".join(f"{word} = {given.get(word)}" for word in OF_NORMS if given.get(word) is not None)
        raise UserError(f"{given.source}: {told}: no config is built with it; allowed: the norms of OLMo 1 and 2")
    return family


def _starts(words: Sequence[str]) -> bool:
    """Whether a command gives a config to a script train.py, with flags that only OLMo's has."""
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    return _gives_config(words) and not flags.isdisjoint(TELLING)


def _gives_config(words: Sequence[str]) -> bool:
    """Whether a script train.py has a config as its first word."""
    return any(PurePath(word).name == "train.py" and is_config(after) for word, after in pairwise(words))


def _of_command(text: str, name: str) -> tuple[dict[str, Any], int | None]:
    """The config that a command names, with its flags over it, and the nodes that its launcher starts."""
    words = command_of(text, name, _gives_config)
    command = split_command(words)
    flags = {} if command is None else dict(command.flags)
    return laid_over(load_beside(next(filter(is_config, words)), name), flags), nodes_of(command)


READER = Reader(
    name="olmo",
    description="OLMo: the YAML of scripts/train.py, and commands that give it one",
    read=read,
    starts=_starts,
    owns=owns,
    takes_files=True,
    devices=DeviceHabits(caps=True),
    words=WordTable(
        idle=(
            "run_name", "seed", "epoch", "dry_run", "scheduler.*", "data.*", "restore_dataloader", "fast_forward*",
            "evaluators*", "eval_*", "tokenizer.*", "save_*", "remote_save_folder", "canceled_check_interval",
            "force_save_unsharded", "no_pre_train_checkpoint", "load_*", "try_load_latest_save", "reset_*",
            "sharded_checkpointer", "new_style_checkpoints", "max_duration", "device_eval_batch_size", "max_grad_norm*",
            "wandb.*", "speed_monitor.*", "console_log_interval", "gen1_gc_interval", "time_limit", "hf_datasets*",
            "extra_steps*", "early_stopping*", "python_profiling", "torch_profiling", "stop_at", "stop_after",
            "optimizer.*", "ddp.find_unused_params", "ddp.grad_sync_mode", "single.*", "fsdp.use_orig_params",
            "fsdp.precision", "softmax_auxiliary_loss", "auxiliary_loss_multiplier", "fused_loss",
            "module_outputs_save_steps", "model.init_*", "model.block_type", "model.alibi_bias_max",
            "model.rope_full_precision", "model.flash_attention", "model.attention_dropout", "model.*_dropout",
            "model.layer_norm_eps", "model.attention_layer_norm_with_affine", "model.bias_for_layer_norm",
            "model.scale_*", "model.*_token_id", "model.emb_init_std", "model.precision", "model.embedding_layer_norm",
            "distributed_strategy",
        ),
        deciding={
            "activation_checkpointing": "norms, attention and activations are recomputed one by one: memory and time",
            "fsdp.wrapping_strategy": "how many layers are gathered at once: memory and overlap",
            "fsdp.sharding_strategy": "how many replicas of the shards there are: memory and communication",
            "model.block_group_size": "how many layers are gathered at once: memory and overlap",
            "optimizer.selective_updates": "a mask of every update: time",
            "optimizer.record_update_metrics": "norms of every update: time",
        },
    ),
)  # fmt: skip
