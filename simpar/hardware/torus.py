"""A torus of devices: the slice that a job gets, and the hops of a message through it."""

import math
from functools import lru_cache

import numpy as np

from simpar.units import Ints

Sides = tuple[int, ...]


@lru_cache(maxsize=256)
def slice_sides(count: int, most: Sides, wrap: int) -> Sides:
    """Sides of the most cubic box of ``count`` devices inside a pod with sides ``most``; the whole pod if none fits.

    Sides are multiples of ``wrap`` or powers of two where possible. If ``count`` makes no box, the next larger count
    that does is taken. Source: the slice shapes of Cloud TPU v5p and v5e (docs.cloud.google.com/tpu/docs).
    """
    limits = sorted(most)
    for size in range(count, math.prod(most)):
        boxes = [box for box in _boxes(size, len(most)) if all(a <= b for a, b in zip(box, limits, strict=True))]
        if boxes:
            return min(boxes, key=lambda box: (sum(s % wrap > 0 and s & (s - 1) > 0 for s in box), sum(box), box))
    return most


def _boxes(size: int, num_sides: int, least: int = 1) -> list[Sides]:
    """All ways to write ``size`` as a product of ``num_sides`` factors in ascending order."""
    if num_sides == 1:
        return [(size,)] if size >= least else []
    sides = range(least, math.floor(size ** (1 / num_sides) + 0.5) + 1)
    return [(s, *rest) for s in sides if size % s == 0 for rest in _boxes(size // s, num_sides - 1, s)]


def hops(src: Ints, dst: Ints, sides: Sides, wrap: int) -> tuple[Ints, Ints, Ints]:
    """Every hop of messages src[i] -> dst[i]: (message index, device left, device reached), int64.

    Dimension by dimension, the short way round where a side is a ring (a multiple of ``wrap``).
    """
    here, there = np.array(np.unravel_index(src, sides)), np.array(np.unravel_index(dst, sides))
    pieces = [np.zeros((3, 0), dtype=np.int64)]
    for axis, side in enumerate(sides):
        remaining, direction = _steps(here[axis], there[axis], side, ring=side % wrap == 0)
        while (remaining > 0).any():
            moving = np.flatnonzero(remaining > 0)
            left = np.ravel_multi_index(tuple(here[:, moving]), sides)
            here[axis, moving] = (here[axis, moving] + direction[moving]) % side
            reached = np.ravel_multi_index(tuple(here[:, moving]), sides)
            pieces.append(np.stack([moving, left, reached]))
            remaining[moving] -= 1
    message, left, reached = np.concatenate(pieces, axis=1)
    return message, left, reached


def _steps(here: Ints, there: Ints, side: int, *, ring: bool) -> tuple[Ints, Ints]:
    """(Number of hops along one axis, direction +1 or -1)."""
    ahead = there - here
    if not ring:
        return np.abs(ahead), np.sign(ahead)
    ahead = ahead % side
    return np.minimum(ahead, side - ahead), np.where(ahead <= side - ahead, 1, -1)
