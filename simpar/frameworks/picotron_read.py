"""Picotron back to a plan: the JSON of its ``train.py``, and commands that give it one.

Source: huggingface/picotron 59714b1 (``train.py``, ``template/base_config.json``, ``picotron/``): Llama's layers, with
parameters and moments in bf16 and gradients that are summed and reduced in fp32 buckets.
"""

from collections.abc import Mapping
from typing import Any

from simpar.architectures.catalogue import config_of
from simpar.errors import UserError
from simpar.frameworks.match import find_released
from simpar.frameworks.overrides import command_of, is_config, load_beside, mapping, reader_of
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.trainer_read import low_states
from simpar.frameworks.words import ReadWords, WordTable

AXES = {"tp": "tp_size", "cp": "cp_size", "pp": "pp_size", "dp": "dp_size"}
ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
SIZES = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
"""Sizes that a config states beside the model that it names (``create_config.py``)."""
KEPT = ("vocab_size", "hidden_size", "intermediate_size")
"""Sizes that are those of the named model."""
FUSED = "norm+rope"
"""What runs as one kernel each beside FlashAttention (``picotron/model.py``)."""
BUCKET = "25 MiB"
CONFIG = ("--config",)


def read(text: str, name: str) -> Imported:
    """The plan in a config of Picotron, or in a command with one. Raises UserError naming file, option and value."""
    data = mapping(text, name) if is_config(name) else _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no config of Picotron: it has distributed with tp_size and cp_size, and training")
    given = reader_of(data, name)
    if given.get("distributed.use_cpu"):
        raise UserError(f"{name}: distributed.use_cpu = true: allowed: false")
    axes = {axis: given.whole(f"distributed.{key}") or 1 for axis, key in AXES.items()}
    micro, steps = (given.whole(f"training.{key}") or 1 for key in ("micro_batch_size", "gradient_accumulation_steps"))
    length = given.whole("training.seq_length")
    if length is None:
        raise UserError(f"{name}: training.seq_length is missing; allowed: tokens of a sequence")
    config, note = _model(given)
    values = {
        "stack": "nanotron",
        **axes,
        **_parallel(given, axes),
        "zero": 0,
        "micro_batch": micro,
        "recompute": "none",
        "training": {"seq_len": length, "global_batch": micro * steps * axes["dp"]},
        **_numerics(given, reduces=axes["dp"] * axes["cp"] > 1),
    }
    words, asks = given.words(), {} if config else {"model": note}
    left = {f"distributed.{AXES[axis]}": axes[axis] for axis in ("tp", "cp") if axes[axis] > 1}
    used = tuple(word for word in words.used if word not in left)
    return Imported(
        plan_said(values), ReadWords(used, {**words.unread, **left}), (note, *given.misspelt(WORDS)), asks=asks,
        config=config,
    )  # fmt: skip


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of Picotron."""
    split = data.get("distributed")
    return isinstance(split, Mapping) and {"tp_size", "cp_size"} <= set(split) and "training" in data


def _parallel(given: ConfigReader, axes: Mapping[str, int]) -> dict[str, Any]:
    """The schedule, tensor parallelism without sharded sequences, and rings of contiguous parts. Raises UserError."""
    engine = str(given.get("distributed.pp_engine") or "1f1b")
    if axes["pp"] > 1 and engine not in ENGINES:
        raise UserError(f"{given.source}: distributed.pp_engine = {engine}: allowed: {', '.join(ENGINES)}")
    return {
        **({"schedule": ENGINES[engine]} if axes["pp"] > 1 else {}),
        **({"sequence_parallel": False} if axes["tp"] > 1 else {}),
        **({"cp_method": "ring", "cp_balance": "contiguous"} if axes["cp"] > 1 else {}),
    }


def _numerics(given: ConfigReader, *, reduces: bool) -> dict[str, Any]:
    """Dtypes and kernels; a ring attends by plain products. Gradients have buckets of their own where they are sent."""
    flash = str(given.get("environment.FLASH_ATTEN", "1")) == "1"
    kernel = "eager" if (given.whole("distributed.cp_size") or 1) > 1 else "flash2" if flash else "sdpa"
    return {
        "precision": "bf16",
        "optimizer": "adamw",
        "optimizer_kernels": "fused" if given.get("model.use_fused_adam") else "foreach",
        **low_states("adamw"),
        **({"grad_dtype": "fp32", "bucket_bytes": BUCKET, "gradient_accumulation_fusion": False} if reduces else {}),
        "attention_kernel": kernel,
        "fused_kernels": FUSED if flash else "none",
    }


def _model(given: ConfigReader) -> tuple[dict[str, Any] | None, str]:
    """The config of Llama's layers with the sizes of the named model and those of the file, and a note."""
    named = str(given.get("model.name") or "")
    released = find_released(named, given.source) if named else None
    if released is None:
        return None, f"{named or 'The model'} is no shipped model: give --model."
    own = config_of(released)
    sizes = {key: given.whole(f"model.{key}") or own.get(key) for key in SIZES}
    result = {"model_type": "llama", **{key: own.get(key) for key in KEPT}, **sizes, "tie_word_embeddings": False}
    result["num_key_value_heads"] = result["num_key_value_heads"] or result["num_attention_heads"]
    if None in result.values():
        return None, f"{named} has no sizes that Llama's layers have: give --model."
    return result, f"The model is built of the config and of the sizes of {released} (model_type llama)."


def _of_command(text: str, name: str) -> dict[str, Any]:
    """The config that a command names."""
    words = command_of(text, name, lambda words: value_of(words, CONFIG) is not None)
    return load_beside(str(value_of(words, CONFIG)), name)


WORDS = WordTable(
    idle=(
        "distributed.backend", "model.dtype", "model.use_flash_attention", "training.seed", "training.learning_rate",
        "training.total_train_steps", "training.num_samples", "training.max_tokens", "dataset.*", "checkpoint.*",
        "logging.*", "environment.*",
    ),
    deciding={
        "distributed.tp_size": "all logits are gathered on every rank: memory, and time of the loss",
        "distributed.cp_size": "a ring by plain products that makes its scores again in the backward: memory and time",
    },
)  # fmt: skip

READER = Reader(
    name="picotron",
    description="Picotron: the JSON of its train.py, and commands that give it one",
    read=read,
    config=lambda words: value_of(words, CONFIG),
    owns=owns,
    takes_files=True,
    words=WORDS,
)
