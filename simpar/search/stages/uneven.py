"""The uneven space: how many layers every pipeline stage gets, over nodes of one kind or several.

A skeleton (tp, pp, micro-batch, recomputation, rank order) fixes all but the cut. Branch and bound over both: a
skeleton is bounded by all microbatches on the slowest stage of its best cut; once that is the lowest bound, its cuts
are enumerated and bounded one by one by the schedule's table; the cut with the lowest bound is simulated. When the
lowest bound passes the best simulated step, no cut of any skeleton can beat it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.plan.schedules import natural_vpp
from simpar.program.footprint import footprints
from simpar.search.problem import Problem
from simpar.search.progress import Progress
from simpar.search.result import Counts, SearchResult
from simpar.search.space.axes import LEFT_OUT, ORDERS, divisors
from simpar.search.stages.answers import Answer, chosen_values, even_optimum
from simpar.search.stages.cuts import moves
from simpar.search.stages.skeletons import Pricing, Skeleton
from simpar.simulation import lower_job
from simpar.units import NS_PER_S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Counted = tuple[int, ...]
MICRO_BATCHES = (1, 2, 4)
RECOMPUTE = ("none", "selective", "full")
MOST_SIMULATED = 400
MOST_CUTS = 50_000
"""Cuts of one skeleton that are bounded one by one; where more may win, boundaries are moved instead."""
MEMORY_TRIALS = 4
OTHERS = 2
"""Skeletons to try for each candidate that is listed behind the best."""
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
        """Cuts int64[n, stages] that give a stage which was too full the same layers, or more besides.

        They cannot fit either where a rank allocates in the order of its schedule alone: its passes, one behind the
        other on one stream, each save as much and work with as much as without the further layers, or more; so do
        states, and the allocator's needs grow with both. The order is the same for all cuts: costs that a greedy table
        is made for are sums over all layers. Parameters and gradients that come and go beside the passes, and copies to
        the host, are held for as long as they take, so there nothing is ruled out.
        """
        plan = self.skeleton.plan
        in_order = plan.data_parallel.kind == "ddp" and plan.data_parallel.zero in (0, 1)
        if not in_order or plan.offload.is_used:
            return np.zeros(len(cuts), dtype=bool)
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
    """State of one search; ``open_s`` is the lowest bound of what was left aside, 0 before all skeletons are there."""

    problem: Problem
    progress: Progress
    known_s: float = np.inf
    skeletons: list[Skeleton] = field(default_factory=list)
    trials: dict[tuple[int, Counted], Trial] = field(default_factory=dict)
    bounded: int = 0
    open_s: float = 0.0
    _taken_s: float = np.inf
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
        return min(self.open_s, self._taken_s, self._heap[0][0] if self._heap else np.inf)

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
        self.open_s = np.inf
        while self._heap and self.lowest_s < self.best_s and len(self.trials) < MOST_SIMULATED:
            self._taken_s, _, branch = heapq.heappop(self._heap)
            if isinstance(branch, Skeleton):
                self._branch(branch)
            else:
                self._take(branch)
            self._taken_s = np.inf

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
    plans = list(_plans(problem))
    even = None if problem.cluster.is_mixed else even_optimum(problem, progress)
    answer = Answer(problem, progress, "uneven", even)
    state, pricing = Uneven(problem, progress, answer.even_s), Pricing(problem)
    with progress.stoppable():
        if not progress.interrupted:
            state.skeletons = [one for plan in plans if (one := pricing.skeleton(plan)) is not None]
            state.search()
            state.run_others(progress.top)
    found = [with_cut(trial.skeleton.plan, trial.counts) for trial in state.ranked()[: progress.top]]
    return answer.of(found, state.lowest_s, state.counts())


def _plans(problem: Problem) -> Iterator[Plan]:
    """Plans of all skeletons, legal or not. Raises UserError for values that no plan has."""
    cluster, graph = problem.cluster, problem.graph
    inside, world = max(part.domain_size for part in cluster.parts), cluster.world_size
    offered: dict[str, Sequence[Any]] = {
        "tp": [1 << n for n in range(inside.bit_length()) if world % (1 << n) == 0],
        "pp": divisors(world, len(graph.layers) + 2),
        "micro_batch": MICRO_BATCHES,
        "recompute": RECOMPUTE,
        "rank_order": ORDERS if cluster.is_mixed else ORDERS[:1],
        "schedule": ("1f1b",),
    }
    others: dict[str, Callable[[Any], bool]] = {
        "tp": lambda size: world % size == 0,
        "micro_batch": lambda size: problem.training.global_batch % size == 0,
        "recompute": lambda _: True,
        "rank_order": lambda _: True,
        "schedule": lambda name: natural_vpp(name) == 1 and name not in LEFT_OUT,
    }
    values = chosen_values(problem, "uneven", offered, others)
    zero = problem.base.data_parallel.zero or 1
    for chosen in product(*values.values()):
        axes = dict(zip(values, chosen, strict=True))
        if axes["pp"] == 1 and not cluster.is_mixed:
            continue  # nothing is cut: that is the uniform space
        alike = axes["pp"] == 1 or axes["tp"] * axes["pp"] == world
        if alike and axes["rank_order"] != values["rank_order"][0]:
            continue  # without both axes, either order is the same layout
        try:
            yield problem.base.with_values(**axes, zero=zero, dp=None, layers=None)
        except ValueError as error:
            raise UserError(f"space uneven: {error}") from None


def with_cut(plan: Plan, counts: tuple[int, ...]) -> Plan:
    """The plan with so many layers in every stage."""
    return plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"layers": counts})})


def simulated(problem: Problem, skeleton: Skeleton, counts: tuple[int, ...]) -> Trial:
    """The simulated step of a cut."""
    cluster, job, share = problem.cluster, skeleton.job, 1.0 - problem.constraints.headroom
    job = replace(job, plan=with_cut(job.plan, counts))
    lowered = lower_job(job, cluster, {"perturbation": problem.perturbation})
    timing = choose_engine("auto", lowered.program)[1](lowered.program)
    fullness = np.zeros(len(counts))
    for one in footprints(lowered, timing, cluster):
        needed_bytes = one.needed_bytes if share == 1.0 else max(one.needed_bytes, one.held_bytes / share)
        fullness[one.stage] = max(fullness[one.stage], needed_bytes / one.capacity_bytes)
    step_s = timing.makespan_ns / NS_PER_S + problem.stack.launch.step_overhead_s
    return Trial(skeleton, counts, step_s, fullness)
