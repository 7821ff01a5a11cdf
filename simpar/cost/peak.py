"""The peak of a pipeline rank in closed form, for one layout or for arrays of them: what search bounds with.

    allocated = static + in flight x saved + largest of {forward, backward, loss} workspaces + sharding transients

The exact curve comes from the Program; this is a little above it, because it lets the largest workspace meet the
most activations, and needs neither a schedule's table nor a single op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simpar.cost.activations import BlockActivations, RankDims, activation_bytes, block_activations
from simpar.cost.allocator import Reservation, reserve
from simpar.cost.in_flight import in_flight
from simpar.cost.memory import num_shards, stage_blocks, stage_static_memory, static_memory_of
from simpar.cost.stack import Stack
from simpar.models.graph import Block, ModelGraph, is_row_parallel
from simpar.models.training import Training
from simpar.plan.check import schedule_of
from simpar.plan.plan import CUSTOM, Plan
from simpar.plan.sharding import VOCAB_MULTIPLE, sequence_dims, tensor_dims
from simpar.units import DTYPE_BYTES

Array = Any
_ALONE = ("naive", "1f1b", "interleaved")
"""Schedules whose last stage runs a backward right after its forward, so that one microbatch's logits live."""


@dataclass(frozen=True)
class PeakMemory:
    """Highest total of one rank; scalars or arrays.

    ``static`` stays all step, ``activations`` are what forwards in flight have saved, ``transient`` the largest
    workspace beside them, ``held`` freed outputs that a communication stream still uses.
    """

    static_bytes: Array
    activations_bytes: Array
    transient_bytes: Array
    held_bytes: Array
    alternates: Array

    @property
    def moving_bytes(self) -> Array:
        """What comes and goes during the step."""
        return self.activations_bytes + self.transient_bytes

    @property
    def allocated_bytes(self) -> Array:
        """Highest number of bytes in tensors."""
        return self.static_bytes + self.moving_bytes

    def reservation(self, stack: Stack, limit_bytes: Array = np.inf) -> Reservation:
        """What the allocator needs and reserves for this peak, where the device leaves it ``limit_bytes``."""
        return reserve(
            self.static_bytes,
            self.moving_bytes,
            stack.memory.allocator,
            alternates=self.alternates,
            held_bytes=self.held_bytes,
            limit_bytes=limit_bytes,
        )


@dataclass(frozen=True)
class Layouts:
    """Columns of layouts, one value each (ints, bools or arrays that broadcast), otherwise as one plan says."""

    tp: Array
    dp: Array
    pp: Array = 1
    cp: Array = 1
    vpp: Array = 1
    micro_batch: Array = 1
    zero: Array = 0
    hsdp: Array = 1
    sequence_parallel: Array = False

    @property
    def shards(self) -> Array:
        """Ranks that share one copy of the sharded states."""
        return np.where(np.asarray(self.zero) > 0, self.dp * self.cp // self.hsdp, 1)


@dataclass(frozen=True)
class _Stage:
    """One rank's share: how often it holds each kind of layer, whether it has the ends, and what is in flight."""

    layers: tuple[tuple[Block, str, Array], ...]
    embedding: Array
    head: Array
    chunks: Array
    in_flight: Array
    head_in_flight: Array


@dataclass(frozen=True)
class _Scheme:
    """Data parallelism in numbers: width of gathered parameters (0: none), of gradients before they are reduced
    or accumulated, and of the buffer being reduced; ``units`` whether each block is its own."""

    gathered: Array
    gradient: Array
    reduced: Array
    units: Array


def peak_memory(graph: ModelGraph, plan: Plan, training: Training, stack: Stack, stage: int) -> PeakMemory:
    """Peak of pipeline rank ``stage`` under a resolved and checked plan."""
    dims = RankDims(tensor_dims(graph, plan, training), sequence_dims(graph, plan, training))
    static = stage_static_memory(graph, plan, training, stack, stage)
    shape = _stage_of(graph, plan, training, stage)
    scheme = _scheme(plan, stack, plan.data_parallel.zero, num_shards(plan))
    several = plan.num_microbatches(training.global_batch) > 1
    moving = _Moving(graph, shape, dims, plan, stack)
    return moving.peak(
        static.resident_bytes, scheme, held=_held(plan.mesh.pp, shape, stack), alternates=several
    )


def peak_memory_of(
    graph: ModelGraph, layouts: Layouts, plan: Plan, training: Training, stack: Stack, *, last: bool = False
) -> PeakMemory:
    """Peaks of the first (or ``last``) pipeline rank of many layouts; ``plan`` gives everything but the columns.

    Layers are spread evenly; of stages between the ends none is fuller than the first under a schedule whose
    first rank has the most in flight.
    """
    dims = _dims_of(graph, layouts, training)
    num_microbatches = training.global_batch // (layouts.dp * layouts.micro_batch)
    shape = _shape_of(graph, layouts, plan, num_microbatches, last=last)
    embedding, head = (block.parameters(dims.tensor) for block in (graph.embedding, graph.head))
    tied = (
        np.where(np.asarray(layouts.pp) == 1, dims.tensor["vocab"] * dims.tensor["hidden"], 0)
        * graph.tied_embeddings
    )
    layers = sum(block.parameters(dims.tensor) * count for block, _, count in shape.layers)
    parameters = layers + embedding * shape.embedding + head * shape.head - tied
    residual = (
        dims.tensor["batch"] * dims.tensor["seq"] * dims.tensor["hidden"] * activation_bytes(plan.numerics)
    )
    static = static_memory_of(parameters, layouts, plan, stack, residual_bytes=residual)
    scheme = _scheme(plan, stack, layouts.zero, layouts.shards)
    moving = _Moving(graph, shape, dims, plan, stack)
    held = _held(layouts.pp, shape, stack)
    return moving.peak(static, scheme, held=held, alternates=np.asarray(num_microbatches) > 1)
