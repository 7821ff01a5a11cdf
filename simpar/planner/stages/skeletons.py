"""Plans without their cut into stages: durations of every block on every stage, and bounds of all cuts.

A skeleton fixes everything else (mesh, micro-batch, recomputation, schedule). Its blocks are priced once,
as the Program prices them if nothing runs beside them. A cut is then bounded by its schedule's table with the sums of
its stages, in whole nanoseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cached_property
from math import comb

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.layout.action_table import schedule_of
from simpar.plan.choices.pipeline import DecidedPipeline
from simpar.plan.plan import Plan
from simpar.plan.schedules import looks_at_costs
from simpar.plan.schedules.actions import LETTERS
from simpar.planner.bound.action_tables import PrecedenceGraph, finishes_ns
from simpar.planner.bound.paths import Hops
from simpar.planner.certify.exact import job_of
from simpar.planner.problem import Problem
from simpar.planner.stages.cuts import cuts_within, find_fastest_cut, sum_before
from simpar.program.job import TrainingJob
from simpar.program.resolve.pass_costs import PassesAlone
from simpar.program.structure.stages import PASSES
from simpar.units import NS_PER_S, Floats, Ints

RankHardware = tuple[int, int, float]
"""Kind of device, part of the cluster, and slowdown of the rank relative to its kind."""
CUT_BATCH = 2048


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A plan without its cut: embedding and head count as blocks.

    ``blocks_ns`` float64[columns, letters, stages, blocks] are passes F, B, I, W through every block on every stage. A
    column is one rank of every stage, which send to each other; columns of equally fast ranks are merged.
    """

    job: TrainingJob
    blocks_ns: Floats

    def plan(self, cut: Sequence[int]) -> Plan:
        """The plan with a cut."""
        layers = np.array(cut)
        layers[0] -= 1
        layers[-1] -= 1
        return replace(self.job.layout, layers=tuple(layers.tolist())).to_plan()

    @property
    def num_cuts(self) -> int:
        """The number of cuts into stages of at least one block."""
        stages, blocks = self.costs_ns.shape
        return comb(blocks - 1, stages - 1)

    @cached_property
    def costs_ns(self) -> Floats:
        """One microbatch on every block of every stage, on its slowest rank: float64[stages, blocks].

        Forward plus backward, whole or split, whichever is less.
        """
        forward, backward, first, second = np.moveaxis(self.blocks_ns, 1, 0)
        return np.asarray((forward + np.minimum(backward, first + second)).max(axis=0))

    @cached_property
    def bound_s(self) -> float:
        """A lower bound in seconds of all cuts: all microbatches on the slowest stage of the best cut."""
        return float(self._step_s(self._slowest_ns(self._best))[0])

    @cached_property
    def promise_s(self) -> float:
        """A lower bound in seconds of the cut whose slowest stage is fastest."""
        return float(self.bounds_s(self._best)[0])

    @cached_property
    def _best(self) -> Ints:
        """The cut whose slowest stage is fastest, int64[1, stages]; a checked plan has a block for every stage."""
        return np.array([find_fastest_cut(self.costs_ns)])

    def _step_s(self, passes_ns: Floats) -> Floats:
        """Seconds of steps from the nanoseconds of their passes."""
        return np.asarray(self.job.stack.step_s(passes_ns))

    def _slowest_ns(self, cuts: Ints) -> Floats:
        """Nanoseconds of all microbatches on the slowest stage of cuts int64[n, stages]."""
        return np.asarray(self.job.num_microbatches * _sums(self.costs_ns, cuts).max(axis=1))

    def cuts_below(self, limit_s: float, at_most: int) -> Ints | None:
        """All cuts whose slowest stage allows a step below ``limit_s``; None if there are more than ``at_most``."""
        passes_s = limit_s - self.job.stack.launch.step_overhead_s
        return cuts_within(self.costs_ns, passes_s * NS_PER_S / self.job.num_microbatches, at_most)

    def bounds_s(self, cuts: Ints) -> Floats:
        """Lower bounds of the steps of cuts int64[n, stages] in seconds: float64[n].

        It sweeps the schedule's table with the passes of every stage, without messages, contention and what follows the
        last pass. If the table depends on durations, it is not known yet: then the slowest stage bounds.
        """
        result, table = self._slowest_ns(cuts), self._table
        if table is None:
            return self._step_s(result)
        for begin in range(0, len(cuts), CUT_BATCH):
            part = slice(begin, begin + CUT_BATCH)
            none = np.zeros((len(cuts[part]), cuts.shape[1] - 1))
            for column in self.blocks_ns:
                passes = zip(LETTERS, (_sums(blocks, cuts[part]) for blocks in column), strict=True)
                times = {(letter, last): taken for letter, taken in passes for last in (False, True)}
                finish = finishes_ns(table, times, Hops(none, none, False)).max(axis=0)
                result[part] = np.maximum(result[part], finish)
        return self._step_s(result)

    @cached_property
    def _table(self) -> PrecedenceGraph | None:
        if looks_at_costs(self.job.layout.schedule):
            return None
        return PrecedenceGraph.of(schedule_of(self.job.layout, self.job.training))


def _sums(blocks: Floats, cuts: Ints) -> Floats:
    """Sums over the blocks of every stage: float64[stages, blocks], cuts int64[n, stages] to float64[n, stages]."""
    sums, end, stage = sum_before(blocks), np.cumsum(cuts, axis=1), np.arange(len(blocks))
    return np.asarray(sums[stage, end] - sums[stage, end - cuts])


@dataclass
class SkeletonPrices:
    """Prices the skeletons of a problem; shared parts are priced once."""

    problem: Problem
    _known: dict[tuple[RankHardware, str], Mapping[str, Floats]] = field(default_factory=dict)

    def skeleton(self, plan: Plan) -> Skeleton | None:
        """A plan with the times of its blocks; None if the layout is not possible."""
        try:
            job = job_of(self.problem, plan)
        except UserError:
            return None
        names = job.graph.embedding.name, *job.graph.layers, job.graph.head.name
        parts = []
        for column, ranks in self._columns(job).items():
            priced = [self._blocks(job, *stage) for stage in zip(column, ranks, strict=True)]
            parts.append([np.stack([stage[name] for name in names], axis=1) for stage in priced])
        return Skeleton(job, np.moveaxis(np.array(parts), 2, 1))

    def _columns(self, job: TrainingJob) -> dict[tuple[RankHardware, ...], tuple[int, ...]]:
        """The distinct columns of rank hardware, stage by stage, each with one example column of ranks."""
        cluster, mesh = self.problem.cluster, job.layout.mesh
        ranks = np.arange(cluster.world_size)
        part = np.searchsorted(np.cumsum([each.world_size for each in cluster.parts]), ranks, side="right")
        device, slow = cluster.device_of(ranks), self.problem.perturbation.slow_ranks
        result: dict[tuple[RankHardware, ...], tuple[int, ...]] = {}
        for column in mesh.pipelines.tolist():
            places = tuple((int(device[r]), int(part[r]), slow.get(r, 1.0)) for r in column)
            result.setdefault(places, tuple(column))
        return result

    def _blocks(self, job: TrainingJob, place: RankHardware, rank: int) -> Mapping[str, Floats]:
        """Nanoseconds of every pass through every kind of block on a rank, with collectives alone on their links."""
        order = job.layout.order  # the axes before tp decide how far apart tensor ranks are
        ahead, behind = np.split(order, [order.index("tp") + 1])
        blank = asdict(DecidedPipeline()) | dict.fromkeys(behind.tolist(), 1)  # neither pipeline nor other ranks matter
        key = place, repr(replace(job.layout, **blank, order=tuple(ahead.tolist())))
        if key not in self._known:
            alone = PassesAlone.of(job.on(place[0]), self.problem.cluster, rank=rank, slowdown=place[2])
            costs: dict[str, Floats] = {}
            for piece in {(p.block.name, p.recompute): p for stage in alone.builder.pieces for p in stage}.values():
                taken = np.array([alone.duration_ns(piece, PASSES[letter]) for letter in LETTERS], np.float64)
                name = piece.block.name
                costs[name] = np.minimum(costs.get(name, np.inf), taken)
            self._known[key] = costs
        return self._known[key]
