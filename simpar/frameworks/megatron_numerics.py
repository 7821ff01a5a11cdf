"""Precision, dtypes and the optimizer of Megatron-LM's arguments."""

from collections.abc import Iterator
from typing import Any, get_args

from simpar.errors import UserError
from simpar.frameworks.megatron_arguments import Arguments
from simpar.frameworks.megatron_execution import GATHERS
from simpar.plan.choices.execution import MatrixLayout

RECIPES = {
    "--fp8-format": {"delayed": "fp8", "tensorwise": "fp8", "mxfp8": "mxfp8", "blockwise": "fp8_blockwise"},
    "--fp4-format": {"nvfp4": "nvfp4"},
}
"""Precisions by the recipe of 8- and 4-bit floats (the first if no recipe is named)."""
MAIN_GRADIENTS = ("--megatron-fsdp-main-grads-dtype", "--main-grads-dtype")
"""Other arguments for the gradient dtype: bf16 means no fp32 reduction (``megatron/training/arguments.py``)."""
MOMENTS = ("--exp-avg-dtype", "--exp-avg-sq-dtype")
AWARE, MASTERS = "--use-precision-aware-optimizer", "--main-params-dtype"
OWN_MASTERS = ("--use-megatron-fsdp", "--use-torch-fsdp2", "--optimizer-cpu-offload", "--no-store-param-remainders")
"""Arguments under which master weights are in fp32, whatever the optimizer is aware of."""
MOMENT_DTYPES = ("fp32", "bf16", "fp16", "fp8")
"""Dtypes of moments, widest first; the first one is the default."""
OPTIMIZERS = {
    "adam": "adamw", "sgd": "sgd_momentum", "muon": "muon", "dist_muon": "muon", "adaptive_muon": "muon",
    "lion": "lion", "fusedadamw": "adamw",  # of Intel's fork
}  # fmt: skip
FRACTION = "--optimizer-offload-fraction"


def read_numerics(given: Arguments) -> dict[str, Any]:
    """Precision, dtypes and the optimizer. Raises UserError naming file, argument and value."""
    said = [given.text(flag) for flag in MAIN_GRADIENTS]
    low = sums_low(given) or "bf16" in said
    precision = "bf16" if given.has("--bf16") else "fp16" if given.has("--fp16") else "fp32"
    gradients = None if precision == "fp32" else "bf16" if low else "fp32"
    for flag, recipes in RECIPES.items():
        if given.has(flag):
            named = f"{flag.removesuffix('format')}recipe"
            recipe = given.text(named) or next(iter(recipes))
            if recipe not in recipes:
                raise UserError(f"{given.source}: {given.name(named)} = {recipe}: allowed: {', '.join(recipes)}")
            precision = recipes[recipe]
    optimizer, momentum = given.text("--optimizer") or "adam", given.text("--sgd-momentum")
    still = momentum is not None and _real(given, "--sgd-momentum", momentum) == 0
    names = {**OPTIMIZERS, "sgd": "sgd" if still else "sgd_momentum"}
    if optimizer not in names:
        raise UserError(f"{given.source}: --optimizer = {optimizer}: allowed: {', '.join(names)}")
    chosen = {"precision": precision, "grad_dtype": gradients, "optimizer": names[optimizer], **_moments(given)}
    chosen |= _masters(given) if names[optimizer] == "adamw" else {}
    layout = given.text("--muon-tp-mode")
    if names[optimizer] != "muon" or layout is None:
        return chosen
    if layout not in get_args(MatrixLayout):
        raise UserError(f"{given.source}: --muon-tp-mode = {layout}: allowed: {', '.join(get_args(MatrixLayout))}")
    return {**chosen, "matrix_layout": layout}


def sums_low(given: Arguments) -> bool:
    """Whether gradients are summed in 16 bits: beside fp16 unless 32 are asked for (validate_args of its arguments)."""
    in_fp32, asked = given.has("--accumulate-allreduce-grads-in-fp32"), given.has("--grad-reduce-in-bf16")
    return asked or (given.has("--fp16") and not given.has("--bf16") and not in_fp32)


def _moments(given: Arguments) -> dict[str, Any]:
    """The dtype of the optimizer's moments, the wider of two."""
    given.has(AWARE)  # a precondition of the flags below
    dtypes = [given.text(flag) or MOMENT_DTYPES[0] for flag in MOMENTS]
    for flag, dtype in zip(MOMENTS, dtypes, strict=True):
        if dtype not in MOMENT_DTYPES:
            raise UserError(f"{given.source}: {given.name(flag)} = {dtype}: allowed: {', '.join(MOMENT_DTYPES)}")
    widest = min(dtypes, key=MOMENT_DTYPES.index)
    return {"moment_dtype": widest if widest != MOMENT_DTYPES[0] else None}


def _masters(given: Arguments) -> dict[str, Any]:
    """Master weights that Transformer Engine's fused Adam keeps: in fp16, or the 16 bits that parameters in bf16 lack.

    Megatron-Core keeps them itself, in fp32, but in fp16 or where no recipe of 8 bits other than delayed scaling is
    set, its argument's default (``OptimizerConfig.use_precision_aware_optimizer_no_fp8_or_ds_fp8``); a remainder needs
    fp32 there and parameters in bf16 (Transformer Engine, ``FusedAdam.store_param_remainders``).
    """
    dtype, recipe = given.text(MASTERS) or "fp32", given.text("--fp8-recipe") or "delayed"
    if dtype not in ("fp32", "fp16"):
        raise UserError(f"{given.source}: {given.name(MASTERS)} = {dtype}: allowed: fp32, fp16")
    if not given.has(AWARE) or any(flag in given.values for flag in OWN_MASTERS):
        return {}
    if dtype == "fp16":
        return {"master_dtype": dtype}
    gathers = any(flag in given.values for flag in GATHERS.values())
    return {"master_dtype": "remainder"} if given.has("--bf16") and recipe == "delayed" and not gathers else {}


def read_offload(given: Arguments) -> dict[str, Any]:
    """Optimizer states on the host: all of them, or the given share. Raises UserError."""
    if not given.has("--optimizer-cpu-offload"):
        return {}
    text = given.text(FRACTION)
    share = 1.0 if text is None else _real(given, FRACTION, text)
    if not 0 <= share <= 1:
        raise UserError(f"{given.source}: {given.name(FRACTION)} = {text}: allowed: from 0 to 1")
    return {"offload_optimizer": "cpu", "offload_ratio": share} if share else {}


def _real(given: Arguments, flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{given.source}: {given.name(flag)} = {text}: allowed: a number") from None


def numerics_notes(given: Arguments) -> Iterator[str]:
    """What of the dtypes of moments a plan has no place for."""
    if len({given.text(flag) or MOMENT_DTYPES[0] for flag in MOMENTS}) > 1:
        yield f"{' and '.join(MOMENTS)} differ: the plan has one dtype for both, the wider."
