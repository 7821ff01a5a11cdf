"""From tensors to what a process holds: the caching allocator, and bytes that another stream has not released.

PyTorch keeps freed blocks for later. What stays for the whole step packs well; what moves leaves gaps, more of
them where passes of different microbatches alternate. Before it gives up, the allocator returns its cached blocks,
so a layout fits when what it needs fits, not what it happens to hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simpar.cost.memory_policy import AllocatorHabits
from simpar.units import MIB

Array = Any
_BLOCK, _SMALL, _MIDDLE = 512, 2 * MIB, 20 * MIB


@dataclass(frozen=True)
class Reservation:
    """Bytes of the allocator at its peak: ``needed`` cannot be less, ``reserved`` is what it reports."""

    needed_bytes: Array
    reserved_bytes: Array


def reserve(
    static_bytes: Array,
    moving_bytes: Array,
    habits: AllocatorHabits,
    *,
    alternates: Array = True,
    held_bytes: Array = 0.0,
    limit_bytes: Array = np.inf,
) -> Reservation:
    """What the allocator needs and reserves; sizes are scalars or arrays.

    ``static_bytes`` stay all step, ``moving_bytes`` is the highest total of the rest, ``alternates`` whether
    passes of several microbatches do, ``held_bytes`` are freed but in use by another stream, ``limit_bytes`` is
    what the device leaves: blocks beyond it are given back.
    """
    needed = _segments(static_bytes + moving_bytes * (1.0 + habits.least_gaps(alternates)))
    usual = _segments(_segments(static_bytes + moving_bytes * (1.0 + habits.gaps(alternates))) + held_bytes)
    reserved = np.minimum(usual, np.maximum(needed, limit_bytes))
    return Reservation(needed, reserved)


def most_moving_bytes(
    static_bytes: float, limit_bytes: float, habits: AllocatorHabits, *, alternates: bool
) -> float:
    """The most that may come and go beside what stays, so that no more than a limit is needed."""
    whole = np.floor(limit_bytes / _SMALL) * _SMALL
    return float((whole - static_bytes) / (1.0 + habits.least_gaps(alternates)))


def unreleased(pp: int, microbatches: float, habits: AllocatorHabits) -> float:
    """Share of partial sums that are freed but not released: the host runs ahead of the device.

    Without a pipeline it runs ahead freely; with one it waits for messages, except in the warm-up. ``microbatches`` are
    those in flight.
    """
    ahead = 1.0 if pp == 1 else max(microbatches - 2.0, 0.0) / max(microbatches, 1.0)
    return habits.held_outputs * ahead


def round_allocation(size_bytes: int) -> int:
    """What the caching allocator reserves for one tensor in an empty pool.

    512 B granularity; up to 1 MiB from a 2 MiB segment, up to 10 MiB from a 20 MiB segment, larger ones rounded
    up to 2 MiB. Source: torch c10 CUDACachingAllocator constants.
    """
    rounded = -(-size_bytes // _BLOCK) * _BLOCK
    if rounded <= MIB:
        return _SMALL
    if rounded < 10 * MIB:
        return _MIDDLE
    return -(-rounded // _SMALL) * _SMALL


def _segments(size_bytes: Array) -> Array:
    """Rounded up to whole 2 MiB segments."""
    return np.ceil(np.asarray(size_bytes) / _SMALL) * _SMALL
