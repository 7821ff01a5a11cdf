"""Choices of tensor parallelism."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from simpar.plan.choices.section import Section
from simpar.units import Count


class TensorParallel(Section):
    """Tensor parallelism: sequence parallelism and overlap. What is None is decided by the stack.

    ``tp_method`` "1d" is Megatron's; "2d" (SUMMA), "2.5d" (with ``tp_depth`` copies of the weights) and "3d" spread
    rows and columns of every matrix over a square, squares or a cube of ranks.
    """

    sequence_parallel: bool | None = None
    overlap: bool | None = None
    tp_method: Literal["1d", "2d", "2.5d", "3d"] = "1d"
    tp_depth: Count = Field(1, description="layers of a 2.5d grid, each with a copy of the weights")

    @property
    def copies(self) -> int:
        """Tensor-parallel ranks that hold the same weights."""
        return self.tp_depth if self.tp_method == "2.5d" else 1

    @model_validator(mode="after")
    def _depth_of_layers(self) -> TensorParallel:
        if self.tp_depth > 1 and self.tp_method != "2.5d":
            raise ValueError(f"tp_depth = {self.tp_depth}: allowed: 1, or tp_method 2.5d")
        return self
