"""nanotron's YAML back to a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks.match import is_telling, model_note, models_with
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.recipes import ConfigReader, flat
from simpar.frameworks.target import Imported, plan_said
from simpar.plan.plan import Plan
from simpar.precisions import LONG_NAMES

CONFIG_FILE = ("--config-file",)
ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
DTYPES = LONG_NAMES
SIZES = {
    "hidden_size": "hidden", "intermediate_size": "ffn", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "vocab_size": "vocab", "moe_config.num_experts": "num_experts",
    "moe_config.moe_intermediate_size": "expert_ffn",
}  # fmt: skip
MODEL = "model.model_config."
MIXTURE = f"{MODEL}moe_config."
EXPERTS = ("moe_config.num_local_experts", "num_local_experts", "moe_num_experts", "num_experts")
"""Other names of the number of experts (``examples/moe``; configs converted from the hub)."""
ASYNC = "tp_linear_async_communication"


def read(text: str, name: str) -> Imported:
    """The plan in a config of ``run_train.py``. Raises UserError naming file, option and value."""
    data = files.read_yaml(text, name)
    if not isinstance(data, dict) or not isinstance(data.get("parallelism"), dict):
        raise UserError(f"{name}: no section parallelism, as nanotron's configs have")
    given = ConfigReader(flat(data), name)
    dp = given.whole("parallelism.dp") or 1
    values = {"stack": "nanotron", "dp": dp, **_layout(given), **_numerics(given)}
    micro = given.whole("tokens.micro_batch_size") or 1
    seq_len, steps = (given.whole("tokens.sequence_length"), given.whole("tokens.batch_accumulation_per_replica") or 1)
    if seq_len:
        values |= {"micro_batch": micro, "training": {"seq_len": seq_len, "global_batch": micro * steps * dp}}
    result = {ours: given.whole(MODEL + theirs) for theirs, ours in SIZES.items()}
    if result["num_experts"] is None:
        result["num_experts"] = next(filter(None, (given.whole(MODEL + key) for key in EXPERTS)), None)
        if result["num_experts"] == 1:
            result["num_experts"] = None
        elif result["num_experts"] is not None and result["expert_ffn"] is None:
            result["expert_ffn"], result["ffn"] = result["ffn"], None  # every layer has experts of that size
        elif any(key.startswith(MIXTURE) and given.values_[key] is not None for key in given):
            raise UserError(f"{name}: {MIXTURE}num_experts is missing: {MIXTURE[:-1]} says a mixture")
    told = {ours: size for ours, size in result.items() if size is not None}
    sizes = dict(told)
    sizes.setdefault("kv_heads", sizes.get("heads", 0))
    if "num_experts" not in sizes:
        sizes |= {"num_experts": 0, "expert_ffn": 0}
    models = models_with(sizes)
    values |= {"model": models[0] if models else None}
    plan = plan_said(values)
    note = model_note(models, sizes)
    notes = (*filter(None, (note, _serial(given, plan))), *given.misspelt())
    return Imported(plan, given.words(), notes, sizes=sizes if is_telling(sizes) else told, asks={"model": note})


def _layout(given: ConfigReader) -> dict[str, Any]:
    prefix = "parallelism."
    axes = {"tp": "tp", "pp": "pp", "cp": "context_parallel_size", "ep": "expert_parallel_size"}
    values: dict[str, Any] = {axis: given.whole(prefix + key) or 1 for axis, key in axes.items()}
    engine = _of(given, f"{prefix}pp_engine", ENGINES, "afab")
    mode = str(given.get(f"{prefix}tp_mode") or "ALL_REDUCE").upper()
    if mode not in ("ALL_REDUCE", "REDUCE_SCATTER"):
        raise UserError(f"{given.source}: {prefix}tp_mode = {mode}: allowed: ALL_REDUCE, REDUCE_SCATTER")
    if values["tp"] > 1:
        values["sequence_parallel"] = mode == "REDUCE_SCATTER"
    if values["pp"] > 1:
        values["schedule"] = engine
    bucket = given.whole("model.ddp_bucket_cap_mb")
    return values | {
        "zero": given.whole("optimizer.zero_stage", 0) or 0,
        "recompute": "full" if given.get(f"{prefix}recompute_layer") else "none",
        "bucket_bytes": f"{bucket} MiB" if bucket else None,
    }


def _serial(given: ConfigReader, plan: Plan) -> str:
    """A note if tensor-parallel ranks wait for each other; "" if they do not. Raises UserError."""
    key, tensor = f"parallelism.{ASYNC}", plan.tensor_parallel.sequence_parallel
    beside = given.get(key)
    if beside not in (None, True, False):
        raise UserError(f"{given.source}: {key} = {beside!r}: allowed: true, false")
    if beside and not tensor and plan.mesh.tp > 1:  # nanotron raises ValueError
        raise UserError(f"{given.source}: {key} = true: allowed: false, or parallelism.tp_mode = REDUCE_SCATTER")
    if beside or not tensor:
        return ""
    return f"{key} is off, for which a plan has no word: stack nanotron is fitted to runs that have it on."


def _numerics(given: ConfigReader) -> dict[str, Any]:
    precision = _of(given, "model.dtype", DTYPES, "bfloat16")
    optimizer = _of(given, "optimizer.optimizer_factory.name", {"adamW": "adamw", "sgd": "sgd"}, "adamW")
    whole = given.get("optimizer.accumulate_grad_in_fp32", True)
    gradients = None if precision == "fp32" else "fp32" if whole else "bf16"
    fused = given.get("optimizer.optimizer_factory.torch_adam_is_fused", True)
    kernels = "foreach" if optimizer == "adamw" and not fused else None  # fused is what the stack does
    return {"precision": precision, "optimizer": optimizer, "grad_dtype": gradients, "optimizer_kernels": kernels}


def _of(given: ConfigReader, key: str, known: dict[str, str], usual: str) -> str:
    value = given.get(key)
    value = usual if value is None else value
    if value not in known:
        raise UserError(f"{given.source}: {key} = {value!r}: allowed: {', '.join(known)}")
    return known[value]


def _starts(words: Sequence[str]) -> bool:
    return any("run_train" in word for word in words) and value_of(words, CONFIG_FILE) is not None


READER = Reader(
    name="nanotron",
    description="nanotron: the YAML of run_train.py",
    read=read,
    starts=_starts,
    config=lambda words: value_of(words, CONFIG_FILE),
    owns=lambda data: isinstance(data.get("parallelism"), Mapping),
    written_as="nanotron",
)
