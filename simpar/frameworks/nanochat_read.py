"""nanochat back to a plan: ``-m scripts.base_train -- --depth=24 ...``; one number gives the whole model.

Sources: karpathy/nanochat 92d63d4, ``scripts/base_train.py``, ``nanochat/gpt.py`` and ``nanochat/optim.py``. Options
with underscores are those of its first months (until January 2026, 48abd7d): the model had no value embeddings and no
windows, and the batch had 524,288 tokens.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import command_of
from simpar.frameworks.reader import Reader
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.trainer_arguments import typed
from simpar.frameworks.words import WordTable

USUAL: Mapping[str, Any] = {
    "depth": 20, "aspect_ratio": 64, "head_dim": 128, "max_seq_len": 2048, "device_batch_size": 32,
    "window_pattern": "SSSL", "target_param_data_ratio": 12,
}  # fmt: skip
"""What decides, by its options."""
WORDS, OLD_WORDS = 2**15, 2**16
"""Vocabularies that ``scripts/tok_train.py`` makes unless it is told."""
REFERENCE_DEPTH, REFERENCE_TOKENS, EXPONENT = 12, 2**19, 0.383
"""The batch grows with the tokens of the run, from that of a model of 12 layers."""
SHORT, TILE = 4, 128
"""A short window is a quarter of the sequence, in whole tiles of FlashAttention."""
GATED = 12
"""Features that gates of value embeddings read."""
FLAG = re.compile(r"--([a-z][\w-]*)(?:=(.*))?", re.DOTALL)
SWITCHES = ("fp8",)
MODULE = re.compile(r"(?:.*/)?scripts[./]base_train(?:\.py)?")
IDLE = (
    "run", "num_iterations", "target_flops", "target_param_data_ratio", "*_lr", "weight_decay", "warm*",
    "final_lr_frac", "resume_from_step", "eval_*", "core_metric_*", "sample_every", "save_every", "model_tag",
    "grad_clip", "adam_beta*",
)  # fmt: skip
DECIDING = {
    "device_type": "what it trains on: time and memory",
    "fp8_recipe": "a scale for every row of fp8 products: time",
}


def read(text: str, name: str) -> Imported:
    """The plan of a command that starts the pretraining. Raises UserError."""
    words = command_of(text, name, _starts)
    at = next(at for at, word in enumerate(words) if MODULE.fullmatch(word))
    told = _options(words[at + 1 :])
    is_old = any("_" in option for option in told)
    given = ConfigReader({option.replace("-", "_"): value for option, value in told.items()}, name)
    seq_len, micro = given.size("max_seq_len", USUAL), given.size("device_batch_size", USUAL)
    config = _model(given, seq_len, is_old=is_old)
    tokens = _tokens(given, config["vocab_size"], is_old=is_old)
    if tokens % seq_len:
        raise UserError(f"{name}: total_batch_size = {tokens}: allowed: a multiple of max_seq_len = {seq_len}")
    values: dict[str, Any] = {
        "stack": "nanochat",
        "zero": 1,
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "micro_batch": micro,
        "recompute": "none",
        "precision": "fp8" if given.get("fp8") else "bf16",
        "parameter_dtype": "fp32",
        "attention_kernel": "sdpa" if is_old else None,
        "optimizer": "muon",
        "optimizer_kernels": "fused",
        "fused_kernels": "compiled",
        "training": {"seq_len": seq_len, "global_batch": tokens // seq_len},
    }
    return Imported(plan_said(values), given.words(), tuple(_notes(config, tokens, is_old=is_old)), config=config)


def _notes(config: Mapping[str, Any], tokens: int, *, is_old: bool) -> Iterator[str]:
    """What follows from the options, and what the version of nanochat is taken to be."""
    yield (
        f"nanochat's model of {config['num_hidden_layers']} layers has {config['hidden_size']} features and "
        f"{config['num_attention_heads']} heads. {config['vocab_size']} words are those of its tokenizer unless "
        f"scripts.tok_train was told another number. A step has {tokens} tokens."
    )
    if is_old:
        yield "Options with underscores: nanochat until January 2026, without value embeddings and windows."
    elif "sliding_window" in config:
        yield "Windows are those of FlashAttention 3, on Hopper devices; elsewhere they are masks and save no time."


def _options(words: Sequence[str]) -> dict[str, Any]:
    """The options behind the module, by their names; ``--`` ends torchrun's."""
    result: dict[str, Any] = {}
    waiting = ""
    for word in words:
        match = FLAG.fullmatch(word)
        if match and word != "--":
            is_switch = match[1] in SWITCHES
            waiting = "" if match[2] is not None or is_switch else match[1]
            result[match[1]] = (is_switch or None) if match[2] is None else typed(match[2])
        elif waiting:
            result[waiting], waiting = typed(word), ""
    return result


def _shape(given: ConfigReader, depth: int) -> tuple[int, int]:
    """(Features, heads) of a model: the features are rounded up to whole heads."""
    head = given.size("head_dim", USUAL)
    heads = -(-depth * given.size("aspect_ratio", USUAL) // head)
    return heads * head, heads


def _model(given: ConfigReader, seq_len: int, *, is_old: bool) -> dict[str, Any]:
    """The config of the model. Raises UserError."""
    depth = given.size("depth", USUAL)
    hidden, heads = _shape(given, depth)
    words = OLD_WORDS if is_old else WORDS
    result: dict[str, Any] = {
        "model_type": "nanochat", "vocab_size": words, "hidden_size": hidden, "intermediate_size": 4 * hidden,
        "num_hidden_layers": depth, "num_attention_heads": heads, "num_key_value_heads": heads,
        "max_position_embeddings": seq_len, "tie_word_embeddings": False,
    }  # fmt: skip
    if is_old:
        return result
    pattern = str(given.get("window_pattern", USUAL["window_pattern"])).upper()
    if not pattern or set(pattern) - {"S", "L"}:
        raise UserError(f"{given.source}: window_pattern = {pattern}: allowed: letters S and L, such as SSSL")
    letters = [pattern[at % len(pattern)] for at in range(depth - 1)] + ["L"]
    result |= {"value_embeddings": True, "value_gate_features": GATED}
    if "S" in letters:
        kinds = ["sliding_attention" if letter == "S" else "full_attention" for letter in letters]
        window = -(-seq_len // SHORT // TILE) * TILE
        result |= {"sliding_window": window, "use_sliding_window": True, "layer_types": kinds}
    return result


def _tokens(given: ConfigReader, words: int, *, is_old: bool) -> int:
    """Tokens of a step: as they are said, else those that nanochat finds for the tokens of the run."""
    told = given.get("total_batch_size")
    if told is not None and told != -1:
        return given.whole("total_batch_size") or 0
    if is_old:
        return REFERENCE_TOKENS
    ratio = _counted(given, given.size("depth", USUAL), words) / _counted(given, REFERENCE_DEPTH, words)
    result: int = 2 ** round(math.log2(REFERENCE_TOKENS * ratio**EXPONENT))
    return result


def _counted(given: ConfigReader, depth: int, words: int) -> int:
    """Parameters of layers and head, which the tokens of a run follow."""
    hidden, heads = _shape(given, depth)
    gates = sum(at % 2 == (depth - 1) % 2 for at in range(depth)) * GATED * heads
    return 12 * hidden**2 * depth + gates + words * hidden


def _starts(words: Sequence[str]) -> bool:
    """Whether a command starts the pretraining: as a module, or the script itself with options of its own."""
    at = next((at for at, word in enumerate(words) if MODULE.fullmatch(word)), None)
    if at is None:
        return False
    return PurePath(words[at]).suffix != ".py" or any(word.startswith("--depth") for word in words[at:])


READER = Reader(
    name="nanochat",
    description="nanochat: scripts.base_train, whose depth gives the whole model",
    read=read,
    starts=_starts,
    words=WordTable(idle=IDLE, deciding=DECIDING),
)
