"""From tensors to what a process holds: the caching allocator, blocks that another stream still uses, context.

PyTorch keeps freed blocks for later. What stays for the whole step packs well; what moves leaves gaps, more of
them where passes of different microbatches alternate. Before it gives up, the allocator returns its cached blocks,
so a layout fits when what it needs fits, not what it happens to hold.
"""

from math import log

import numpy as np

from simpar.architectures.training import Training
from simpar.cost.memory.moments import most_in_flight
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.layout.layout import Layout
from simpar.stacks.stack import AllocatorHabits, Stack
from simpar.uncertainty.memory import MemoryRisk
from simpar.uncertainty.table import load_error_table
from simpar.units import MIB, Flags, Numbers

_SEGMENT = 2 * MIB
FULL_QUEUE = 3.0
"""Microbatches in flight beyond two from which on a held-up host fills its queue while the device waits."""
REMAP_S_PER_BYTE = 1e-11
"""Seconds by the byte to give memory back to the device and to map it again: 10 ms for a GB, page by page of 2 MiB.

No measurement of this stands behind it; it lies between two facts. transformers documents about 10 % of a step for
``torch_empty_cache_steps`` [transformers, TrainingArguments], which 5 to 10 ms a GB are on an 80 GB device. CUDA's own
pool gave 7 GB back in 0.5 s, the collection of garbage included [JuliaGPU/CUDA.jl issue 1540].
"""
REMAP_FACTORS = (log(0.25), log(8.0))
"""Logarithms of the least and the most of that time over the predicted one: what these facts leave open."""
MANY_CHANNELS = ("nvswitch", "mesh")
"""Kinds of links for which communicators open many channels."""


@dataclass(frozen=True)
class Reservation:
    """Bytes of the allocator at its peak: the least that it needs, and what it reports as reserved in later steps."""

    needed_bytes: Numbers
    reserved_bytes: Numbers


def reserve(
    static_bytes: Numbers,
    moving_bytes: Numbers,
    habits: AllocatorHabits,
    *,
    alternates: bool | Flags = True,
    held_bytes: Numbers = 0.0,
    limit_bytes: Numbers = np.inf,
) -> Reservation:
    """What the allocator needs and reserves; sizes are scalars or arrays.

    ``static_bytes`` stay for the whole step, ``moving_bytes`` is the highest total of the rest; ``alternates``: whether
    passes of several microbatches alternate; ``held_bytes`` are freed but in use by another stream; ``limit_bytes`` is
    what the device has for the allocator: cached blocks beyond it are given back.
    """
    # the need has the gaps of the first steps too; later steps have fewer, but reserve blocks that another stream uses.
    # Cached blocks are given back before an allocation fails, so that is cut to the limit, but not below the need.
    needed = _segments(static_bytes + moving_bytes * (1.0 + habits.tight_gaps(alternates)))
    usual = _segments(_segments(static_bytes + moving_bytes * (1.0 + habits.gaps(alternates))) + held_bytes)
    reserved = np.minimum(usual, np.maximum(needed, limit_bytes))
    return Reservation(needed, reserved)


def most_moving_bytes(static_bytes: Numbers, limit_bytes: float, habits: AllocatorHabits, *, alternates: bool) -> float:
    """The most bytes that may come and go beside ``static_bytes`` while the need stays within the limit."""
    whole = np.floor(limit_bytes / _SEGMENT) * _SEGMENT
    return float((whole - static_bytes) / (1.0 + habits.tight_gaps(alternates)))


def remap_s(moving_bytes: Numbers, habits: AllocatorHabits) -> Numbers:
    """Seconds of a step in which all that comes and goes is given back and mapped again, a mean over steps.

    Of an allocator whose cache is emptied after some steps.
    """
    return moving_bytes * REMAP_S_PER_BYTE / habits.empty_cache_steps


def overhead_bytes(communicators: Numbers, stack: Stack, cluster: Cluster) -> Numbers:
    """Device context and communicators of a rank; ``communicators`` is an int or an array."""
    if cluster.device.kind == "cpu":
        return 0.0
    return stack.memory.allocator.context_bytes + communicators * stack.memory.allocator.communicator_bytes


def memory_risk(stack: Stack, cluster: Cluster) -> MemoryRisk:
    """How far the memory needed under a stack on a cluster may be from the prediction.

    Communicators open as many channels as the links in a domain can use [maintainers in NVIDIA/nccl issue 986]; a
    cluster with several kinds of nodes has few channels if one kind has.
    """
    few = any(part.profile.scale_up.kind not in MANY_CHANNELS for part in cluster.parts)
    planned = stack.memory.allocator.planned
    return MemoryRisk.of(stack.known_as, load_error_table(), stack.own_runs, has_few_channels=few, planned=planned)


def held_outputs_bytes(
    layout: Layout, training: Training, stack: Stack, rank: int, partial_sum_bytes: float, *, held_up: bool = False
) -> float:
    """Freed outputs of row-parallel products that a communication stream still uses on a pipeline rank.

    The host launches ahead of the device until the queue of launches is full. The number of outputs that wait in the
    queue therefore does not depend on their size, ``partial_sum_bytes``. A host that is ``held_up`` by collectives gets
    ahead only while the device waits for its first gradient, which takes longer the more stages are behind.
    """
    habits = stack.memory.allocator
    if not habits.held_outputs:
        return 0.0
    waiting = most_in_flight(layout, training, rank) / int(layout.vpp) - 2.0
    ahead = min(max(waiting / FULL_QUEUE, 0.0), 1.0) if held_up else 1.0
    return habits.held_outputs * ahead * partial_sum_bytes


def _segments(size_bytes: Numbers) -> Numbers:
    """Rounded up to whole 2 MiB segments."""
    return np.ceil(np.asarray(size_bytes) / _SEGMENT) * _SEGMENT
