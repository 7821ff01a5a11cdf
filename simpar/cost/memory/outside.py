"""What a process holds beside its tensors, and laws of checkpointing."""

from __future__ import annotations

from typing import Any

from simpar.cost.memory.allocator import reserve, unreleased
from simpar.cost.memory.layouts import Layouts
from simpar.cost.memory.moments import most_in_flight
from simpar.cost.stack import Stack
from simpar.hardware.cluster import Cluster
from simpar.models.training import Training
from simpar.plan.plan import Plan


def num_communicators(plan: Plan) -> int:
    """Kinds of groups that a rank of a plan communicates in."""
    return int(Layouts.of(plan).communicators)


def overhead_bytes(communicators: Any, stack: Stack, cluster: Cluster) -> Any:
    """Device context and communicators of a rank; ``communicators`` is an int or an array."""
    if cluster.device.kind == "cpu":
        return 0.0
    return stack.memory.allocator.context_bytes + communicators * stack.memory.allocator.communicator_bytes


def held_outputs_bytes(
    plan: Plan, training: Training, stack: Stack, rank: int, partial_sums_bytes: float
) -> float:
    """Freed outputs of row-parallel products that a communication stream still uses on a pipeline rank.

    ``partial_sums_bytes`` are those of one microbatch through all its layers.
    """
    habits = stack.memory.allocator
    if not habits.held_outputs:
        return 0.0
    microbatches = most_in_flight(plan, training, rank) / plan.pipeline.vpp
    return unreleased(plan.mesh.pp, microbatches, habits) * microbatches * partial_sums_bytes


def reserved_bytes(
    allocated_peak_bytes: float, stack: Stack, static_bytes: float = 0.0, *, alternates: bool = False
) -> float:
    """Bytes the allocator holds for an allocated peak of which ``static_bytes`` stay for the whole step.

    ``alternates``: passes of several microbatches do. See :func:`simpar.cost.memory.allocator.reserve`.
    """
    moving = allocated_peak_bytes - static_bytes
    return float(reserve(static_bytes, moving, stack.memory.allocator, alternates=alternates).needed_bytes)


def checkpointed_peak(num_layers: int, every: int, layer_bytes: float, boundary_bytes: float) -> float:
    """Activation peak of a chain with a checkpoint every ``every`` layers.

    All boundaries plus one segment in full: minimal at about sqrt(num_layers x boundary / layer) [Chen et al.
    2016, arXiv 1604.06174].
    """
    return -(-num_layers // every) * boundary_bytes + every * layer_bytes
