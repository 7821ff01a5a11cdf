"""Cuts of a chain of blocks into pipeline stages: the cut whose slowest stage is fastest.

A cut is the number of blocks of every stage, at least one. Embedding and head count as the first and last block, so
stages at the ends may have no layers.
"""

from itertools import product

import numpy as np

from simpar.units import Floats, Ints

TIE_BREAK = 2.0**-30
"""The weight of a stage's own time among cuts with equally slow slowest stages."""
FEW_STAGES = 6
"""With up to so many stages, blocks move between any two of them."""


def sum_before(each: Floats) -> Floats:
    """Sums over blocks 0..j-1 of float64[..., K]: float64[..., K + 1]."""
    return np.concatenate([np.zeros((*each.shape[:-1], 1)), np.cumsum(each, axis=-1)], axis=-1)


def sum_between(each: Floats) -> Floats:
    """Sums over blocks k..j-1 of float64[..., K]: float64[..., K + 1, K + 1]."""
    sums = sum_before(each)
    return np.asarray(sums[..., None, :] - sums[..., :, None])


def find_fastest_cut(costs: Floats, most: Ints | None = None) -> tuple[int, ...] | None:
    """The number of blocks of every stage that makes the slowest stage fastest; None if no cut is allowed.

    ``costs`` float64[stages, K] is the time of every block on every stage; ``most`` int64[stages] the most blocks of a
    stage. Among equals, the next slower stages are faster, stage by stage from the end [linear partitioning by dynamic
    programming, O(stages x K^2)].
    """
    stages, blocks = costs.shape
    length = np.arange(blocks + 1) - np.arange(blocks + 1)[:, None]
    limit = np.full(stages, blocks) if most is None else most
    own = np.where((length > 0) & (length <= limit[:, None, None]), sum_between(costs), np.inf)
    begin, best = np.zeros((stages, blocks + 1), dtype=np.int64), np.full(blocks + 1, np.inf)
    best[0] = 0.0
    for stage in range(stages):
        slowest = np.maximum(best[:, None], own[stage])
        begin[stage] = np.argmin(slowest + own[stage] * TIE_BREAK, axis=0)
        best = slowest[begin[stage], np.arange(blocks + 1)]
    if not np.isfinite(best[blocks]):
        return None
    ends = [blocks]
    for starts in begin[::-1]:
        ends.append(int(starts[ends[-1]]))
    return tuple((-np.diff(ends))[::-1].tolist())


def cuts_within(costs: Floats, limit: float, at_most: int) -> Ints | None:
    """All cuts whose slowest stage stays below a limit, int64[n, stages]; None if there are more than ``at_most``.

    ``costs`` as in :func:`find_fastest_cut`.
    """
    stages, blocks = costs.shape
    allowed = np.triu(sum_between(costs) < limit, k=1)
    ways = np.zeros((stages + 1, blocks + 1))
    ways[stages, blocks] = 1.0
    for stage in range(stages - 1, -1, -1):
        ways[stage] = allowed[stage] @ ways[stage + 1]
    if ways[0, 0] > at_most:
        return None
    result = np.zeros((1, 1), dtype=np.int64)
    for stage in range(stages):
        row, end = np.nonzero(allowed[stage][result[:, -1]] & (ways[stage + 1] > 0))
        result = np.concatenate([result[row], end[:, None]], axis=1)
    return np.diff(result, axis=1)


def moves(cut: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Cuts in which one stage has a block less and another one close to it a block more."""
    result, stages = [], range(len(cut))
    reach = len(cut) if len(cut) <= FEW_STAGES else 2
    for giver, taker in product(stages, stages):
        if cut[giver] > 1 and 0 < abs(giver - taker) <= reach:
            result.append(tuple(n + (stage == taker) - (stage == giver) for stage, n in enumerate(cut)))
    return result
