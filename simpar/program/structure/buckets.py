"""Gradient buckets of one backward pass: which units are reduced together, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced once the unit at position ``at`` of a backward is done: bytes, in so many calls."""

    at: int
    size_bytes: float
    count: int


def buckets(
    sizes_bytes: Iterable[float], first_bytes: float, bucket_bytes: float, *, per_unit: bool
) -> list[Bucket]:
    """How gradients of units, in the order of their backward, are cut: ``per_unit``, or in flat buckets.

    A bucket closes with the unit that fills it, and with the last one. DDP's first (``first_bytes``, 0: like the
    others) is small, so that reduction starts early; 0 ``bucket_bytes`` are one call a bucket.
    """
    found: list[Bucket] = []
    sizes = list(sizes_bytes)
    pending, limit = 0.0, first_bytes or bucket_bytes
    for at, size in enumerate(sizes):
        pending += size
        full = per_unit or pending >= limit or at == len(sizes) - 1
        if not full or pending <= 0:
            continue
        flat = bucket_bytes > 0 and not per_unit
        found.append(Bucket(at, pending, max(1, round(pending / bucket_bytes)) if flat else 1))
        pending, limit = 0.0, bucket_bytes
    return found


@lru_cache(maxsize=1024)
def mean_bucket(tensors: tuple[int, ...], least: float) -> float:
    """Parameters of a bucket in the mean: tensors are never cut, so that it closes with the one that fills it.

    ``tensors`` are their sizes in the order of the model, which buckets take from its end; ``least`` is from where on
    one is full, and what is returned where nothing fills one [PyTorch, reducer.cpp, compute_bucket_assignment_by_size;
    Megatron-Core, param_and_grad_buffer.py].
    """
    closed, pending, count = 0.0, 0.0, 0
    for size in reversed(tensors):
        pending += size
        if pending >= least:
            closed, pending, count = closed + pending, 0.0, count + 1
    return closed / count if count else least
