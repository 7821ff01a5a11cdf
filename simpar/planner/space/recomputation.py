"""``recompute: optimal`` as a choice of the space: made for one layout when its bound says that it may win.

Until then a row is bounded as if nothing were recomputed, which takes the least time; it counts as fitting if
recomputing everything in segments of some size does. Then :mod:`simpar.program.resolve.checkpointing` makes the choice
by layer, and the row is bounded, swept and simulated with it like any other.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from simpar.architectures.graph import Block
from simpar.cost.activations import block_activations
from simpar.cost.memory.allocator import memory_risk
from simpar.dataclass import dataclass
from simpar.errors import Infeasible
from simpar.plan.choices.memory import select_undecided
from simpar.planner.problem import Problem
from simpar.planner.space.fit import FIRST, LAST, Least, compute_least
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import ORIGIN
from simpar.planner.space.table import Rows
from simpar.program.blocks.rank_view import RankView
from simpar.simulation import make_job
from simpar.uncertainty.memory import ROUNDS, Parts
from simpar.units import Floats, Ints

if TYPE_CHECKING:
    from simpar.planner.bound.pipelines import Pipelines
    from simpar.planner.bound.shapes import PipelineShape


def alike(rows: Rows, row: int) -> Ints:
    """Undecided rows that differ in overlap only, for which the choice is the same."""
    if ORIGIN not in rows.code:
        return np.array([row])
    same = rows.code[ORIGIN] == rows.code[ORIGIN][row]
    for name in ("order", "recompute"):
        same &= rows.code[name] == rows.code[name][row]
    return np.flatnonzero(same)


def decide(rows: Rows, row: int) -> str | None:
    """What ``optimal`` stands for in a row: "none" if nothing needs to be recomputed, None if nothing fits."""
    problem, cluster = rows.problem, rows.problem.cluster
    if problem.constraints.headroom:  # the device has only the memory that may be used
        device = cluster.device.model_copy(update={"memory_bytes": problem.memory_limit_bytes})
        cluster = cluster.with_device(device)
    try:
        sure = problem.constraints.fit_probability
        job = make_job(problem.graph, cluster, plan_of(rows, row), problem.training, problem.stack, sure)
    except Infeasible:
        return None
    return job.layout.recompute


@dataclass
class RecomputeBounds:
    """Lower bounds of the time that limited memory costs undecided rows, which must drop some activations.

    At a moment of an end rank of the pipeline (:mod:`simpar.cost.memory.moments`), f_l microbatches of layer l are in
    flight. If keeping everything needs D bytes too many, the choices must drop d_l bytes per layer and microbatch with
    sum f_l d_l >= D. Dropping d bytes costs at least h(d), the lower convex hull over all choices of all blocks. As h
    is convex, the n layers of the rank take at least n h(D / (n max f)) longer per microbatch.
    """

    pipelines: Pipelines
    _hulls: dict[tuple[int, str], tuple[Floats, Floats]] = field(default_factory=dict)

    @cached_property
    def dropped_bytes(self) -> Floats:
        """Bytes that each layer and microbatch must drop on the first and last rank, and the layers there.

        float64[2 (bytes, layers), 2 ends, rows]; zero for decided rows.
        """
        rows = self.pipelines.jobs.rows
        result = np.zeros((2, 2, rows.count))
        waiting = np.flatnonzero(select_undecided(rows, np.arange(rows.count)))
        if not len(waiting):
            return result
        none, full = (_under(rows.subset(waiting), policy) for policy in ("none", "full"))
        beside = np.minimum(none.transient_bytes, full.transient_bytes)
        spare = _most_moving_bytes(rows.problem, none) - beside
        most = np.maximum(none.layers * none.deepest, 1.0)
        result[0, :, waiting] = (np.maximum(none.activations_bytes - spare, 0.0) / most).T
        result[1, :, waiting] = none.layers.T
        return result

    def extra_ns(self, rows: Ints, shape: PipelineShape) -> Floats:
        """Extra nanoseconds per microbatch on the first and last rank, float64[2, len(rows)], for rows of one shape."""
        (dropped, layers), key = self.dropped_bytes[:, :, rows], self.pipelines.blocks.key[rows]
        result = np.zeros((2, len(rows)))
        if shape.rank_of_stage[-1] != shape.num_ranks - 1:  # one rank has both ends
            return result
        for one in np.unique(key[dropped.any(axis=0)]).tolist():
            mine = np.flatnonzero(key == one)
            result[:, mine] = layers[:, mine] * np.interp(dropped[:, mine], *self._hull(one, shape))
        return result

    def _hull(self, key: int, shape: PipelineShape) -> tuple[Floats, Floats]:
        """Least nanoseconds as a function of bytes dropped: vertices of the lower hull of all choices of all blocks."""
        letter, blocks = "I" if shape.splits else "B", self.pipelines.blocks
        known = key, letter + "k" * shape.pairs
        if known not in self._hulls:
            times = (
                blocks.kernels_ns(letter)[letter][key]
                if shape.pairs
                else blocks.plain_ns(np.array([key]), (letter,))[letter][0]
            )
            points, view = [(0.0, 0.0)], blocks.view(key)
            for at, kind in enumerate(blocks.kinds[2:], 2):
                none = blocks.index[kind.block.name, "none"]
                whole = _saved_bytes(kind.block, view, "none")
                kept = 0.0 if kind.recompute == "full" else _saved_bytes(kind.block, view, kind.recompute)
                points.append((max(whole - kept, 0.0), max(float(times[at] - times[none]), 0.0)))
            self._hulls[known] = _lower_hull(points)
        return self._hulls[known]


def _most_moving_bytes(problem: Problem, held: Least) -> Floats:
    """An upper limit of the transient memory with which a row still fits with the requested probability.

    The risk from uneven expert loads is left out, because it depends on what is kept.
    """
    habits = memory_risk(problem.stack, problem.cluster)
    sure = problem.constraints.fit_probability
    parts = Parts(held.static_bytes, 0.0, held.overhead_bytes, gaps=held.gaps)
    stays = held.static_bytes + held.overhead_bytes
    most = problem.cluster.device.memory_bytes - stays
    result = habits.most_moving_bytes(sure, parts, lambda risk: most - risk, ROUNDS + 1)
    return np.minimum(result, problem.memory_limit_bytes - stays)


def _under(rows: Rows, policy: str) -> Least:
    """The least that the end ranks of pipelines hold under one policy."""
    rows.set("recompute", np.arange(rows.count), policy)
    return compute_least(rows, (FIRST, LAST))


def _saved_bytes(block: Block, view: RankView, how: str) -> float:
    job = view.job
    return float(block_activations(block, view.dims, job.stack, job.layout, how).saved_bytes)


def _lower_hull(points: list[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Vertices of the lower convex hull from the origin to the rightmost point, by Andrew's monotone chain."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (y - hull[-2][1]) <= (hull[-1][1] - hull[-2][1]) * (
            x - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    return np.array([x for x, _ in hull]), np.array([y for _, y in hull])
