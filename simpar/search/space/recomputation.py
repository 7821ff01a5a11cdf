"""``recompute: optimal`` as a choice of the space: chosen for one layout when its bound says that it may win.

Until then a row is bounded as if nothing were recomputed, which takes the least time, and fits where everything
recomputed in segments of some size does. Then the choice by layer is made, as
:mod:`simpar.program.resolve.checkpointing` makes it, and the row is bounded, swept and simulated with it like any
other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.activations import block_activations
from simpar.cost.memory import num_communicators, overhead_bytes
from simpar.cost.memory.bound import trains_unlike
from simpar.cost.peak import peak_memory
from simpar.errors import Infeasible
from simpar.hardware.cluster import Cluster
from simpar.models.graph import Block
from simpar.models.recompute import OPTIMAL
from simpar.program.blocks.rank_view import Job, RankView
from simpar.search.problem import Problem
from simpar.search.space.axes import Rows

if TYPE_CHECKING:
    from simpar.search.bound.pipelines import Pipelines
    from simpar.search.bound.shapes import Shape

Ints = NDArray[np.int64]
SEGMENTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Layers that are recomputed from one input, of the sizes that are tried for whether anything fits."""


def undecided(rows: Rows, which: Any) -> NDArray[np.bool_]:
    """Which of some rows wait for their choice."""
    names = rows.domain.get("recompute", ())
    if OPTIMAL not in names:
        return np.zeros(len(np.atleast_1d(which)), dtype=bool)
    return np.asarray(rows.code["recompute"][np.atleast_1d(which)] == names.index(OPTIMAL))


def frugal(rows: Rows) -> list[tuple[str, NDArray[np.bool_]]]:
    """Policies that need the least memory, and the rows whose stages are long enough for them."""
    layers = len(rows.problem.graph.layers)
    longest = np.maximum(-(-layers // rows["stages"]), 1)
    found = [("none", np.ones(rows.count, dtype=bool))]
    for size in SEGMENTS:
        fits = longest >= size
        if fits.any():
            found.append((f"layers:full:{size}*{layers}" if size > 1 else "full", fits))
    return found


def limited(problem: Problem) -> Cluster:
    """The cluster with as much memory on a device as the constraints leave."""
    cluster = problem.cluster
    if not problem.constraints.headroom:
        return cluster
    device = cluster.device.model_copy(update={"memory_bytes": problem.memory_limit_bytes})
    return cluster.with_device(device)


def alike(rows: Rows, row: int) -> Ints:
    """Undecided rows that differ in overlap only, for which the choice is the same."""
    from simpar.search.space.rows import ORIGIN

    if ORIGIN not in rows.code:
        return np.array([row])
    same = rows.code[ORIGIN] == rows.code[ORIGIN][row]
    for name in ("order", "recompute"):
        same &= rows.code[name] == rows.code[name][row]
    return np.flatnonzero(same)


def decide(rows: Rows, row: int) -> str | None:
    """What ``optimal`` stands for in a row: none where nothing need be recomputed, None where nothing fits."""
    from simpar.search.space.rows import plan_of
    from simpar.simulation import make_job

    problem, one = rows.problem, rows.some([row])
    set_policy(one, np.array([0]), "none")
    kept = make_job(problem.graph, problem.cluster, plan_of(one, 0), problem.training, problem.stack)
    if _needed_bytes(kept, problem) <= problem.memory_limit_bytes:
        return "none"
    plan = plan_of(rows, row)
    try:
        job = make_job(problem.graph, limited(problem), plan, problem.training, problem.stack)
    except Infeasible:
        return None
    return job.plan.memory.recompute


def _needed_bytes(job: Job, problem: Problem) -> float:
    """Device memory that a job needs at most, where its peak is thought to be highest."""
    inputs = (job.graph, job.plan, job.training, job.stack)
    outside = overhead_bytes(num_communicators(job.plan), job.stack, problem.cluster)
    each = (peak_memory(*inputs, stage).reservation(job.stack) for stage in range(job.plan.mesh.pp))
    return float(outside + max(float(one.needed_bytes) for one in each))


def set_policy(rows: Rows, which: Ints, policy: str) -> None:
    """Give some rows a policy, a new one if need be."""
    if policy not in rows.domain["recompute"]:
        rows.domain["recompute"] = (*rows.domain["recompute"], policy)
    rows.code["recompute"][which] = rows.domain["recompute"].index(policy)
    rows.forget("recompute")


@dataclass
class Squeeze:
    """How much longer the passes of undecided rows take at least, because they keep less than they would like to.

    What the ends of a pipeline may keep of a layer is what their memory leaves. Dropping so many bytes costs at
    least what the lower hull of all choices says, of whichever block: hulls are convex, so nothing is gained by
    dropping more in some layers than in others.
    """

    pipelines: Pipelines
    _hulls: dict[tuple[int, str], tuple[NDArray[np.float64], NDArray[np.float64]]] = field(
        default_factory=dict
    )

    @cached_property
    def dropped_bytes(self) -> NDArray[np.float64]:
        """Bytes that a layer and microbatch must drop on the first and the last rank, float64[2, rows].

        Zero where rows are decided, and where layers are not spread evenly or some are frozen: there the closed form
        of the peak is that of another stage.
        """
        rows = self.pipelines.jobs.rows
        found = np.zeros((2, rows.count))
        even = len(rows.problem.graph.layers) % rows["stages"] == 0
        even &= not trains_unlike(rows.problem.graph)
        waiting = np.flatnonzero(undecided(rows, np.arange(rows.count)) & even)
        if len(waiting) and rows.problem.stack.launch.pipeline_balance != "cost":
            some = rows.some(waiting)
            most, least = (self._saved(how)[self.pipelines.passes.key[waiting]] for how in ("none", "full"))
            for end in (0, 1):
                whole, little, spare = self._room(some, last=bool(end))
                count = (whole - little) / np.maximum(most - least, 1.0)
                found[end, waiting] = np.maximum(whole - spare, 0.0) / np.maximum(count, 1.0)
        return found

    def _room(self, rows: Rows, *, last: bool) -> tuple[Any, Any, Any]:
        """Bytes that an end of the pipeline keeps under none and under full, and what the limit leaves for either."""
        from simpar.search.space.fit import overhead_of, peaks

        none, full = (peaks(rows, policy, last=last) for policy in ("none", "full"))
        transient = np.minimum(none.transient_bytes, full.transient_bytes)
        others = np.minimum(none.static_bytes, full.static_bytes) + transient
        spare = rows.problem.memory_limit_bytes - overhead_of(rows, np.arange(rows.count)) - others
        return none.activations_bytes, full.activations_bytes, spare

    def _saved(self, how: str) -> NDArray[np.float64]:
        """Mean bytes that a layer keeps of a microbatch, float64[keys]."""
        graph = self.pipelines.jobs.problem.graph
        blocks = [graph.blocks[name] for name in graph.layers]
        return np.array(
            [
                np.mean([_saved_bytes(block, view, how) for block in blocks])
                for view in self.pipelines.passes.views
            ]
        )

    def extra_ns(self, rows: Ints, shape: Shape) -> NDArray[np.float64]:
        """Nanoseconds more of the first and the last rank for one microbatch, float64[2, len(rows)], of one shape."""
        dropped, key = self.dropped_bytes[:, rows], self.pipelines.passes.key[rows]
        layers = len(self.pipelines.jobs.problem.graph.layers) // shape.num_ranks
        found = np.zeros((2, len(rows)))
        if shape.rank_of_stage[-1] != shape.num_ranks - 1:  # one rank has both ends
            return found
        for one in np.unique(key[dropped.any(axis=0)]).tolist():
            mine = np.flatnonzero(key == one)
            found[:, mine] = layers * np.interp(dropped[:, mine], *self._hull(one, shape))
        return found

    def _hull(self, key: int, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Least nanoseconds over bytes dropped, vertices of the lower hull of all choices of all blocks."""
        letter, passes = "I" if shape.splits else "B", self.pipelines.passes
        known = key, letter + "k" * shape.pairs
        if known not in self._hulls:
            times = (
                passes.kernels_ns[letter][key]
                if shape.pairs
                else passes.plain_ns(np.array([key]), (letter,))[letter][0]
            )
            points = [(0.0, 0.0)]
            for at, kind in enumerate(passes.kinds[2:], 2):
                none = passes.index[kind.block.name, "none"]
                view = passes.views[key]
                whole = _saved_bytes(kind.block, view, "none")
                kept = 0.0 if kind.recompute == "full" else _saved_bytes(kind.block, view, kind.recompute)
                points.append((max(whole - kept, 0.0), max(float(times[at] - times[none]), 0.0)))
            self._hulls[known] = _lower_hull(points)
        return self._hulls[known]


def _saved_bytes(block: Block, view: RankView, how: str) -> float:
    job = view.job
    return float(block_activations(block, view.dims, job.stack, job.plan.numerics, how).saved_bytes)


def _lower_hull(points: list[tuple[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Vertices of the lower convex hull from the origin to the point farthest right, by Andrew's monotone chain."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (y - hull[-2][1]) <= (
            hull[-1][1] - hull[-2][1]
        ) * (x - hull[-2][0]):
            hull.pop()
        hull.append((x, y))
    return np.array([x for x, _ in hull]), np.array([y for _, y in hull])
