"""Choices of precision, of dtypes and of the optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, WithJsonSchema, model_validator

from simpar.plan.choices.section import Section
from simpar.plan.optimizers import OPTIMIZERS, USUAL, known_optimizer
from simpar.precisions import PRECISIONS, Precision, known_precision

PrecisionName = Annotated[
    str, AfterValidator(known_precision), WithJsonSchema({"type": "string", "enum": [*PRECISIONS]})
]
Optimizer = Annotated[
    str, AfterValidator(known_optimizer), WithJsonSchema({"type": "string", "enum": [*OPTIMIZERS]})
]


class Numerics(Section):
    """Precision of compute, dtype of gradients, master weights and the optimizer.

    ``reduce_dtype`` and ``gather_dtype`` are what data parallelism sends: gradients on their way to a sum, and
    parameters on their way to where they are used (None: as the stack does). Below 16 bits values are quantised
    in blocks before they are sent [ZeRO++, Wang et al. 2023, arXiv 2306.10209]. ``moment_dtype`` is that of optimizer
    states (None: fp32).
    """

    precision: PrecisionName = "bf16"
    grad_dtype: Literal["fp32", "bf16"] | None = None
    reduce_dtype: Literal["fp32", "bf16", "fp8", "int4"] | None = None
    gather_dtype: Literal["fp32", "bf16", "fp8", "int8"] | None = None
    master_weights: bool | None = None
    optimizer: Optimizer = USUAL
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
