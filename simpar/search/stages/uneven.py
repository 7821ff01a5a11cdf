"""The uneven space: how many layers every pipeline stage gets, over nodes of one kind or several.

A skeleton (tp, pp, micro-batch, recomputation, rank order) fixes all but the cut. Branch and bound over both: a
skeleton is bounded by all microbatches on the slowest stage of its best cut; once that is the lowest bound, its cuts
are enumerated and bounded one by one by the schedule's table; the cut with the lowest bound is simulated. When the
lowest bound passes the best simulated step, no cut of any skeleton can beat it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.engine import choose_engine
from simpar.errors import Infeasible, UserError
from simpar.plan.check import stage_layers
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, natural_vpp
from simpar.program.footprint import footprints
from simpar.report.result import Result
from simpar.search.answer.explanations import why_it_loses, why_it_wins
from simpar.search.certify.exact import candidate, exact
from simpar.search.problem import Problem, details_of, refuse_optimal
from simpar.search.progress import Progress
from simpar.search.result import Counts, SearchResult
from simpar.search.space.rows import in_order
from simpar.search.stages.cuts import moves
from simpar.search.stages.skeletons import Pricing, Skeleton
from simpar.search.uniform import search_uniform
from simpar.simulation import lower_job
from simpar.units import NS_PER_S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Counted = tuple[int, ...]
ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp")
MICRO_BATCHES = (1, 2, 4)
RECOMPUTE = ("none", "selective", "full")
MOST_SIMULATED = 400
MOST_CUTS = 50_000
"""Cuts of one skeleton that are bounded one by one; where more may win, boundaries are moved instead."""
MEMORY_TRIALS = 4
OTHERS = 2
"""Skeletons to try for each candidate that is listed behind the best."""
AXES = ("tp", "pp", "micro_batch", "recompute", "rank_order", "schedule")
BYTES_LEFT = 0.98
"""How much of the memory a stage is let have that was too full, of what would just fit."""


@dataclass(frozen=True)
class Trial:
    """A simulated plan: seconds of the step, and for every stage bytes needed over bytes allowed."""

    skeleton: Skeleton
    counts: Counted
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

    def rules_out(self, cuts: Ints) -> NDArray[np.bool_]:
        """Cuts int64[n, stages] that give a stage which was too full the same layers, or more besides."""
        over = np.flatnonzero(self.fullness > 1)
        end, own = np.cumsum(cuts, axis=1), np.cumsum(self.counts)
        begin = (end - cuts)[:, over] <= (own - np.array(self.counts))[over]
        return np.asarray((begin & (end[:, over] >= own[over])).any(axis=1))


@dataclass
class Branch:
    """A skeleton whose cuts are bounded one by one, those that may still win by their bounds."""

    skeleton: Skeleton
    cuts: Ints
    bounds_s: Floats

    @staticmethod
    def of(skeleton: Skeleton, cuts: Ints) -> Branch:
        """Bound cuts and put them in the order of their bounds."""
        bounds_s = skeleton.bounds_s(cuts)
        order = np.argsort(bounds_s, kind="stable")
        return Branch(skeleton, cuts[order], bounds_s[order])

    @property
    def bound_s(self) -> float:
        """The lowest bound of a cut that may still win."""
        return float(self.bounds_s[0]) if len(self.bounds_s) else np.inf

    def pop(self) -> Counted:
        """The cut with the lowest bound, which is bounded no longer."""
        first = tuple(int(number) for number in self.cuts[0])
        self.keep(np.arange(len(self.cuts)) > 0)
        return first

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Look at some of the cuts only."""
        self.cuts, self.bounds_s = self.cuts[which], self.bounds_s[which]


@dataclass
class Uneven:
    """State of one search; ``open_s`` is the lowest bound of what was left aside."""

    problem: Problem
    progress: Progress
    known_s: float = np.inf
    skeletons: list[Skeleton] = field(default_factory=list)
    trials: dict[tuple[int, Counted], Trial] = field(default_factory=dict)
    bounded: int = 0
    open_s: float = np.inf
    _heap: list[tuple[float, int, Skeleton | Branch]] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=count)

    @property
    def best(self) -> Trial | None:
        """The fastest plan that fits."""
        fitting = [trial for trial in self.trials.values() if trial.fits]
        return min(fitting, key=lambda trial: trial.step_time_s, default=None)

    @property
    def best_s(self) -> float:
        """The step to beat."""
        best = self.best
        return min(self.known_s, best.step_time_s if best else np.inf)

    @property
    def lowest_s(self) -> float:
        """Seconds below which no plan that was not simulated gets."""
        return min(self.open_s, self._heap[0][0] if self._heap else np.inf)

    def run(self, skeleton: Skeleton, counts: Counted) -> Trial:
        """The simulated step of a cut."""
        key = (id(skeleton), counts)
        if key not in self.trials:
            self.trials[key] = simulated(self.problem, skeleton, counts)
            best = self.best_s
            self.progress.report("simulating", self.counts(), best if np.isfinite(best) else None)
        return self.trials[key]

    def start(self, skeleton: Skeleton) -> Trial | None:
        """The best cut by price; where stages are too full, the best that leaves them fewer layers."""
        most, trial = np.full(skeleton.num_stages, skeleton.costs.shape[1]), None
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

    def improve(self, trial: Trial) -> None:
        """Boundaries moved by a layer as long as that helps."""
        while len(self.trials) < MOST_SIMULATED:
            found = [self.run(trial.skeleton, counts) for counts in moves(trial.counts)]
            better = min(found, key=lambda one: one.worth, default=trial)
            if better.worth >= trial.worth:
                return
            trial = better

    def counts(self) -> Counts:
        """What was done."""
        space = sum(one.num_cuts for one in self.skeletons)
        fitting = sum(trial.fits for trial in self.trials.values())
        return Counts(space, fitting, len(self.skeletons) + self.bounded, self.bounded, len(self.trials))

    def search(self) -> None:
        """Simulate the cut with the lowest bound until no other can win."""
        for skeleton in sorted(self.skeletons, key=lambda one: one.promise_s):
            if np.isfinite(self.best_s) or len(self.trials) >= MOST_SIMULATED // 2:
                break
            self.start(skeleton)
        for skeleton in self.skeletons:
            self._push(skeleton)
        while self._heap and self.lowest_s < self.best_s and len(self.trials) < MOST_SIMULATED:
            _, _, branch = heapq.heappop(self._heap)
            if isinstance(branch, Skeleton):
                self._branch(branch)
            else:
                self._take(branch)

    def run_others(self, wanted: int) -> None:
        """Simulate the most promising cut of other skeletons, until there are so many that fit."""
        tried = {number for number, _ in self.trials}
        others = (one for one in self.skeletons if id(one) not in tried)
        for skeleton in sorted(others, key=lambda one: one.promise_s)[: OTHERS * wanted]:
            if len(self.ranked()) >= wanted:
                return
            self.start(skeleton)

    def _push(self, branch: Skeleton | Branch) -> None:
        if np.isfinite(branch.bound_s):
            heapq.heappush(self._heap, (branch.bound_s, next(self._number), branch))

    def _branch(self, skeleton: Skeleton) -> None:
        """Bound the cuts of a skeleton that may win; of too many, simulate what looks best."""
        cuts = skeleton.cuts_below(self.best_s, MOST_CUTS)
        if cuts is None:
            self.open_s = min(self.open_s, skeleton.bound_s)
            trial = self.start(skeleton)
            if trial is not None:
                self.improve(trial)
            return
        self.bounded += len(cuts)
        self._push(Branch.of(skeleton, cuts))

    def _take(self, branch: Branch) -> None:
        """Simulate the first cut of a branch, and leave out what cannot fit because it did not."""
        trial = self.run(branch.skeleton, branch.pop())
        if not trial.fits:
            branch.keep(~trial.rules_out(branch.cuts))
        self._push(branch)

    def ranked(self) -> list[Trial]:
        """The best cut of every skeleton that fits, best first."""
        found: dict[int, Trial] = {}
        for trial in sorted(self.trials.values(), key=lambda one: one.step_time_s):
            if trial.fits:
                found.setdefault(id(trial.skeleton), trial)
        return list(found.values())


def search_uneven(problem: Problem, progress: Progress) -> SearchResult:
    """The best cuts. Raises Infeasible where nothing fits, UserError for what this space does not know."""
    started = time.perf_counter()
    _check(problem)
    even = None if problem.cluster.is_mixed else _even(problem, progress)
    state = Uneven(problem, progress, even.best.step_time_s if even else np.inf)
    pricing = Pricing(problem)
    state.skeletons = [one for plan in _plans(problem) if (one := pricing.skeleton(plan)) is not None]
    with progress.stoppable():
        state.search()
        state.run_others(progress.top)
    if state.best is None and even is None:
        raise Infeasible(
            f"no cut of {problem.graph.name} that was tried fits on {problem.cluster.profile.name}; try more nodes"
        )
    plans = [with_cut(trial.skeleton.plan, trial.counts) for trial in state.ranked()[: progress.top]]
    results = [exact(problem, plan) for plan in ([even.best.plan] if even else []) + plans]
    results = sorted(_distinct(results), key=lambda result: result.step_time_s)[: progress.top]
    reasons = [
        why_it_wins(results[0], results[1:]),
        *(why_it_loses(other, results[0]) for other in results[1:]),
    ]
    found = tuple(
        candidate(n + 1, result, why) for n, (result, why) in enumerate(zip(results, reasons, strict=True))
    )
    lowest_s = min(state.lowest_s, found[0].step_time_s * (1 - even.gap) if even else np.inf)
    gap = max(0.0, 1 - lowest_s / found[0].step_time_s)
    details = details_of(problem, results[0].setup, [problem.cluster.nodes])
    return SearchResult(
        found,
        state.counts(),
        "time",
        gap <= 0 and not progress.interrupted,
        gap,
        time.perf_counter() - started,
        {
            **details,
            "space": "uneven",
            "lower_bound_s": min(lowest_s, found[0].step_time_s),
            "stopped": progress.stopped,
        },
    )


def _even(problem: Problem, progress: Progress) -> SearchResult | None:
    """The optimum of even cuts, where one fits."""
    brief = replace(progress, top=1, brief=True)
    try:
        return search_uniform(problem, brief)
    except Infeasible:
        return None
    finally:
        progress.ends_with(brief)


def _distinct(results: list[Result]) -> list[Result]:
    """Every layout once: an even cut is the same whether its layers are counted out or not."""
    found: dict[str, Result] = {}
    for result in results:
        plan = Plan.model_validate(result.setup.plan)
        counts = stage_layers(plan, result.setup.model["layers"])
        found.setdefault(with_cut(plan, counts).model_dump_json(), result)
    return list(found.values())


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
        "micro_batch": list(MICRO_BATCHES),
        "recompute": list(RECOMPUTE),
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
        alike = chosen["pp"] == 1 or chosen["tp"] * chosen["pp"] == world
        if alike and chosen["rank_order"] != axes["rank_order"][0]:
            continue  # without both axes, either order is the same layout
        zero = problem.base.data_parallel.zero or 1
        try:
            yield problem.base.with_values(**chosen, zero=zero, dp=None, layers=None)
        except ValueError as error:
            raise UserError(f"space uneven: {error}") from None


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
