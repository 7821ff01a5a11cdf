"""Pipeline ranks of many layouts of a model whose layers differ by where they stand: a prefix of them is frozen.

Frozen layers keep nothing for a backward and have no states, so the fullest rank is the first one above them, or where
the prefix ends, as often as the first or the last. Ranks that hold the same blocks are alike but for what is in flight,
so one of each kind is looked at: the one with the most in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simpar.cost.in_flight import SATURATED, in_flight
from simpar.cost.stack import Stack
from simpar.models.graph import ModelGraph
from simpar.models.recompute import of_layer
from simpar.plan.check import layers_by_cost, spread_layers
from simpar.plan.plan import Plan
from simpar.plan.schedules import make_schedule

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Kind = tuple[str, str]
"""Name of a block, and how it is recomputed."""
COUNTED = ("1f1b", "gpipe", "naive", "terapipe", "breadth-first")
"""Schedules of which a rank has as much of each of its chunks in flight, whatever the chunks hold."""


@dataclass(frozen=True)
class Place:
    """One pipeline rank of every layout, arrays of one length.

    ``counts`` of layers by kind, ``embedding`` and ``head`` zeros and ones, ``in_flight`` chunks in flight, of which
    each counts as the mean of the rank's chunks.
    """

    rank: Ints
    counts: dict[Kind, Ints]
    embedding: Ints
    head: Ints
    in_flight: Floats


Where = bool | Place
"""A pipeline rank: the first (False), the last (True), or one that is looked up."""


def is_placed(graph: ModelGraph) -> bool:
    """Whether it matters where on a pipeline a layer of the model stands."""
    return any(graph.blocks[name].still for name in graph.layers)


def places(graph: ModelGraph, plan: Plan, stack: Stack, pipes: tuple[Ints, Ints, Ints]) -> list[Place]:
    """Ranks among which the fullest of every layout is; ``pipes`` are its pp, vpp and microbatches.

    As many places as the layout with the most kinds of ranks has; others repeat one of theirs.
    """
    shapes, which = np.unique(np.stack(np.broadcast_arrays(*pipes), axis=1), axis=0, return_inverse=True)
    every = [_ranks(graph, plan, stack, *(int(size) for size in shape)) for shape in shapes]
    found = []
    for number in range(max(len(each) for each in every)):
        mine = [each[min(number, len(each) - 1)] for each in every]
        found.append(_place(mine, np.asarray(which).ravel()))
    return found


@dataclass(frozen=True)
class _Rank:
    """What one rank holds and has in flight."""

    rank: int
    counts: dict[Kind, int]
    embedding: bool
    head: bool
    in_flight: float


def _place(ranks: Sequence[_Rank], which: Ints) -> Place:
    kinds = dict.fromkeys(kind for rank in ranks for kind in rank.counts)
    column = {kind: np.array([rank.counts.get(kind, 0) for rank in ranks])[which] for kind in kinds}
    return Place(
        rank=np.array([rank.rank for rank in ranks])[which],
        counts=column,
        embedding=np.array([int(rank.embedding) for rank in ranks])[which],
        head=np.array([int(rank.head) for rank in ranks])[which],
        in_flight=np.array([rank.in_flight for rank in ranks])[which],
    )


def _ranks(graph: ModelGraph, plan: Plan, stack: Stack, pp: int, vpp: int, microbatches: int) -> list[_Rank]:
    """One rank of every kind of a pipeline."""
    stages, policy = pp * vpp, plan.memory.recompute
    layers = layers_by_cost(graph, stages) if stack.launch.pipeline_balance == "cost" and stages > 1 else None
    bounds = np.cumsum([0, *(layers or spread_layers(len(graph.layers), stages))]).tolist()
    kinds = [(name, of_layer(policy, layer)) for layer, name in enumerate(graph.layers)]
    trained = np.array([not graph.blocks[name].still for name in graph.layers])
    weights = tuple(int(trained[bounds[s] : bounds[s + 1]].sum()) for s in range(stages))
    rank_of_stage, flying = _in_flight(plan.schedule, pp, vpp, microbatches, weights)
    found: dict[tuple[object, ...], _Rank] = {}
    for rank in range(pp):
        counts: dict[Kind, int] = {}
        mine = [stage for stage in range(stages) if rank_of_stage[stage] == rank]
        for kind in (kind for stage in mine for kind in kinds[bounds[stage] : bounds[stage + 1]]):
            counts[kind] = counts.get(kind, 0) + 1
        ends = 0 in mine, stages - 1 in mine
        key = (*sorted(counts.items()), *ends)
        if key not in found or found[key].in_flight < flying[rank]:
            found[key] = _Rank(rank, counts, *ends, flying[rank])
    return list(found.values())


@lru_cache(maxsize=4096)
def _in_flight(
    schedule: str, pp: int, vpp: int, microbatches: int, weights: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Rank of every virtual stage, and the chunks in flight of every rank.

    Where chunks differ, those that keep activations count by their ``weights``, in units of the rank's mean chunk.
    """
    if vpp == 1 or schedule in COUNTED:
        counted = np.broadcast_to(in_flight(schedule, np.arange(pp), pp, microbatches, vpp), (pp,))
        return tuple(stage % pp for stage in range(pp * vpp)), tuple(float(n) for n in counted)
    table = make_schedule(schedule, pp, min(microbatches, SATURATED * pp), vpp)
    found = []
    for rank in range(pp):
        codes, stages, _ = table.arrays(rank)
        own = np.array(weights, dtype=np.float64)
        most = np.cumsum(np.array([1, -1, 0, -1])[codes] * own[stages]).max(initial=0.0)
        total = sum(weight for stage, weight in enumerate(weights) if table.rank_of_stage[stage] == rank)
        found.append(float(vpp * most / total) if total else float(table.peak_in_flight(rank)))
    return tuple(table.rank_of_stage), tuple(found)
