"""What a software stack keeps in memory besides the mathematics of the model, and how its allocator behaves."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from simpar.units import Bytes, Fraction

GAPS_OF_EXPANDABLE = 0.02  # torchtitan's runs, which expand segments, show 2 % and less


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AllocatorHabits(_Part):
    """What the process holds beyond what it allocated for tensors.

    ``fragmentation``: blocks that cannot be reused, per byte that moves during a step; ``churn``: more of it where
    passes of different microbatches alternate; ``expandable``: its recipes turn on segments that expand where
    memory is tight, which leaves next to no gaps; ``held_outputs``: share of the partial sums of row-parallel
    products that a communication stream still holds after they are freed, because the host runs ahead.
    ``context_bytes`` of the device context and its kernels, ``communicator_bytes`` per communicator,
    ``workspace_bytes`` of the GEMM libraries (allocated through the same allocator).
    """

    fragmentation: Fraction = 0.05
    churn: Fraction = 0.05
    expandable: bool = False
    held_outputs: Fraction = 0.0
    context_bytes: Bytes = 0.0
    communicator_bytes: Bytes = 0.0
    workspace_bytes: Bytes = 0.0

    def gaps(self, alternates: bool | NDArray[np.bool_]) -> NDArray[np.float64]:
        """Bytes that cannot be reused, per byte that moves; ``alternates``: passes of several microbatches do."""
        return self.fragmentation + self.churn * np.asarray(alternates, dtype=np.float64)

    def least_gaps(self, alternates: bool | NDArray[np.bool_]) -> NDArray[np.float64]:
        """The same where memory is tight."""
        return np.minimum(self.gaps(alternates), GAPS_OF_EXPANDABLE if self.expandable else np.inf)


class MemoryHabits(_Part):
    """What the stack keeps.

    Of the loss, per logit: ``logit_bytes`` at its peak, ``logit_saved_bytes`` from forward to backward. Of a
    layer: ``pins_packed_qkv`` (views keep the packed projection alive), ``activation_output`` (of the gate, not
    fused with its product), ``eager_copies`` (that, and fp32 copies in norms), ``extra_saved`` bytes per token and
    hidden feature. For the whole run:
    ``gather_buffers`` of one full residual stream each under sequence parallelism, ``bucket_bytes`` per parameter
    for gradient buckets apart from the gradients, ``gather_copies`` (flat copies made to gather sharded parameters
    after the update stay until the next pass), and ``transformer_engine`` (empty weight gradients of its products,
    one of each shape, stay for the run, see :func:`simpar.cost.memory.static.placeholder_bytes`, and 8-bit ones keep
    what they cast inputs to). ``selective`` is what selective recompute means: Megatron drops core attention;
    torchtitan keeps attention and every other matmul and recomputes the rest.
    """

    logit_bytes: float = Field(6.0, ge=0, allow_inf_nan=False)
    logit_saved_bytes: float = Field(2.0, ge=0, allow_inf_nan=False)
    pins_packed_qkv: bool = False
    activation_output: bool = False
    eager_copies: bool = False
    extra_saved: float = Field(0.0, ge=0, allow_inf_nan=False)
    selective: Literal["attention", "operators"] = "attention"
    gather_buffers: int = Field(0, ge=0)
    bucket_bytes: float = Field(0.0, ge=0, allow_inf_nan=False)
    gather_copies: bool = False
    transformer_engine: bool = False
    allocator: AllocatorHabits = AllocatorHabits()
