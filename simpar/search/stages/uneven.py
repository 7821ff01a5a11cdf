"""The uneven space: how many layers every pipeline stage gets, over nodes of one kind or several.

A skeleton (tp, pp, micro-batch, recomputation, rank order) fixes all but the cut. Branch and bound over both: a
skeleton is bounded by all microbatches on the slowest stage of its best cut; once that is the lowest bound, its cuts
are enumerated and bounded one by one by the schedule's table; the cut with the lowest bound is simulated. When the
lowest bound passes the best simulated step, no cut of any skeleton can beat it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, natural_vpp
from simpar.search.certify.exact import Exact
from simpar.search.problem import Problem
from simpar.search.progress import Progress
from simpar.search.result import Counts, SearchResult
from simpar.search.space.axes import LEFT_OUT, ORDERS, divisors
from simpar.search.stages.answers import StagesSearch, Value, chosen_values, even_optimum
from simpar.search.stages.cuts import fastest_cut, moves
from simpar.search.stages.skeletons import Pricing, Skeleton

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
    """A simulated cut of a skeleton."""

    skeleton: Skeleton
    counts: Counted
    done: Exact

    @property
    def fullness(self) -> Floats:
        """Of every stage, memory that it takes over what it may: float64[stages]."""
        return np.array(self.done.fullness or (0.0,) * len(self.counts))

    @property
    def worth(self) -> tuple[float, float]:
        """What is smaller is better: memory that is too much, then time."""
        return float(np.maximum(self.fullness - 1, 0).sum()), self.done.step_time_s

    def rules_out(self, cuts: Ints) -> NDArray[np.bool_]:
        """Cuts int64[n, stages] that give a stage which was too full the same layers, or more besides.

        They cannot fit either where a rank allocates in the order of its schedule alone: its passes, one behind the
        other on one stream, each save as much and work with as much as without the further layers, or more; so do
        states, and the allocator's needs grow with both. The order is the same for all cuts: costs that a greedy table
        is made for are sums over all layers. Parameters and gradients that come and go beside the passes, and copies to
        the host, are held for as long as they take, so there nothing is ruled out.
        """
        plan = self.skeleton.job.plan
        in_order = plan.data_parallel.kind == "ddp" and plan.data_parallel.zero in (0, 1)
        if not in_order or plan.offload.is_used:
            return np.zeros(len(cuts), dtype=bool)
        over = np.flatnonzero(self.fullness > 1)
        end, own = np.cumsum(cuts, axis=1), np.cumsum(self.counts)
        begin = (end - cuts)[:, over] <= (own - np.array(self.counts))[over]
        return np.asarray((begin & (end[:, over] >= own[over])).any(axis=1))


@dataclass(eq=False)
class Branch:
    """Cuts of a skeleton that may still win, in the order of their bounds; one bound for all until they are listed."""

    skeleton: Skeleton
    bounds_s: Floats
    cuts: Ints | None = None

    @property
    def bound_s(self) -> float:
        """The lowest bound of a cut that may still win."""
        return float(self.bounds_s[0]) if len(self.bounds_s) else np.inf


@dataclass
class Uneven(StagesSearch):
    """State of one search over ``plans`` of all skeletons. Raises UserError for what this space does not know."""

    plans: list[Plan] = field(init=False)
    skeletons: list[Skeleton] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    trials: dict[tuple[Skeleton, Counted], Trial] = field(default_factory=dict)
    bounded: int = 0

    space = "uneven"

    def __post_init__(self) -> None:
        problem, cluster = self.problem, self.problem.cluster
        inside, world = max(part.domain_size for part in cluster.parts), cluster.world_size
        offered: dict[str, Sequence[Value]] = {
            "tp": [1 << n for n in range(inside.bit_length()) if world % (1 << n) == 0],
            "pp": divisors(world, len(problem.graph.layers) + 2),
            "micro_batch": MICRO_BATCHES,
            "recompute": RECOMPUTE,
            "order": ORDERS if cluster.is_mixed else ORDERS[:1],
            "schedule": ("1f1b",),
        }
        others: dict[str, Sequence[Value] | None] = {
            "tp": divisors(world),
            "micro_batch": divisors(problem.training.global_batch),
            "recompute": None,
            "order": None,
            "schedule": [name for name in SCHEDULES if natural_vpp(name) == 1 and name not in LEFT_OUT],
        }
        self.values = chosen_values(problem, self.space, offered, others)
        self.plans = list(self._plans())

    def _plans(self) -> Iterator[Plan]:
        """Plans of all skeletons, legal or not. Raises UserError for values that no plan has."""
        cluster, base = self.problem.cluster, self.problem.base
        for chosen in product(*self.values.values()):
            axes = dict(zip(self.values, chosen, strict=True))
            try:
                rest = {"rank_order": axes.pop("order"), "zero": base.data_parallel.zero or 1}
                plan = base.with_values(**axes, **rest, dp=None, layers=None)
            except ValueError as error:
                raise UserError(f"space uneven: {error}") from None
            if plan.mesh.pp == 1 and not cluster.is_mixed:
                continue  # nothing is cut: that is the uniform space
            alike = plan.mesh.pp == 1 or plan.mesh.tp * plan.mesh.pp == cluster.world_size
            if alike and rest["rank_order"] != self.values["order"][0]:
                continue  # without both axes, either order is the same layout
            yield plan

    @property
    def lowest_s(self) -> float:
        """Seconds below which no plan that was not simulated gets."""
        return min([self.open_s, *(branch.bound_s for branch in self.branches)])

    def simulate(self, skeleton: Skeleton, counts: Counted) -> Trial:
        """A cut as it was simulated, or is now."""
        key = skeleton, counts
        if key not in self.trials:
            done = self.measured(with_cut(skeleton.job.plan, counts))
            self.trials[key] = Trial(skeleton, counts, done.alone)
        return self.trials[key]

    def start(self, skeleton: Skeleton) -> Trial | None:
        """The best cut by price; where stages are too full, the best that leaves them fewer layers."""
        most, trial = np.full(len(skeleton.costs), skeleton.costs.shape[1]), None
        for _ in range(MEMORY_TRIALS):
            counts = fastest_cut(skeleton.costs, skeleton.ends, most)
            if counts is None:
                break
            trial = self.simulate(skeleton, counts)
            if trial.done.fits:
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
            found = [self.simulate(trial.skeleton, counts) for counts in moves(trial.counts)]
            better = min(found, key=lambda one: one.worth, default=trial)
            if better.worth >= trial.worth:
                return
            trial = better

    def counts(self) -> Counts:
        """What was done."""
        space = sum(one.num_cuts for one in self.skeletons)
        fitting = sum(trial.done.fits for trial in self.trials.values())
        return Counts(space, fitting, len(self.skeletons) + self.bounded, self.bounded, len(self.trials))

    def run(self) -> None:
        """Simulate the cut with the lowest bound until no other can win, then what is listed behind it."""
        pricing = Pricing(self.problem)
        self.skeletons = [one for plan in self.plans if (one := pricing.skeleton(plan)) is not None]
        self._certify()
        tried = {skeleton for skeleton, _ in self.trials}
        others = [one for one in self.skeletons if one not in tried]
        for skeleton in sorted(others, key=lambda one: one.promise_s)[: OTHERS * self.progress.top]:
            if len(self.ranked()) >= self.progress.top:
                return
            self.start(skeleton)

    def _certify(self) -> None:
        """Simulate the cut with the lowest bound until no other can win."""
        for skeleton in sorted(self.skeletons, key=lambda one: one.promise_s):
            if np.isfinite(self.best_s) or len(self.trials) >= MOST_SIMULATED // 2:
                break
            self.start(skeleton)
        self.branches = [Branch(one, np.array([one.bound_s])) for one in self.skeletons]
        self.open_s = np.inf
        while self.lowest_s < self.best_s and len(self.trials) < MOST_SIMULATED:
            branch = min(self.branches, key=lambda one: one.bound_s)
            if not np.isfinite(branch.bound_s):
                return
            (self._list_cuts if branch.cuts is None else self._take)(branch)
            self.branches.append(
                branch
            )  # among equals it is the last now; in this order none is ever missing
            self.branches.remove(branch)

    def _list_cuts(self, branch: Branch) -> None:
        """Bound the cuts of a skeleton that may win; of too many, simulate what looks best."""
        skeleton = branch.skeleton
        cuts = skeleton.cuts_below(self.best_s, MOST_CUTS)
        if cuts is not None:
            bounds_s = skeleton.bounds_s(cuts)
            order = np.argsort(bounds_s, kind="stable")
            branch.cuts, branch.bounds_s = cuts[order], bounds_s[order]
            self.bounded += len(cuts)
            return
        self.open_s, branch.bounds_s = min(self.open_s, branch.bound_s), np.zeros(0)
        trial = self.start(skeleton)
        if trial is not None:
            self.improve(trial)

    def _take(self, branch: Branch) -> None:
        """Simulate the first cut of a branch, and leave out what cannot fit because it did not."""
        assert branch.cuts is not None, "only cuts that are listed are taken"
        trial = self.simulate(branch.skeleton, tuple(branch.cuts[0].tolist()))
        left = np.arange(len(branch.cuts)) > 0
        if not trial.done.fits:
            left &= ~trial.rules_out(branch.cuts)
        branch.cuts, branch.bounds_s = branch.cuts[left], branch.bounds_s[left]

    def ranked(self) -> list[Exact]:
        """The best cut of every skeleton that fits, best first."""
        found: dict[Skeleton, Exact] = {}
        for trial in sorted(self.trials.values(), key=lambda one: one.done.step_time_s):
            if trial.done.fits:
                found.setdefault(trial.skeleton, trial.done)
        return list(found.values())


def search_uneven(problem: Problem, progress: Progress) -> SearchResult:
    """The best cuts. Raises Infeasible where nothing fits, UserError for what this space does not know."""
    return Uneven(problem, progress).answer(even_optimum(problem, progress))


def with_cut(plan: Plan, counts: tuple[int, ...]) -> Plan:
    """The plan with so many layers in every stage."""
    return plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"layers": counts})})
