"""Where to cut a chain of layers into pipeline stages: the cut whose slowest stage is fastest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
EVEN = 2.0**-30
"""Weight of a stage's own time among cuts with equally slow slowest stages."""
FEW_STAGES = 6
"""Stages up to which layers move between any two of them."""


def before(each: Floats) -> Floats:
    """Sums over blocks 0..j-1 of float64[..., K]: float64[..., K + 1]."""
    return np.concatenate([np.zeros((*each.shape[:-1], 1)), np.cumsum(each, axis=-1)], axis=-1)


def between(each: Floats) -> Floats:
    """Sums over blocks k..j-1 of float64[..., K]: float64[..., K + 1, K + 1]."""
    sums = before(each)
    return np.asarray(sums[..., None, :] - sums[..., :, None])


def _least_layers(stage: int, stages: int) -> int:
    """Stages between the ends hold at least one layer."""
    return int(0 < stage < stages - 1)


def fastest_cut(costs: Floats, ends: Floats, most: Ints | None = None) -> tuple[int, ...] | None:
    """Layers of every stage, such that the slowest stage is as fast as can be; None where no cut is allowed.

    ``costs`` float64[stages, layers]: seconds of every layer on every stage; ``ends`` float64[stages]: seconds that a
    stage has besides; ``most`` int64[stages]: layers that a stage may hold. Stages between the ends hold at least one.
    Among equals the one whose next slower stages are faster, stage by stage from the end [linear partitioning by
    dynamic programming, O(stages x layers^2)].
    """
    stages, layers = costs.shape
    own_s = between(costs) + ends[:, None, None]
    best = np.full((stages + 1, layers + 1), np.inf)
    best[0, 0] = 0.0
    cut = np.zeros((stages + 1, layers + 1), dtype=np.int64)
    for stage in range(stages):
        held = layers if most is None else int(most[stage])
        for end in range(layers + 1):
            starts = np.arange(max(end - held, 0), end - _least_layers(stage, stages) + 1)
            if not len(starts):
                continue
            slowest = np.maximum(best[stage, starts], own_s[stage, starts, end])
            at = int(np.argmin(slowest + own_s[stage, starts, end] * EVEN))
            best[stage + 1, end], cut[stage + 1, end] = slowest[at], starts[at]
    if not np.isfinite(best[stages, layers]):
        return None
    bounds = [layers]
    for stage in range(stages, 0, -1):
        bounds.append(int(cut[stage, bounds[-1]]))
    return tuple(end - begin for begin, end in pairwise(bounds[::-1]))


def cuts_within(costs: Floats, ends: Floats, limit_s: float, at_most: int) -> Ints | None:
    """All cuts whose slowest stage stays below a limit, int64[n, stages]; None where there are more than ``at_most``.

    ``costs`` and ``ends`` as in :func:`fastest_cut`.
    """
    stages, layers = costs.shape
    position = np.arange(layers + 1)
    ways = np.zeros((stages + 1, layers + 1))
    ways[stages, layers] = 1.0
    allowed = between(costs) + ends[:, None, None] < limit_s
    for stage in range(stages - 1, -1, -1):
        allowed[stage] &= position[None, :] - position[:, None] >= _least_layers(stage, stages)
        ways[stage] = allowed[stage] @ ways[stage + 1]
    if ways[0, 0] > at_most:
        return None
    found = np.zeros((1, 1), dtype=np.int64)
    for stage in range(stages):
        row, end = np.nonzero(allowed[stage][found[:, -1]] & (ways[stage + 1] > 0))
        found = np.concatenate([found[row], end[:, None]], axis=1)
    return np.diff(found, axis=1)


def moves(counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Cuts in which one stage has a layer less and another, not far from it, one more."""
    found, stages = [], len(counts)
    reach = stages if stages <= FEW_STAGES else 2
    for giver in range(stages):
        for taker in range(max(giver - reach, 0), min(giver + reach + 1, stages)):
            moved = list(counts)
            moved[giver] -= 1
            moved[taker] += 1
            if giver != taker and min(moved) >= 0 and 0 not in moved[1:-1]:
                found.append(tuple(moved))
    return found
