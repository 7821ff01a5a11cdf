"""Choices of precision, of dtypes and of the optimizer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, WithJsonSchema, model_validator

from simpar.dataclass import dataclass
from simpar.plan.choices.choice import (
    BLOCKS,
    MEMORY,
    REPLICAS,
    Choice,
    Columns,
    Flag,
    Moves,
    OptionalAxis,
    has_value,
    in_section,
    make_effects,
    replace_with,
)
from simpar.plan.choices.data_parallel import SENT, STATES, gathers, shares, step_apart
from simpar.plan.choices.section import Section
from simpar.plan.choices.target import Refusals, fixed_reason
from simpar.plan.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS, known_optimizer
from simpar.precisions import PRECISIONS, Precision, known_precision
from simpar.stacks.stack import Stack
from simpar.units import Flags

PrecisionName = Annotated[
    str, AfterValidator(known_precision), WithJsonSchema({"type": "string", "enum": [*PRECISIONS]})
]
Optimizer = Annotated[str, AfterValidator(known_optimizer), WithJsonSchema({"type": "string", "enum": [*OPTIMIZERS]})]

MasterDtype = Literal["fp32", "fp16", "remainder"]
"""How master weights are kept."""
NARROW_MASTERS = ("fp16", "remainder")
"""Those of 16 bits."""
OWN_WIDTH = tuple(each.name for each in OPTIMIZERS.values() if each.has_own_width)
"""Optimizers whose states have a bit width of their own."""


class Numerics(Section):
    """Precision of compute, dtype of gradients, master weights and the optimizer.

    ``reduce_dtype`` and ``gather_dtype`` are what data parallelism sends: gradients on their way to a sum, and
    parameters on their way to where they are used (None: as the stack does). Below 16 bits values are quantised
    in blocks before they are sent [ZeRO++, Wang et al. 2023, arXiv 2306.10209]. ``moment_dtype`` is that of optimizer
    states (None: fp32). ``master_dtype`` is that of master weights (None: fp32): ``remainder`` keeps of each the low 16
    bits, beside the parameter in bf16, which is its high 16 [NVIDIA Transformer Engine, optimizers/fused_adam.py,
    store_param_remainders].
    """

    precision: PrecisionName = "bf16"
    grad_dtype: Literal["fp32", "bf16"] | None = None
    reduce_dtype: Literal["fp32", "bf16", "fp8", "int4"] | None = None
    gather_dtype: Literal["fp32", "bf16", "fp8", "int8"] | None = None
    master_weights: bool | None = None
    master_dtype: MasterDtype | None = None
    optimizer: Optimizer = DEFAULT_OPTIMIZER
    moment_dtype: Literal["fp32", "bf16", "fp16", "fp8"] | None = None

    @property
    def products(self) -> Precision:
        """What the precision means for products."""
        return PRECISIONS[self.precision]

    @model_validator(mode="after")
    def _states_have_a_dtype(self) -> Numerics:
        if self.moment_dtype is not None and OPTIMIZERS[self.optimizer].has_own_width:
            raise ValueError(
                f"moment_dtype = {self.moment_dtype}: {self.optimizer} has its own width of states; allowed: none"
            )
        return self


@dataclass(frozen=True, kw_only=True)
class DecidedNumerics:
    """Precision, dtypes and the optimizer; ``reduce_dtype`` and ``gather_dtype`` None: as the stack sends them."""

    precision: str = "bf16"
    grad_dtype: Literal["fp32", "bf16"] = "fp32"
    reduce_dtype: Literal["fp32", "bf16", "fp8", "int4"] | None = None
    gather_dtype: Literal["fp32", "bf16", "fp8", "int8"] | None = None
    master_weights: bool = True
    master_dtype: MasterDtype | None = None
    optimizer: str = DEFAULT_OPTIMIZER
    moment_dtype: Literal["fp32", "bf16", "fp16", "fp8"] | None = None

    @property
    def products(self) -> Precision:
        """What the precision means for products."""
        return PRECISIONS[self.precision]

    @property
    def has_narrow_masters(self) -> bool:
        """Whether a master weight is kept in 16 bits."""
        return self.master_dtype in NARROW_MASTERS


def by_stack(stack: Stack, *, precision: str, optimizer: str) -> dict[str, Any]:
    """What a stack decides of dtypes: products in fp32 have all else in fp32, too."""
    low, own_width = PRECISIONS[precision].is_mixed, OPTIMIZERS[optimizer].has_own_width
    return {
        "grad_dtype": stack.numerics.grad_dtype if low else "fp32",
        "master_weights": stack.numerics.master_weights and low,
        "moment_dtype": stack.numerics.moment_dtype if low and not own_width else None,
    }


def master_refusals(numerics: DecidedNumerics, *, on_host: bool) -> Refusals:
    """Narrow master weights are those of a fused Adam on the device, beside parameters of 16 bits."""
    if not numerics.has_narrow_masters:
        return
    what = f"plan.master_dtype = {numerics.master_dtype}"
    yield (
        not numerics.master_weights or not numerics.products.is_mixed,
        fixed_reason(f"{what}: there are no master weights; allowed: with master_weights true, and precision not fp32"),
    )
    yield (
        numerics.master_dtype == "remainder" and numerics.precision == "fp16",
        fixed_reason(f"{what}: the high 16 bits of a master weight are bf16, not fp16; allowed: fp32, fp16"),
    )
    yield (
        numerics.optimizer != DEFAULT_OPTIMIZER,
        lambda: (
            f"{what}: {numerics.optimizer} keeps them in fp32; allowed: with optimizer {DEFAULT_OPTIMIZER}, or fp32"
        ),
    )
    yield (on_host, lambda: f"{what}: an offloaded optimizer keeps them in fp32; allowed: fp32")


def _reduces(rows: Columns) -> Flags:
    """Rows with gradients to sum: of replicas, or of a table tied over both ends of a pipeline."""
    tied = rows.problem.graph.tied_embeddings
    return np.asarray(shares(rows) | (tied & (rows["pp"] > 1)))


CHOICES = in_section(
    "numerics",
    Choice(
        "precision",
        is_exported=True,
        is_column=True,
        flag=Flag(str, "Precision of matrix products (simpar list precisions)"),
        measured="bf16, fp16, fp32, fp8, fp8 blockwise, MXFP8, NVFP4 or MXFP4; nf4 or QLoRA: of frozen weights",
        axis=OptionalAxis(make_effects(MEMORY, BLOCKS, REPLICAS), label=None),
        moves=Moves(menu=lambda *_: PRECISIONS, replacements=replace_with("precision", "fp8", "bf16")),
    ),
    Choice(
        "grad_dtype",
        by_stack=True,
        is_exported=True,
        axis=OptionalAxis(STATES, label=None, is_decided=True, after="moment_dtype"),
        moves=Moves(replacements=replace_with("grad_dtype", None)),
    ),
    Choice("reduce_dtype", axis=OptionalAxis(SENT, _reduces, label="gradients sent as {}", after="grad_dtype")),
    Choice(
        "gather_dtype",
        axis=OptionalAxis(
            SENT, lambda rows: gathers(rows) | step_apart(rows), label="parameters sent as {}", after="servers"
        ),
    ),
    Choice(
        "master_weights",
        by_stack=True,
        is_exported=True,
        moves=Moves(replacements=replace_with("master_weights", None, False)),
    ),
    Choice("master_dtype", moves=Moves(replacements=replace_with("master_dtype", None))),
    Choice(
        "optimizer",
        is_exported=True,
        flag=Flag(str, "Optimizer (simpar list optimizers)"),
        axis=OptionalAxis(STATES, label="{}", after="precision"),
        moves=Moves(menu=lambda *_: OPTIMIZERS, replacements=replace_with("optimizer", DEFAULT_OPTIMIZER)),
    ),
    Choice(
        "moment_dtype",
        by_stack=True,
        axis=OptionalAxis(
            STATES, lambda rows: ~has_value(rows, "optimizer", *OWN_WIDTH), label="{} moments", after="optimizer"
        ),
    ),
)
