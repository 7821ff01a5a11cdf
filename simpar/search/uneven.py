"""The uneven space: how many layers every pipeline stage gets, over nodes of one kind or several.

A skeleton (tp, pp, micro-batch, recomputation, rank order) fixes all but the cut. Its layers are priced on the
devices of every stage, and dynamic programming finds the cut whose slowest stage is fastest. No cut of a skeleton can
take less than its microbatches on that stage: that bounds it. Skeletons are simulated in the order of their estimates,
until the bound of all others passes the best; then boundaries move by a layer as long as the simulated step gets
shorter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collectives import fastest, offers
from simpar.engine import choose_engine
from simpar.errors import Infeasible, UserError
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, natural_vpp
from simpar.program.footprint import footprints
from simpar.program.phases import CollectiveUse
from simpar.program.rank_view import Job, RankView
from simpar.program.segments import make_segment
from simpar.program.stages import StageBuilder
from simpar.program.synchronisation import Synchronisation
from simpar.program.traffic import block_groups
from simpar.search.cuts import fastest_cut, moves, slowest_s, stage_seconds
from simpar.search.exact import candidate, exact
from simpar.search.problem import Problem, details_of, refuse_optimal
from simpar.search.result import Counts, SearchResult
from simpar.search.space import in_order
from simpar.search.uniform import search_uniform
from simpar.search.watch import Watch
from simpar.search.words import why_it_loses, why_it_wins
from simpar.simulation import lower_job, make_job
from simpar.units import NS_PER_S

Floats = NDArray[np.float64]
ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp")
MOST_SIMULATED = 160
IMPROVED = 3
"""Skeletons whose boundaries are moved."""
MEMORY_TRIALS = 4
AXES = ("tp", "pp", "micro_batch", "recompute", "rank_order", "schedule")
BYTES_LEFT = 0.98
"""How much of the memory a stage is let have that was too full, of what would just fit."""


@dataclass(frozen=True)
class Skeleton:
    """A plan but for its cut: seconds of every layer on every stage, what the ends add, and how many microbatches."""

    plan: Plan
    job: Job
    costs: Floats
    ends: Floats
    microbatches: int

    def cut(self, most: NDArray[np.int64] | None = None) -> tuple[int, ...] | None:
        """The cut whose slowest stage is fastest."""
        return fastest_cut(self.costs, self.ends, most)

    @property
    def bound_s(self) -> float:
        """Seconds below which no cut gets: all microbatches on the slowest stage."""
        counts = self.cut()
        return np.inf if counts is None else self.microbatches * slowest_s(counts, self.costs, self.ends)

    def estimate_s(self, counts: tuple[int, ...]) -> float:
        """Seconds of a pipeline: every stage once, the slowest for all other microbatches."""
        own = stage_seconds(counts, self.costs, self.ends)
        return float(own.sum() + (self.microbatches - 1) * own.max())


@dataclass(frozen=True)
class Trial:
    """A simulated plan: seconds of the step, and for every stage bytes needed over bytes allowed."""

    skeleton: Skeleton
    counts: tuple[int, ...]
    step_time_s: float
    fullness: Floats

    @property
    def worth(self) -> tuple[float, float]:
        """What is smaller is better: memory that is too much, then time."""
        return float(np.maximum(self.fullness - 1, 0).sum()), self.step_time_s

    @property
    def fits(self) -> bool:
        """Whether every stage fits."""
        return bool((self.fullness <= 1).all())


@dataclass
class Uneven:
    """State of one search."""

    problem: Problem
    watch: Watch
    skeletons: list[Skeleton] = field(default_factory=list)
    trials: dict[tuple[int, tuple[int, ...]], Trial] = field(default_factory=dict)

    @property
    def best(self) -> Trial | None:
        """The fastest plan that fits."""
        fitting = [trial for trial in self.trials.values() if trial.fits]
        return min(fitting, key=lambda trial: trial.step_time_s, default=None)

    def run(self, skeleton: Skeleton, counts: tuple[int, ...]) -> Trial:
        """The simulated step of a cut."""
        key = (id(skeleton), counts)
        if key not in self.trials:
            self.trials[key] = simulated(self.problem, skeleton, counts)
            best = self.best
            self.watch.report("simulating", self.counts(), best.step_time_s if best else None)
        return self.trials[key]

    def start(self, skeleton: Skeleton) -> Trial | None:
        """The best cut by price; where stages are too full, the best that leaves them fewer layers."""
        most, trial = np.full(len(skeleton.ends), skeleton.costs.shape[1]), None
        for _ in range(MEMORY_TRIALS):
            counts = skeleton.cut(most)
            if counts is None:
                break
            trial = self.run(skeleton, counts)
            if trial.fits:
                break
            over, held = trial.fullness > 1, np.array(counts)
            less = np.floor(held / trial.fullness * BYTES_LEFT).astype(np.int64)
            most = np.where(over, np.minimum(less, held - 1), most)
            if (most < 0).any():
                break
        return trial

    def improve(self, trial: Trial) -> Trial:
        """Boundaries moved by a layer as long as that helps."""
        while len(self.trials) < MOST_SIMULATED:
            found = [self.run(trial.skeleton, counts) for counts in moves(trial.counts)]
            better = min(found, key=lambda one: one.worth, default=trial)
            if better.worth >= trial.worth:
                break
            trial = better
        return trial

    def counts(self) -> Counts:
        """What was done."""
        layers = len(self.problem.graph.layers)
        space = sum(_num_cuts(layers, len(one.ends)) for one in self.skeletons)
        fitting = sum(trial.fits for trial in self.trials.values())
        return Counts(space, fitting, len(self.skeletons), 0, len(self.trials))

    def hunt(self) -> None:
        """Simulate skeletons until no other can win, then move boundaries of the best."""
        ordered = sorted(self.skeletons, key=lambda one: one.estimate_s(one.cut() or ()))
        for skeleton in ordered:
            best = self.best
            if len(self.trials) >= MOST_SIMULATED // 2:
                break
            if best is None or skeleton.bound_s < best.step_time_s:
                self.start(skeleton)
        for trial in self.ranked()[:IMPROVED]:
            self.improve(trial)

    def ranked(self) -> list[Trial]:
        """The best cut of every skeleton, best first."""
        found: dict[int, Trial] = {}
        for trial in self.trials.values():
            known = found.get(id(trial.skeleton))
            if known is None or trial.worth < known.worth:
                found[id(trial.skeleton)] = trial
        return sorted(found.values(), key=lambda trial: trial.worth)


def search_uneven(problem: Problem, watch: Watch) -> SearchResult:
    """The best cuts. Raises Infeasible where nothing fits, UserError for what this space does not know."""
    started = time.perf_counter()
    _check(problem)
    state = Uneven(problem, watch)
    state.skeletons = [
        skeleton for plan in _plans(problem) if (skeleton := priced(problem, plan)) is not None
    ]
    with watch.stoppable():
        state.hunt()
    uniform = [] if problem.cluster.is_mixed else [search_uniform(problem, replace(watch, top=1)).best.plan]
    if state.best is None and not uniform:
        raise Infeasible(
            f"no cut of {problem.graph.name} that was tried fits on {problem.cluster.profile.name}; try more nodes"
        )
    plans = [_cut_plan(trial) for trial in state.ranked() if trial.fits][: watch.top]
    results = [exact(problem, plan) for plan in (*plans, *uniform)]
    results.sort(key=lambda result: result.step_time_s)
    results = results[: watch.top]
    reasons = [
        why_it_wins(results[0], results[1:]),
        *(why_it_loses(other, results[0]) for other in results[1:]),
    ]
    found = tuple(
        candidate(n + 1, result, why) for n, (result, why) in enumerate(zip(results, reasons, strict=True))
    )
    lowest = min((one.bound_s for one in state.skeletons), default=found[0].step_time_s)
    gap = max(0.0, 1 - lowest / found[0].step_time_s)
    return SearchResult(
        found,
        state.counts(),
        "time",
        gap <= 0,
        gap,
        time.perf_counter() - started,
        details_of(problem, results[0].setup, [problem.cluster.nodes]),
    )


def _check(problem: Problem) -> None:
    refuse_optimal(problem, "uneven")
    constraints = problem.constraints
    if problem.objective != "time":
        raise UserError(
            f"objective {problem.objective}: space uneven looks for the shortest step; allowed: time"
        )
    if constraints.portable is not None:
        raise UserError(f"portable {constraints.portable}: not asked of plans in space uneven; allowed: none")
    for name in constraints.fixed:
        if name not in AXES:
            raise UserError(f"--fix {name}: is no axis of space uneven; allowed: {', '.join(AXES)}")


def _plans(problem: Problem) -> Iterator[Plan]:
    """Plans of all skeletons, legal or not."""
    cluster, graph = problem.cluster, problem.graph
    inside = max(part.domain_size for part in cluster.parts)
    world = cluster.world_size
    axes: dict[str, list[Any]] = {
        "tp": [1 << n for n in range(inside.bit_length()) if world % (1 << n) == 0],
        "pp": [n for n in range(2, min(world, len(graph.layers) + 2) + 1) if world % n == 0],
        "micro_batch": [1, 2, 4],
        "recompute": ["none", "selective", "full"],
        "rank_order": list(ORDERS) if cluster.is_mixed else [ORDERS[0]],
        "schedule": list(in_order(problem.constraints.schedules or ("1f1b",), tuple(SCHEDULES))),
    }
    if cluster.is_mixed:
        axes["pp"].insert(0, 1)
    for name, values in problem.constraints.fixed.items():
        wanted = [part.strip() for part in str(values).split(",")]
        numbers = name in ("tp", "pp", "micro_batch")
        typed = [int(value) if numbers and value.isdigit() else value for value in wanted]
        axes[name] = list(in_order(typed, axes[name]))
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        if natural_vpp(chosen["schedule"]) > 1:
            continue
        zero = problem.base.data_parallel.zero or 1
        try:
            yield problem.base.with_values(**chosen, zero=zero, dp=None, layers=None)
        except ValueError as error:
            raise UserError(f"space uneven: {error}") from None


def priced(problem: Problem, plan: Plan) -> Skeleton | None:
    """A skeleton with the times of its layers, None where the layout cannot be."""
    layers, pp = len(problem.graph.layers), plan.mesh.pp
    try:
        job = make_job(problem.graph, problem.cluster, plan, problem.training, problem.stack)
    except UserError:
        return None
    costs, ends = np.zeros((pp, layers)), np.zeros(pp)
    coordinates = job.plan.mesh.coordinates(np.arange(problem.cluster.world_size))
    known: dict[tuple[int, int], dict[str, float]] = {}
    for stage in range(pp):
        ranks = np.flatnonzero(coordinates["pp"] == stage)
        devices = problem.cluster.device_of(ranks)
        table: dict[str, float] = {}
        for device in np.unique(devices).tolist():
            rank = int(ranks[devices == device][0])
            key = (device, problem.cluster.parts.index(_part(problem, rank)))
            if key not in known:
                known[key] = _block_seconds(job, problem, rank, device)
            for name, seconds in known[key].items():
                table[name] = max(table.get(name, 0.0), seconds)
        costs[stage] = [table[name] for name in job.graph.layers]
        ends[0] += table[job.graph.embedding.name] if stage == 0 else 0.0
        ends[-1] += table[job.graph.head.name] if stage == pp - 1 else 0.0
    return Skeleton(plan, job, costs, ends, job.plan.num_microbatches(problem.training.global_batch))


def _part(problem: Problem, rank: int) -> Any:
    first = np.cumsum([part.world_size for part in problem.cluster.parts])
    return problem.cluster.parts[int(np.searchsorted(first, rank, side="right"))]


def _block_seconds(job: Job, problem: Problem, rank: int, device: int) -> dict[str, float]:
    """Forward and backward of every kind of block on a rank, collectives alone on their links."""
    cluster, own = problem.cluster.in_training, job.on(device)
    view = RankView.of(own)
    view = replace(view, context_rank=0) if view.uneven_context else view
    builder = StageBuilder(own, view, Synchronisation.of(own), tuple(range(own.plan.mesh.pp)))
    groups = {kind.name: kind.groups[(kind.groups == rank).any(axis=1)][0] for kind in block_groups(view)}

    def solo_ns(use: CollectiveUse) -> int:
        line = fastest(offers(use.op, groups[use.group], cluster), use.size_bytes).line
        return round(use.count * line.time_s(use.size_bytes) * NS_PER_S)

    found: dict[str, float] = {}
    for piece in (piece for pieces in builder.pieces for piece in pieces):
        if piece.block.name not in found:
            steps, overhead = builder.steps(piece), own.stack.launch.kernel_overhead
            passes = (
                make_segment(phase, solo_ns, slowdown=overhead) for phase in (steps.forward, steps.backward)
            )
            found[piece.block.name] = sum(one.duration_ns for one in passes) / NS_PER_S
    return found


def _cut_plan(trial: Trial) -> Plan:
    return with_cut(trial.skeleton.plan, trial.counts)


def with_cut(plan: Plan, counts: tuple[int, ...]) -> Plan:
    """The plan with so many layers in every stage."""
    return plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"layers": counts})})


def simulated(problem: Problem, skeleton: Skeleton, counts: tuple[int, ...]) -> Trial:
    """The simulated step of a cut."""
    cluster, job = problem.cluster, skeleton.job
    job = replace(job, plan=with_cut(job.plan, counts))
    lowered = lower_job(job, cluster, {"perturbation": problem.perturbation})
    timing = choose_engine("auto", lowered.program)[1](lowered.program)
    fullness = np.zeros(len(counts))
    for one in footprints(lowered, timing, cluster):
        allowed = one.capacity_bytes * (1 - problem.constraints.headroom)
        fullness[one.stage] = max(fullness[one.stage], one.needed_bytes / allowed)
    step_s = timing.makespan_ns / NS_PER_S + problem.stack.launch.step_overhead_s
    return Trial(skeleton, counts, step_s, fullness)


def _num_cuts(layers: int, stages: int) -> int:
    """Cuts of a chain into stages of which those between the ends hold at least one layer."""
    from math import comb

    return 1 if stages == 1 else comb(layers + 1, stages - 1)
