"""Gradient buckets of one backward pass: which units are reduced together, and when."""

from collections.abc import Iterable
from functools import lru_cache

from simpar.dataclass import dataclass


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced when the unit at position ``at`` of a backward is done: bytes, in ``count`` calls."""

    at: int
    size_bytes: float
    count: int


def buckets(sizes_bytes: Iterable[float], first_bytes: float, bucket_bytes: float, *, per_unit: bool) -> list[Bucket]:
    """The buckets of gradients of units, given in the order of their backward: ``per_unit``, or flat buckets.

    A bucket closes with the unit that fills it, or with the last unit. DDP's first one is small (``first_bytes``; 0:
    like the others), so that reduction starts early. With ``bucket_bytes`` 0 every bucket is one call.
    """
    result: list[Bucket] = []
    sizes = list(sizes_bytes)
    pending, limit = 0.0, first_bytes or bucket_bytes
    for at, size in enumerate(sizes):
        pending += size
        full = per_unit or pending >= limit or at == len(sizes) - 1
        if not full or pending <= 0:
            continue
        flat = bucket_bytes > 0 and not per_unit
        result.append(Bucket(at, pending, max(1, round(pending / bucket_bytes)) if flat else 1))
        pending, limit = 0.0, bucket_bytes
    return result


@lru_cache(maxsize=1024)
def mean_bucket(tensors: tuple[int, ...], least: float) -> float:
    """Mean number of parameters in a bucket: tensors are never cut, so a bucket closes with the tensor that fills it.

    ``tensors`` are sizes in the order of the model; buckets take them from its end. A bucket is full from ``least`` on,
    which is also the answer where no bucket gets full [PyTorch, reducer.cpp, compute_bucket_assignment_by_size;
    Megatron-Core, param_and_grad_buffer.py].
    """
    closed, pending, count = 0.0, 0.0, 0
    for size in reversed(tensors):
        pending += size
        if pending >= least:
            closed, pending, count = closed + pending, 0.0, count + 1
    return closed / count if count else least
