"""The uneven space: how many layers every pipeline stage gets, on nodes of one or several kinds.

A skeleton (tp, pp, micro-batch, recomputation, rank order) fixes everything but the cut. Branch and bound runs over
both: a skeleton is bounded by all microbatches on the slowest stage of its best cut. Once that is the lowest bound, its
cuts are enumerated and bounded one by one by the schedule's table; the cut with the lowest bound is simulated. When the
lowest bound passes the best simulated step, no cut of any skeleton can beat it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.architectures.recompute import SIMPLE
from simpar.dataclass import dataclass
from simpar.errors import TooManyOps, UserError
from simpar.plan.choices.choice import divisors
from simpar.plan.choices.mesh import ORDERS
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, default_schedule
from simpar.planner.certify.exact import SimulatedPlan
from simpar.planner.problem import Problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import Counts, SearchResult
from simpar.planner.stages.answers import StagesSearch, Value, list_axis_values, search_even_stages
from simpar.planner.stages.cuts import find_fastest_cut, moves
from simpar.planner.stages.skeletons import Skeleton, SkeletonPrices
from simpar.units import Floats, Ints

Cut = tuple[int, ...]
MICRO_BATCHES = (1, 2, 4)
MOST_SIMULATED = 400
MOST_CUTS = 50_000
"""The most cuts of one skeleton that are bounded one by one; if more may win, boundaries are moved instead."""
MEMORY_TRIALS = 4
SKELETONS_PER_CANDIDATE = 2
"""Skeletons to try per candidate that is listed after the best."""
BYTES_LEFT = 0.98
"""The share of the limit that blocks of an overfull stage are planned for in the next trial."""


@dataclass(eq=False)
class Branch:
    """Cuts of a skeleton that may still win, by ascending bound; one bound stands for all until they are listed.

    If the branch ``is_large``, its cuts have more ops than are built: they keep their bounds.
    """

    skeleton: Skeleton
    bounds_s: Floats
    cuts: Ints | None = None
    is_large: bool = False

    @property
    def bound_s(self) -> float:
        """The lowest bound of a cut that may still win, in seconds."""
        return float(self.bounds_s[0]) if len(self.bounds_s) else np.inf


@dataclass
class Uneven(StagesSearch):
    """State of one search over ``plans`` of all skeletons. Raises UserError for anything this space does not have.

    ``trials`` are simulated cuts, None for a cut with more ops than are built.
    """

    plans: list[Plan] = field(init=False)
    branches: list[Branch] = field(default_factory=list)
    trials: dict[tuple[Skeleton, Cut], SimulatedPlan | None] = field(default_factory=dict)
    bounded: int = 0

    space = "uneven"
    knows_fits = False

    def __post_init__(self) -> None:
        problem, cluster = self.problem, self.problem.cluster
        inside, world = max(part.domain_size for part in cluster.parts), cluster.world_size
        offered: dict[str, Sequence[Value]] = {
            "tp": [1 << n for n in range(inside.bit_length()) if world % (1 << n) == 0],
            "pp": divisors(world, len(problem.graph.layers) + 2),
            "micro_batch": MICRO_BATCHES,
            "recompute": SIMPLE,
            "order": ORDERS if cluster.is_mixed else ORDERS[:1],
            "schedule": (default_schedule(),),
        }
        others: dict[str, Sequence[Value] | None] = {
            "tp": divisors(world),
            "micro_batch": divisors(problem.training.global_batch),
            "recompute": None,
            "order": None,
            "schedule": [
                each.name for each in SCHEDULES.values() if each.chunks == 1 and each.searched == "by default"
            ],
        }
        self.values = list_axis_values(problem, self.space, offered, others)
        self.plans = list(self._plans())

    def _plans(self) -> Iterator[Plan]:
        """Plans of all skeletons, legal or not. Raises UserError for values that no plan has."""
        cluster, base = self.problem.cluster, self.problem.base
        for chosen in product(*self.values.values()):
            axes: dict[str, Any] = dict(zip(self.values, chosen, strict=True))
            try:
                rest: dict[str, Any] = {"rank_order": axes.pop("order"), "zero": base.data_parallel.zero or 1}
                plan = base.with_values(**axes, **rest, dp=None, layers=None)
            except UserError as error:
                raise UserError(f"space uneven: {error}") from None
            if plan.mesh.pp == 1 and not cluster.is_mixed:
                continue  # nothing to cut: the uniform space has it
            alike = plan.mesh.pp == 1 or plan.mesh.tp * plan.mesh.pp == cluster.world_size
            if alike and rest["rank_order"] != self.values["order"][0]:
                continue  # both orders are the same layout unless both axes are used
            yield plan

    @property
    def lowest_s(self) -> float:
        """A lower bound in seconds of all plans that were not simulated."""
        return min([self.open_s, *(branch.bound_s for branch in self.branches)])

    def unbuilt(self) -> int:
        """The number of cuts that may win but whose Program has more ops than are built."""
        large = [branch for branch in self.branches if branch.is_large]
        listed = sum(int((one.bounds_s < self.best_s).sum()) for one in large if one.cuts is not None)
        return listed + sum(one.skeleton.num_cuts for one in large if one.cuts is None)

    def simulate(self, skeleton: Skeleton, cut: Cut) -> SimulatedPlan | None:
        """The simulated step of a cut, run now if need be; None if its Program has more ops than are built."""
        key = skeleton, cut
        if key not in self.trials:
            try:
                self.trials[key] = self.measured(skeleton.plan(cut)).release()
            except TooManyOps:
                self.trials[key] = None
        return self.trials[key]

    def start(self, skeleton: Skeleton) -> Cut | None:
        """Simulate the cut with the fastest slowest stage; while stages are too full, cuts with fewer blocks there.

        Returns the last cut simulated, or None.
        """
        most, last = np.full(len(skeleton.costs_ns), skeleton.costs_ns.shape[1]), None
        for _ in range(MEMORY_TRIALS):
            cut = find_fastest_cut(skeleton.costs_ns, most)
            done = None if cut is None else self.simulate(skeleton, cut)
            if cut is None or done is None:
                break
            last = cut
            if done.fits:
                break
            full, held = fullness(done), np.array(cut)
            less = np.floor(held / full * BYTES_LEFT).astype(np.int64)
            most = np.where(full > 1, np.minimum(less, held - 1), most)
        return last

    def improve(self, skeleton: Skeleton, cut: Cut) -> None:
        """Move stage boundaries by a block as long as that helps."""
        while self.simulated < MOST_SIMULATED:
            tried = {each: self.simulate(skeleton, each) for each in (cut, *moves(cut))}
            best = min(tried, key=lambda each: sort_key(tried[each]))
            if best == cut:
                return
            cut = best

    def counts(self) -> Counts:
        """Numbers of cuts by how far they were examined."""
        space = sum(branch.skeleton.num_cuts for branch in self.branches)
        fitting = sum(done is not None and done.fits for done in self.trials.values())
        return Counts(space, fitting, len(self.branches) + self.bounded, self.bounded, self.simulated)

    def run(self) -> None:
        """Simulate the cut with the lowest bound until no other can win, then those listed after it."""
        pricing = SkeletonPrices(self.problem)
        skeletons = [one for plan in self.plans if (one := pricing.skeleton(plan)) is not None]
        self.branches = [Branch(one, np.array([one.bound_s])) for one in skeletons]
        self.open_s = np.inf
        skeletons.sort(key=lambda one: one.promise_s)
        for skeleton in skeletons:
            if np.isfinite(self.best_s) or self.simulated >= MOST_SIMULATED // 2:
                break
            self.start(skeleton)
        self._certify()
        tried = {skeleton for skeleton, _ in self.trials}
        others = [one for one in skeletons if one not in tried]
        for skeleton in others[: SKELETONS_PER_CANDIDATE * self.progress.top]:
            if len(self.ranked()) >= self.progress.top:
                return
            self.start(skeleton)

    def _certify(self) -> None:
        """Simulate the cut with the lowest bound until no other can win."""
        while self.simulated < MOST_SIMULATED:
            built = (branch for branch in self.branches if not branch.is_large)
            branch = min(built, key=lambda one: one.bound_s, default=None)
            if branch is None or branch.bound_s >= self.best_s:
                return
            (self._list_cuts if branch.cuts is None else self._take)(branch)
            self.branches.append(branch)  # it now comes last among equals, so that none is skipped
            self.branches.remove(branch)

    def _list_cuts(self, branch: Branch) -> None:
        """Bound the cuts of a skeleton that may win; if there are too many, simulate what looks best."""
        skeleton = branch.skeleton
        cuts = skeleton.cuts_below(self.best_s, MOST_CUTS)
        if cuts is not None:
            bounds_s = skeleton.bounds_s(cuts)
            order = np.argsort(bounds_s, kind="stable")
            branch.cuts, branch.bounds_s = cuts[order], bounds_s[order]
            self.bounded += len(cuts)
        elif (cut := self.start(skeleton)) is None:
            branch.is_large = True
        else:
            self.open_s, branch.bounds_s = min(self.open_s, branch.bound_s), np.zeros(0)
            self.improve(skeleton, cut)

    def _take(self, branch: Branch) -> None:
        """Simulate the first cut of a branch; if it does not fit, drop the cuts that cannot fit either."""
        assert branch.cuts is not None, "only cuts that are listed are taken"
        done = self.simulate(branch.skeleton, tuple(branch.cuts[0].tolist()))
        if done is None:
            branch.is_large = True  # all cuts have as many passes and messages
            return
        left = np.arange(len(branch.cuts)) > 0
        if not done.fits:
            left &= ~rules_out(done, branch.cuts, 0)
        branch.cuts, branch.bounds_s = branch.cuts[left], branch.bounds_s[left]

    def ranked(self) -> list[SimulatedPlan]:
        """The best cut of every skeleton that fits, best first."""
        best_of: dict[Skeleton, SimulatedPlan] = {}
        fitting = [(skeleton, done) for (skeleton, _), done in self.trials.items() if done and done.fits]
        for skeleton, done in sorted(fitting, key=lambda one: one[1].step_time_s):
            best_of.setdefault(skeleton, done)
        return list(best_of.values())


def search_uneven(problem: Problem, progress: SearchProgress) -> SearchResult:
    """The best cuts. Raises Infeasible if nothing fits, UserError for anything this space does not have."""
    return Uneven(problem, progress).answer(search_even_stages(problem, progress))


def fullness(done: SimulatedPlan) -> Floats:
    """The ratio of need to memory limit of every stage: float64[stages], or [1] if stages are not known."""
    return np.array(done.fullness or (0.0,))


def sort_key(done: SimulatedPlan | None) -> tuple[float, float]:
    """A sort key, smaller is better: memory above the limit, then time."""
    if done is None:
        return np.inf, np.inf
    return float(np.maximum(fullness(done) - 1, 0).sum()), done.step_time_s


def rules_out(done: SimulatedPlan, cuts: Ints, own: int) -> NDArray[np.bool_]:
    """Which of ``cuts`` int64[n, stages] give a stage that is too full in the simulated cut the same blocks or more.

    ``done`` is the simulated cut and ``own`` its index in ``cuts``. Such cuts cannot fit either if a rank allocates in
    the order of its schedule alone: its passes run one after the other on one stream, and each saves and works with at
    least as much as without the additional layers. The same holds for states, and the allocator's needs grow with both.
    The order is the same for all cuts, because costs that a greedy table is made for are sums over all layers.
    Parameters and gradients that come and go beside the passes, and copies to the host, are held for as long as they
    take; with these, nothing is ruled out.
    """
    data = done.plan.data_parallel
    if data.kind != "ddp" or data.zero not in (0, 1) or done.plan.offload.is_used:
        return np.zeros(len(cuts), dtype=bool)
    over = np.flatnonzero(fullness(done) > 1)
    end = np.cumsum(cuts, axis=1)
    begin, end = (end - cuts)[:, over], end[:, over]
    return np.asarray(((begin <= begin[own]) & (end >= end[own])).any(axis=1))
