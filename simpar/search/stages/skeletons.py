"""Plans but for their cut into stages: what every layer takes on every stage, and bounds of all cuts from that.

A skeleton fixes everything else (tp, pp, micro-batch, recomputation, rank order, schedule). Its blocks are priced once
as the Program prices them where nothing runs beside them; a cut is then bounded by its schedule's table with the sums
of its stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import comb

import numpy as np
from numpy.typing import NDArray

from simpar.errors import UserError
from simpar.plan.check import schedule_of
from simpar.plan.plan import Pipeline, Plan
from simpar.plan.schedules import looks_at_costs
from simpar.plan.schedules.actions import LETTERS
from simpar.program.blocks.rank_view import Job
from simpar.program.resolve.pass_costs import PassesAlone
from simpar.program.structure.stages import PASSES
from simpar.search.bound.action_tables import Table, finishes_ns
from simpar.search.bound.paths import Hops
from simpar.search.certify.exact import job_of
from simpar.search.problem import Problem
from simpar.search.stages.cuts import before, cuts_within, fastest_cut
from simpar.units import NS_PER_S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Place = tuple[int, int, float]
"""Kind of device, part of the cluster, and how many times slower than its kind the rank is."""
CUTS_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A plan but for its cut.

    ``layers_s`` float64[columns, letters, stages, layers] are seconds of passes F, B, I, W through every layer on every
    stage, ``ends_s`` float64[columns, letters, stages] what embedding and head add. A column is one rank of every
    stage, which send to each other; columns of equally fast ranks are one.
    """

    job: Job
    layers_s: Floats
    ends_s: Floats

    @property
    def num_cuts(self) -> int:
        """Cuts into stages of which those between the ends hold at least one layer."""
        stages, layers = self.costs.shape
        return 1 if stages == 1 else comb(layers + 1, stages - 1)

    @cached_property
    def costs(self) -> Floats:
        """Seconds of one microbatch on every layer of every stage, of its slowest rank: float64[stages, layers]."""
        return np.asarray(_all_passes(self.layers_s).max(axis=0))

    @cached_property
    def ends(self) -> Floats:
        """Seconds of one microbatch that embedding and head add to every stage: float64[stages]."""
        return np.asarray(_all_passes(self.ends_s).max(axis=0))

    @cached_property
    def bound_s(self) -> float:
        """Seconds below which no cut gets: all microbatches on the slowest stage of the best."""
        return float(self.slowest_s(self._best).min(initial=np.inf))

    @cached_property
    def promise_s(self) -> float:
        """Seconds that the cut whose slowest stage is fastest takes at least."""
        return float(self.bounds_s(self._best).min(initial=np.inf))

    @cached_property
    def _best(self) -> Ints:
        """The cut whose slowest stage is fastest, or none: int64[0 or 1, stages]."""
        counts = fastest_cut(self.costs, self.ends)
        return np.array([counts] if counts else [], dtype=np.int64).reshape(-1, len(self.costs))

    @property
    def _step_s(self) -> tuple[int, float]:
        """Microbatches of a step, and seconds that a step has besides."""
        job = self.job
        return job.plan.num_microbatches(job.training.global_batch), job.stack.launch.step_overhead_s

    def slowest_s(self, cuts: Ints) -> Floats:
        """Seconds of all microbatches on the slowest stage of cuts int64[n, stages]."""
        microbatches, overhead_s = self._step_s
        return np.asarray(microbatches * (_sums(self.costs, cuts) + self.ends).max(axis=1) + overhead_s)

    def cuts_below(self, limit_s: float, at_most: int) -> Ints | None:
        """All cuts whose slowest stage leaves them below a step, or None where they are too many."""
        microbatches, overhead_s = self._step_s
        return cuts_within(self.costs, self.ends, (limit_s - overhead_s) / microbatches, at_most)

    def bounds_s(self, cuts: Ints) -> Floats:
        """Seconds that the steps of cuts int64[n, stages] take at least: float64[n].

        The schedule's table with the passes of every stage, without messages, contention and what follows the last
        pass. A table that depends on the durations of its passes is not known yet: there the slowest stage bounds.
        """
        found, (_, overhead_s) = self.slowest_s(cuts), self._step_s
        if self._table is None:
            return found
        for begin in range(0, len(cuts), CUTS_AT_ONCE):
            some = cuts[begin : begin + CUTS_AT_ONCE]
            none = np.zeros((len(some), cuts.shape[1] - 1))
            for layers, ends in zip(self.layers_s, self.ends_s, strict=True):
                times = {
                    (letter, boundary): NS_PER_S * (_sums(layers[number], some) + ends[number])
                    for number, letter in enumerate(LETTERS)
                    for boundary in (False, True)
                }
                finish = finishes_ns(self._table, times, Hops(none, none, False)).max(axis=0) / NS_PER_S
                mine = found[begin : begin + CUTS_AT_ONCE]
                np.maximum(mine, finish + overhead_s, out=mine)
        return found

    @cached_property
    def _table(self) -> Table | None:
        if looks_at_costs(self.job.plan.schedule):
            return None
        return Table.of(schedule_of(self.job.plan, self.job.training))


def _all_passes(times: Floats) -> Floats:
    """Forward and backward, whole or in halves, whichever is less: the letters are the second axis."""
    forward, backward, first, second = np.moveaxis(times, 1, 0)
    return np.asarray(forward + np.minimum(backward, first + second))


def _sums(layers: Floats, cuts: Ints) -> Floats:
    """Sums over the layers of every stage: float64[stages, layers] and int64[n, stages] to float64[n, stages]."""
    sums, end, stage = before(layers), np.cumsum(cuts, axis=1), np.arange(len(layers))
    return np.asarray(sums[stage, end] - sums[stage, end - cuts])


@dataclass
class Pricing:
    """Prices skeletons of a problem; what they share is priced once."""

    problem: Problem
    _known: dict[tuple[object, ...], Mapping[str, Floats]] = field(default_factory=dict)

    def skeleton(self, plan: Plan) -> Skeleton | None:
        """A plan with the times of its layers, None where the layout cannot be."""
        try:
            job = job_of(self.problem, plan)
        except UserError:
            return None
        names, pp = job.graph.layers, job.plan.mesh.pp
        columns = self._columns(job)
        layers_s = np.zeros((len(columns), len(LETTERS), pp, len(names)))
        ends_s = np.zeros((len(columns), len(LETTERS), pp))
        for number, column in enumerate(columns):
            for stage, place in enumerate(column):
                seconds = self._blocks(job, place, columns[column][stage])
                layers_s[number, :, stage] = np.stack([seconds[name] for name in names], axis=1)
                if stage == 0:
                    ends_s[number, :, stage] += seconds[job.graph.embedding.name]
                if stage == pp - 1:
                    ends_s[number, :, stage] += seconds[job.graph.head.name]
        return Skeleton(job, layers_s, ends_s)

    def _columns(self, job: Job) -> dict[tuple[Place, ...], tuple[int, ...]]:
        """Where the ranks of a column are, stage by stage, and one column of ranks that are there."""
        cluster, mesh = self.problem.cluster, job.plan.mesh
        ranks = np.arange(cluster.world_size)
        stage = mesh.coordinates(ranks)["pp"]
        first = np.cumsum([part.world_size for part in cluster.parts])
        part = np.searchsorted(first, ranks, side="right")
        device = cluster.device_of(ranks)
        slow = self.problem.perturbation.slow_ranks
        columns = mesh.at_stage(ranks[stage == 0][:, None], np.arange(mesh.pp)[None, :])
        found: dict[tuple[Place, ...], tuple[int, ...]] = {}
        for column in columns.tolist():
            places = tuple((int(device[r]), int(part[r]), slow.get(r, 1.0)) for r in column)
            found.setdefault(places, tuple(column))
        return found

    def _blocks(self, job: Job, place: Place, rank: int) -> Mapping[str, Floats]:
        """Seconds of every letter's pass through every kind of block on a rank, collectives alone on their links."""
        mesh = job.plan.mesh.model_copy(update={"pp": 1, "dp": 1})
        blank = {"mesh": mesh, "pipeline": Pipeline()}  # a block knows neither its pipeline nor its replicas
        key = place, job.plan.model_copy(update=blank).model_dump_json()
        if key in self._known:
            return self._known[key]
        alone = PassesAlone.of(job.on(place[0]), self.problem.cluster, rank=rank, slowdown=place[2])
        found: dict[str, Floats] = {}
        for piece in {
            (p.block.name, p.recompute): p for stage in alone.builder.pieces for p in stage
        }.values():
            taken = np.array([alone.duration_ns(piece, PASSES[letter]) for letter in LETTERS]) / NS_PER_S
            found[piece.block.name] = np.minimum(found.get(piece.block.name, np.inf), taken)
        self._known[key] = found
        return found
