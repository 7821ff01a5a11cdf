"""Meta Lingua back to a plan: the YAML of ``apps.main.train``, and commands of torchrun and stool that name one.

Source: facebookresearch/lingua 437d680 (``apps/main/train.py`` and ``transformer.py``, ``lingua/transformer.py``,
``distributed.py``, ``data.py`` and ``tokenizer.py``); it trains by torch's fully_shard, whose layers keep the gathered
parameters until their backward pass.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import (
    assigned,
    choice,
    command_of,
    is_config,
    laid_over,
    load_beside,
    mapping,
    reader_of,
    real,
)
from simpar.frameworks.reader import Reader
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.words import WordTable

SHARDING = {"full_shard": 2, "no_shard": 0}
PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
USUAL = {"model.dim": 512, "model.n_layers": 8, "model.multiple_of": 256, "data.batch_size": 2, "data.seq_len": 2048}
OF_MODEL = (
    "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn_dim_multiplier", "multiple_of", "norm_eps",
    "rope_theta", "max_seqlen", "init_base_std", "init_std_factor", "seed", "vocab_size", "weight_tying",
    "sliding_window",
)  # fmt: skip
"""Fields of the model of apps/main; those of Mamba, RNNs and further heads have others."""
WORDS = {"bytes": 258, "tiktoken": 128_256, "sp": 32_000}
"""Words of a tokenizer by its kind: bytes and two marks; Llama 3's 128,000 and 256 marks, Llama 2's by their files."""
TOKENIZERS = {"tiktoken": "128k|llama-?3", "sp": "llama-?2|llama"}
OF_STOOL = (
    "config", "script", "nodes", "ngpu", "ncpu", "mem", "anaconda", "constraint", "exclude", "time", "account", "qos",
    "partition", "stdout", "launcher", "copy_code", "dirs_exists_ok", "override",
)  # fmt: skip
"""Arguments of the launcher, not of the training."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of Lingua, or in a command with one. Raises UserError naming file, option and value."""
    data = mapping(text, name) if is_config(name) else _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no config of Lingua: it has sections distributed, model and data")
    given = reader_of(data, name)
    if strange := next((key for key in given if key.startswith("model.") and key[6:] not in OF_MODEL), None):
        raise UserError(f"{name}: {strange}: a model of another app than main, which is not read")
    micro, steps = given.size("data.batch_size", USUAL), given.whole("grad_acc_steps") or 1
    if given.values_.get("distributed.dp_shard", 1) == 1:
        given.get("distributed.dp_shard")  # decides where it is another number
    selective = given.get("distributed.selective_activation_checkpointing")
    values: dict[str, Any] = {
        "stack": "torchtitan",
        "tp": given.whole("distributed.tp_size") or 1,
        "zero": choice(given, "distributed.fsdp_type", SHARDING, 0),
        "micro_batch": micro,
        "precision": choice(given, "distributed.model_dtype", PRECISIONS, "bf16"),
        "recompute": "selective" if selective else "none",
        "optimizer": "adamw",
        "fused_kernels": "compiled" if given.get("distributed.compile") else "none",
        "attention_kernel": "sdpa",
        "training": {"seq_len": given.size("data.seq_len", USUAL)},
    }
    config, note = _model(given)
    return Imported(plan_said(values), given.words(), (note,), per_replica=micro * steps, config=config)


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of Lingua."""
    distributed = data.get("distributed")
    return isinstance(distributed, Mapping) and "fsdp_type" in distributed and isinstance(data.get("model"), Mapping)


def _model(given: ConfigReader) -> tuple[dict[str, Any], str]:
    """The config of a decoder like Llama's, and a note. Raises UserError."""
    dim, heads, head = given.size("model.dim", USUAL), given.whole("model.n_heads"), given.whole("model.head_dim")
    heads = heads or (dim // head if head else None)
    if not heads:
        raise UserError(f"{given.source}: model.n_heads: missing; allowed: n_heads or head_dim")
    width, multiple = int(2 * 4 * dim / 3), given.size("model.multiple_of", USUAL)
    factor = real(given, "model.ffn_dim_multiplier")
    width = int(factor * width) if factor is not None else width
    words, note = _words(given)
    window = given.whole("model.sliding_window")
    return {
        "model_type": "mistral" if window else "llama", "vocab_size": words, "hidden_size": dim,
        "intermediate_size": multiple * -(-width // multiple), "num_hidden_layers": given.size("model.n_layers", USUAL),
        "num_attention_heads": heads, "num_key_value_heads": given.whole("model.n_kv_heads") or heads,
        "head_dim": head or dim // heads, "tie_word_embeddings": bool(given.get("model.weight_tying")),
        **({"sliding_window": window} if window else {}),
    }, note  # fmt: skip


def _words(given: ConfigReader) -> tuple[int, str]:
    """The size of the vocabulary, and a note. Raises UserError where nothing tells it."""
    if (told := given.values_.get("model.vocab_size", -1)) != -1:
        return given.whole("model.vocab_size") or 0, f"The model is built of the config, with {told} words."
    kind, path = str(given.get("data.tokenizer.name", "bytes")), str(given.get("data.tokenizer.path") or "")
    is_known = kind == "bytes" or re.search(TOKENIZERS.get(kind, "$^"), path, re.IGNORECASE)
    if not is_known:
        raise UserError(
            f"{given.source}: the words of data.tokenizer {kind} {path} are not known; allowed: model.vocab_size = N"
        )
    words = WORDS[kind]
    return words, f"The model is built of the config; the tokenizer {path or kind} is taken to have {words} words."


def _starts(words: Sequence[str]) -> bool:
    """Whether a command starts apps.main.train, or stool with it (which it does unless it is told another script)."""
    script = next((word.removeprefix("script=") for word in words if word.startswith("script=")), "apps.main.train")
    is_stool = any(word == "lingua.stool" or word.endswith("lingua/stool.py") for word in words)
    named = any(word.startswith("config=") for word in words)
    return named and ("apps.main.train" in words or (is_stool and script == "apps.main.train"))


def _of_command(text: str, name: str) -> dict[str, Any]:
    """The config that a command names, with its ``key=value`` words over it."""
    words = command_of(text, name, _starts)
    told = assigned(["", *words])
    over = {key: value for key, value in told.items() if key not in OF_STOOL}
    return laid_over(load_beside(str(told["config"]), name), over)


READER = Reader(
    name="lingua",
    description="Meta Lingua: the YAML of apps.main.train, and commands of torchrun and stool that name one",
    read=read,
    starts=_starts,
    owns=owns,
    words=WordTable(
        idle=(
            "name",
            "dump_dir",
            "steps",
            "seed",
            "gc_collect_freq",
            "probe_freq",
            "optim.*",
            "data.*",
            "profiling.*",
            "checkpoint.*",
            "logging.*",
            "eval.*",
            "async_eval_gpus",
            "env.*",
            "model.norm_eps",
            "model.rope_theta",
            "model.init_*",
            "model.seed",
            "model.max_seqlen",
            "distributed.matmul_allow_tf32",
            "setup.*",
            "slurm.*",
            "distributed.allow_bf16*",
            "distributed.detect_anomaly",
            "distributed.compile_cache*",
            "distributed.spawn_method",
            "distributed.dp_replicate",
            "distributed.float8_filter",
        ),
        deciding={
            "distributed.dp_shard": "how many ranks share the states: memory and communication",
            "distributed.float8_recipe": "products in 8 bits: time",
        },
    ),
)
