"""The frontier: rows with lower bounds, sharpened where it pays: kernels, passes, whole steps, sweeps, simulations.

The row with the lowest bound is always examined next, together with others that can share the next, more expensive
bound. A row whose bound is no better than the incumbent is never examined again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.power import dynamic_power_share
from simpar.dataclass import dataclass
from simpar.errors import TooManyOps
from simpar.plan.choices import AXES, names_that_decide
from simpar.plan.choices.choice import BLOCKS, OPS, SHAPE, TABLE, TRAFFIC
from simpar.plan.choices.choice import KERNELS as BY_KERNELS
from simpar.plan.choices.data_parallel import fully_sharded
from simpar.plan.choices.memory import select_undecided
from simpar.plan.choices.mesh import LABELLED
from simpar.plan.choices.pipeline import select_two_ended
from simpar.plan.schedules import looks_at_costs, producer_of
from simpar.planner.bound.batched_sweep import Sweeps
from simpar.planner.bound.data_parallel import Configurations
from simpar.planner.bound.dualpipe import asked_kernels_bound_ns, kernels_bound_ns
from simpar.planner.bound.pipelines import Pipelines
from simpar.planner.bound.steps import StepBounds
from simpar.planner.certify.exact import BY_TIME, Known, Rates, SimulatedPlan, measure, objective_rates, sweep_ns
from simpar.planner.certify.held_steps import HeldSteps
from simpar.planner.certify.openings import Openings
from simpar.planner.certify.token_slices import SliceBounds, select_sliced, with_slices
from simpar.planner.problem import Problem
from simpar.planner.space.fit import bytes_with_table, needs
from simpar.planner.space.jobs import RowJobs, plan_of
from simpar.planner.space.portable import refusals
from simpar.planner.space.recomputation import RecomputeBounds, alike, decide
from simpar.planner.space.table import Rows, factorize
from simpar.program.emission.collective_prices import Added, Prices
from simpar.units import NS_PER_S, Flags, Floats, Ints, unique

KERNELS, PASSES, STEP, TABLED, SWEPT, EXACT = range(6)
MAX_TRIES = 3
TINY = 1e-300
BOUND_BAND = 1.02  # rows with bounds up to this factor above the lowest are examined with it
PASS_BATCH, STEP_BATCH, SWEEP_BATCH = 16384, 16384, 64
DEGREES = tuple(axis.name for axis in AXES if axis.name in LABELLED)
FAMILY, FAMILIES = (*DEGREES, "zero"), 4
PIPELINES = tuple(dict.fromkeys((*DEGREES, *names_that_decide(SHAPE), "order")))
LAYOUT_AXES = tuple(
    name for name in dict.fromkeys(names_that_decide(BLOCKS) + names_that_decide(SHAPE)) if name != "vpp"
)
"""Axes in which layouts differ; the others make variants of a layout."""
MAX_PASS_BOUNDS, MAX_PROMISING, MANY_MICROBATCHES = 512, 48, 40
"""With so many microbatches or more, tables with few of them in flight are bounded by how they begin first."""


@dataclass
class Frontier:
    """Rows that fit, with the lower bound of each in seconds, the bound's level, and the memory that each needs.

    The objective of a row is at least what ``rates`` make of its bound and, for energy, of ``asked_s``: kernel seconds
    weighted with their power demand above waiting. ``simulated`` holds the rows that were simulated, in Programs of
    ``num_ops`` ops in all; those that do not fit are dropped. ``unbuilt`` are rows whose Programs have more ops than
    are built; they keep their bounds.
    """

    rows: Rows
    sweeps: Sweeps
    bound_s: Floats
    level: NDArray[np.int8]
    needed_bytes: Floats
    rates: Rates = BY_TIME
    asked_s: Floats | None = None
    swept: int = 0
    simulated: dict[int, SimulatedPlan] = field(default_factory=dict)
    num_ops: int = 0
    unbuilt: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _active: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @cached_property
    def _lowest(self) -> tuple[Ints, Ints, float]:
        """The active rows at the last full scan, the rows with the lowest bounds among them, and the limit of these."""
        return self._active, self._active[:0], 0.0

    @cached_property
    def recompute_bounds(self) -> RecomputeBounds:
        """Bounds for rows whose recomputation is undecided: the time that limited memory costs them."""
        return RecomputeBounds(self.bounds.pipelines)

    @cached_property
    def rejected_bounds_s(self) -> dict[int, float]:
        """Bounds in seconds of rows that were dropped because the tables they run hold too much."""
        return {}

    @cached_property
    def _ran(self) -> tuple[HeldSteps, Known]:
        """Steps that were simulated and may be reported, and the large ones."""
        return HeldSteps(), {}

    @cached_property
    def slice_bounds(self) -> SliceBounds:
        """Bounds of rows with token slices."""
        return SliceBounds(self.bounds.pipelines)

    @cached_property
    def openings(self) -> Openings:
        """How simulated steps open, and others with them."""
        return Openings(self.bounds)

    @cached_property
    def _family(self) -> Ints:
        """Rows whose messages are likely to meet alike on shared links: of the same degrees, shape and order."""
        return factorize(self.rows.number(PIPELINES))[1]

    @cached_property
    def _above(self) -> Floats:
        """By family, the least ratio of a simulated step to its bound; 1 where nothing was simulated."""
        return np.ones(int(self._family.max(initial=0)) + 1)

    @cached_property
    def own(self) -> Flags:
        """Rows that are bounded one by one: those with token slices, and pipelines with two ends."""
        return select_sliced(self.rows) | select_two_ended(self.rows)

    @cached_property
    def greedy(self) -> NDArray[np.bool_]:
        """Rows whose tables depend on the durations of their passes."""
        names = filter(looks_at_costs, map(str, self.rows.domain["schedule"]))
        return np.asarray(self.rows.one_of("schedule", *names))

    @cached_property
    def begun(self) -> NDArray[np.bool_]:
        """Rows that have been bounded by the beginning of their table, or skip that step."""
        begins = [name for name in map(str, self.rows.domain["schedule"]) if producer_of(name).beginnings]
        held, result = np.flatnonzero(self.rows.one_of("schedule", *begins)), np.ones(self.rows.count, dtype=bool)
        few = self.rows.at("microbatches", held) < MANY_MICROBATCHES
        result[held] = few | ~self.rows.at("is_pipelined", held)
        return result

    @staticmethod
    def of(rows: Rows, needed_bytes: Floats, like: Frontier | None = None) -> Frontier:
        """A frontier with all rows bounded by their kernels, and by those of a slow rank at any place in a pipeline.

        ``like`` has other rows, of a problem that differs in constraints only: their prices and passes are the same.
        """
        problem, jobs = rows.problem, RowJobs(rows := with_slices(rows))
        prices = Prices(problem.cluster.in_training.whole, Added.of(problem.stack))
        pipelines = like.bounds.pipelines.of_others(jobs) if like else Pipelines.of(jobs, prices)
        sweeps = Sweeps(StepBounds(pipelines, Configurations.of(pipelines.blocks, pipelines.meet)))
        bound, least = pipelines.kernels_bound_ns()
        if (cut := unique(pipelines.index[select_sliced(rows)])).size:
            bound[cut], least[cut] = SliceBounds(pipelines).kernels_bound_ns(cut)
        if (ends := unique(pipelines.index[select_two_ended(rows)])).size:
            bound[ends], least[ends] = kernels_bound_ns(pipelines, ends)
        bound = np.maximum(bound, pipelines.slowness * least)
        bound_s, level = np.asarray(problem.stack.step_s(bound))[pipelines.index], np.full(rows.count, KERNELS, np.int8)
        rates, active, asked_s = objective_rates(problem), np.arange(rows.count), None
        if rates.asked_per_s:
            asked = pipelines.asked_bound_ns()
            asked[cut] = least[cut] * min(dynamic_power_share(streaming=each) for each in (True, False))
            asked[ends] = asked_kernels_bound_ns(pipelines, ends)
            asked_s = (asked / NS_PER_S)[pipelines.index]
        return Frontier(rows, sweeps, bound_s, level, needed_bytes, rates, asked_s, _active=active)

    @property
    def bounds(self) -> StepBounds:
        """Bounds of whole steps."""
        return self.sweeps.bounds

    def worth(self, rows: Any) -> Any:
        """A lower bound of the objective of rows."""
        worth = self.rates.per_s * self.bound_s[rows]
        if self.asked_s is None:
            return worth
        return np.minimum(
            worth + self.rates.asked_per_s * self.asked_s[rows], self.rates.most_per_s * self.bound_s[rows]
        )

    def prune(self, best: float) -> None:
        """Deactivate rows that cannot beat the incumbent ``best``."""
        alive = (self.worth(self._active) < best) & (self.level[self._active] < EXACT)
        self._active = self._active[alive]

    def next(self) -> int | None:
        """The active row with the lowest bound; None if there is none."""
        rows, worth = self._near()
        return int(rows[np.argmin(worth)]) if len(rows) else None

    @property
    def meets(self) -> bool:
        """Whether messages of stages meet on links, which bounds do not know."""
        return self.bounds.pipelines.blocks.lockstep.happens

    def expected(self, rows: Any) -> Any:
        """What rows are expected to be worth: their bounds, times what steps of their family exceed bounds by."""
        if not self.meets:
            return self.worth(rows)
        return self.worth(rows) * np.where(self.openings.told[rows], 1.0, self._above[self._family[rows]])

    def hopeful(self, best: float) -> int | None:
        """Where links are shared, the row that is expected to beat ``best`` by most, of those with tabled bounds.

        There, steps exceed bounds by what meets on a link, which the bounds do not know but rows of a family have in
        common. So the rows with the lowest bounds are often not the best ones.
        """
        if not self.meets:
            return None
        rows = self.open_from(TABLED)
        at = int(np.argmin(expected := self.expected(rows))) if len(rows) else 0
        return int(rows[at]) if len(rows) and expected[at] < best else None

    def _near(self) -> tuple[Ints, Floats]:
        """Active rows with bounds a little above the lowest or less, and their lower bounds of the objective.

        Bounds only rise, so no other row can overtake these. The full scan over millions of rows is repeated only when
        these few have risen or the active rows have changed.
        """
        active, rows, limit = self._lowest
        worth = self.worth(rows)
        if active is not self._active or not len(rows) or BOUND_BAND * worth.min() > limit:
            rows, worth = self._active, self.worth(self._active)
            lowest = worth.min(initial=np.inf)
            limit = lowest + (BOUND_BAND**2 - 1) * abs(lowest)
            rows, worth = rows[worth <= limit], worth[worth <= limit]
            self._lowest = self._active, rows, limit
        return rows, worth

    def shortest(self, which: Flags | Ints, level: int = SWEPT, tries: int | None = None) -> int | None:
        """The best of some rows (a mask or numbers) by bounds of a level, contention left out; None without any.

        After ``tries`` sweeps, the best of the rows that have reached the level.
        """
        rows: Ints = np.flatnonzero(which) if which.dtype == np.bool_ else which.astype(np.int64, copy=False)
        kept, self._active = self._active, rows[np.isfinite(self.bound_s[rows])]
        try:
            while (row := self.next()) is not None and self.level[row] < level:
                if tries is not None and tries <= 0:
                    self._active = self._active[self.level[self._active] >= level]
                    return self.next()
                if tries is not None:  # sweeping a Program of its own costs more than a table
                    tries -= 2 if self.own[row] else int(self.level[row] == TABLED)
                self.raise_bound(row)
        finally:
            self._active = kept
        return row

    def layouts(self, which: Ints | None = None) -> Ints:
        """The layout number of every row or of some, from 0 among these; rows of one layout are its variants.

        They differ only in virtual stages, ZeRO stages that keep whole parameters, other data parallelism and order.
        """
        rows = self.rows if which is None else self.rows.subset(which)
        return factorize(rows.number(LAYOUT_AXES, fully_sharded(rows), 2))[1]

    def find_promising(self, mask: Flags, near: Rows) -> Flags:
        """The few rows of a mask that are likely to have the shortest steps, with bounds of their whole steps.

        A family is a combination of degrees and ZeRO stage. Considered are the family of a good row (``near``, of this
        or another frontier), families in which one degree is half or twice as large, and the families with the shortest
        steps, judged by their row with the least kernel time. Of these, the rows with the shortest passes are taken.
        Rows whose bounds say little are left out as long as there are others: tensor ranks that span domains, and
        tables that depend on durations.
        """
        told = mask & (self.rows.at("tp", ...) <= self.rows.problem.cluster.domain_size) & ~self.greedy
        rows = np.flatnonzero((told if told.any() else mask) & np.isfinite(self.bound_s))
        family = self.rows.number(FAMILY)
        few = self._in_whole(self._first_of(rows, self.rows.number(names_that_decide(TRAFFIC))), family)
        away = sum(np.abs(np.log2(self.rows.at(name, rows) / near[name])) for name in DEGREES)
        best = np.isin(family[rows], family[self._first_of(few, family)[:FAMILIES]])
        alike = self.rows.number(names_that_decide(BY_KERNELS), family, int(family.max()) + 1)
        again = self._in_whole(rows[best | (away <= 1.0)], alike)
        return np.isin(np.arange(self.rows.count), np.append(few, again))

    def _in_whole(self, rows: Ints, number: Ints) -> Ints:
        """The rows with the shortest passes, one per number, bounded by whole steps."""
        rows = self._first_of(rows, self.bounds.pipelines.index * (int(number.max()) + 1) + number)[:MAX_PASS_BOUNDS]
        self._raise_passes(rows)
        rows = self._first_of(rows, number)[:MAX_PROMISING]
        self._raise_steps(rows)
        return rows

    def _first_of(self, rows: Ints, number: Ints) -> Ints:
        """For every number the row with the lowest bound; lowest first."""
        ordered = rows[np.argsort(self.bound_s[rows], kind="stable")]
        return ordered[np.sort(np.unique(number[ordered], return_index=True)[1])]

    def raise_bound(self, row: int) -> None:
        """Raise a row to the next level of bound, and others along with it."""
        if self.own[row]:
            self._sweep_own(row)
            return
        {KERNELS: self._passes, PASSES: self._steps, STEP: self._tables, TABLED: self._sweep}[int(self.level[row])](row)

    def open_from(self, level: int) -> Ints:
        """Active rows of a level or a higher one."""
        return self._active[self.level[self._active] >= level]

    def may_fit(self, row: int) -> bool:
        """Whether a row may fit with the table that it runs; it is dropped if not."""
        needed_bytes = self.least_bytes(row)
        self.needed_bytes[row] = max(self.needed_bytes[row], needed_bytes)
        if needed_bytes > self.rows.problem.memory_limit_bytes:
            self.rejected_bounds_s[row] = float(self.bound_s[row])
            self.drop(np.array([row]))
            return False
        return True

    def least_bytes(self, row: int, problem: Problem | None = None) -> float:
        """Memory that a row needs at least with the table it runs; 0 if the row's own table adds nothing.

        Rows were admitted by what is in flight in a table of any durations; a table made for the row's durations may
        hold more. ``problem`` may ask for another probability of fitting.
        """
        name = str(self.rows.domain["schedule"][self.rows.code["schedule"][row]])
        if row in self.simulated or self.own[row] or not looks_at_costs(name) or not self.rows.at("is_pipelined", row):
            return 0.0
        return bytes_with_table(self.rows, row, self.sweeps.table_of(row), problem)

    def simulate(self, row: int) -> SimulatedPlan:
        """The simulated step of a row. Raises TooManyOps if its Program has more ops than are built."""
        plan, (held, large) = plan_of(self.rows, row), self._ran
        result = measure(self.rows.problem, plan, large, held.let_go)  # never two large beside that being made
        self.record(row, result)
        return result

    def first_that(
        self, allowed: Callable[[SimulatedPlan], bool], *, on_any_target: bool = False
    ) -> SimulatedPlan | None:
        """The first of the few shortest rows, by bounds of whole steps, that is ``allowed`` once simulated."""
        left = np.ones(self.rows.count, dtype=bool)
        for _ in range(MAX_TRIES):
            if (row := self.shortest(left, STEP)) is None:
                return None
            left[row] = False
            with suppress(TooManyOps):
                if (on_any_target or not refusals(self.rows, row)) and allowed(result := self.simulate(row)):
                    return result
        return None

    def record(self, row: int, simulated: SimulatedPlan) -> None:
        """Record a simulated row; drop it if it does not fit. Only the best steps and the last one are kept."""
        self.simulated[row], self.num_ops = simulated, self.num_ops + simulated.num_ops
        self._ran[0].add(row, simulated, self.layouts)
        self._learn(row, simulated.worth / max(float(self.worth(row)), TINY))
        if simulated.opening and not self.own[row]:
            alike = self.openings.learn(row, simulated.opening, self._active)
            self.level[alike] = np.minimum(self.level[alike], TABLED)  # to be swept again
        simulated.opening = None
        if simulated.kept:
            self._ran[0].let_go(simulated)
        if not simulated.fits:
            self.drop(np.array([row]))

    def _learn(self, row: int, above: float) -> None:
        """Note by how much the step of a row exceeds its bound."""
        if self.level[row] == SWEPT and self.meets and not self.openings.told[row]:
            known = self._above[self._family[row]]
            self._above[self._family[row]] = above if known == 1.0 else min(known, above)

    def count_unseen(self, limit_s: float) -> int:
        """The number of rows bounded below ``limit_s`` that were neither simulated, dropped nor refused."""
        mask = (self.bound_s < limit_s) & (self.level < EXACT)
        mask[list(self.simulated)] = False
        return int(mask.sum())

    def drop(self, rows: Ints) -> None:
        """Exclude rows for good: they do not fit."""
        self.bound_s[rows], self.level[rows] = np.inf, EXACT
        self._active = self._active[~np.isin(self._active, rows)]

    def drop_late(self, deadline_s: float) -> None:
        """Deactivate rows whose steps take longer than a deadline by their bounds, which they keep."""
        self._active = self._active[self.bound_s[self._active] <= deadline_s]

    def mark_unbuildable(self, row: int) -> None:
        """Deactivate a row whose Program has more ops than are built, and rows as large; they keep their bounds."""
        rows = np.append(self._active[self.at_least_as_large(row)[self._active]], row)
        self.unbuilt = np.union1d(self.unbuilt, rows)
        self._active = np.setdiff1d(self._active, rows)

    def at_least_as_large(self, row: int, among: Ints | None = None) -> Flags:
        """Rows (of some or all) with at least as many ops as a row: its microbatches or more, of as large passes."""
        mine = np.arange(self.rows.count) if among is None else among
        alike = np.ones(len(mine), dtype=bool)
        for name in names_that_decide(OPS):
            alike &= self.rows.code[name][mine] == self.rows.code[name][row]
        few = np.flatnonzero(alike)
        alike[few] = self.rows.at("microbatches", mine[few]) >= self.rows.at("microbatches", row)
        return alike

    def close(self, row: int) -> None:
        """Mark a row as done: it was simulated, or never will be, and its bound no longer counts."""
        self.level[row] = EXACT
        self._active = self._active[self._active != row]

    def _at(self, level: int, most: int) -> Ints:
        """Active rows of a level close to the lowest bound, at most ``most`` of them."""
        rows, worth = self._near()
        mine: Ints = rows[(worth <= BOUND_BAND * worth.min()) & (self.level[rows] == level) & ~self.own[rows]]
        return mine if len(mine) <= most else np.asarray(mine[np.argpartition(self.worth(mine), most)[:most]])

    def _raise(self, rows: Ints, bound_ns: Floats, level: int) -> None:
        bound_s = self.rows.problem.stack.step_s(bound_ns)
        self.bound_s[rows] = np.maximum(self.bound_s[rows], bound_s)
        self.level[rows] = level

    def _sweep_own(self, row: int) -> None:
        """Sweep the Program of a row; if it has token slices, first choose these for it and its like."""
        if select_sliced(self.rows)[row] and not self.slice_bounds.is_chosen(row):
            self.slice_bounds.set_slices(self.slice_bounds.alike(row), self.slice_bounds.choose(row))
        self._raise(np.array([row]), np.array([sweep_ns(self.rows.problem, plan_of(self.rows, row))]), SWEPT)
        self.swept += 1

    def _decide(self, row: int) -> None:
        """Make the recomputation choice for a row and its like; drop them if nothing fits."""
        mine = alike(self.rows, row)
        policy = decide(self.rows, row)
        if policy is None:
            self.drop(mine)
            return
        self.rows.set("recompute", mine, policy)
        pipe = self.bounds.pipelines.moved(mine)
        self.needed_bytes[mine] = needs(self.rows.subset([row])).needed_bytes[0]
        self._raise(mine, np.repeat(self.bounds.pipelines.passes_bound_ns(np.array([pipe])), len(mine)), PASSES)

    def _passes(self, row: int) -> None:
        self._raise_passes(np.append(self._at(KERNELS, PASS_BATCH), row))

    def _raise_passes(self, rows: Ints) -> None:
        """Bound the pipelines of some rows by their passes, for all rows that have these pipelines."""
        pipelines = self.bounds.pipelines
        which = unique(pipelines.index[rows[(self.level[rows] == KERNELS) & ~self.own[rows]]])
        bound_ns = np.zeros(len(pipelines.row))
        bound_ns[which] = pipelines.passes_bound_ns(which)
        mine = pipelines.members(which)
        mine = mine[self.level[mine] == KERNELS]
        assert not self.own[mine].any(), "such rows are bounded by themselves"
        self._raise(mine, bound_ns[pipelines.index[mine]], PASSES)
        waiting = mine[select_undecided(self.rows, mine)]
        if len(waiting):
            self._raise(waiting, self._bound_recomputation(waiting), PASSES)

    def _bound_recomputation(self, rows: Ints) -> Floats:
        """Nanoseconds of the end ranks of undecided rows' pipelines, with the least cost of dropping activations."""
        pipelines, result = self.bounds.pipelines, np.zeros(len(rows))
        which = pipelines.index[rows]
        for shape, mine in pipelines.by_shape(which):
            extra = pipelines.microbatches(which[mine]) * self.recompute_bounds.extra_ns(rows[mine], shape)
            for path in pipelines.paths(shape, which[mine]):
                result[mine] = np.maximum(result[mine], (path.ends[:, [0, -1]].T + extra).max(axis=0))
        return result

    def _steps(self, row: int) -> None:
        if select_undecided(self.rows, row).any():
            self._decide(row)
            return
        self._raise_steps(np.append(self._at(PASSES, STEP_BATCH), row))

    def _raise_steps(self, rows: Ints) -> None:
        """Bound rows whose passes are known by whole steps."""
        rows = unique(rows[self.level[rows] == PASSES])
        rows = rows[~select_undecided(self.rows, rows)]
        self._raise(rows, self.bounds.of(rows), STEP)

    def _tables(self, row: int) -> None:
        """Bound pipelines of rows like this one by their table, for all rows that have these pipelines.

        The beginning of the table comes first, if the schedule has one.
        """
        pipelines = self.bounds.pipelines
        rows = pipelines.members(unique(pipelines.index[self._like(row)]))
        rows = rows[(self.level[rows] == STEP) & (self.begun[rows] == self.begun[row])]
        if self.begun[row]:
            self._raise(rows, self.sweeps.tables_ns(rows), TABLED)
        else:
            self._raise(rows, self.sweeps.begun_ns(rows), STEP)
            self.begun[rows] = True

    def _sweep(self, row: int) -> None:
        rows = self._like(row)
        self._raise(rows, self.openings.swept_ns(self.sweeps, rows), SWEPT)
        self.swept += len(rows)

    def _like(self, row: int) -> Ints:
        """A row and active rows at its level with the same table, those with the lowest bounds."""
        columns, alike = self.rows, self._at(int(self.level[row]), len(self._active))
        for name in names_that_decide(TABLE):
            alike = alike[columns.code[name][alike] == columns.code[name][row]]
        alike = alike[columns.at("microbatches", alike) == columns.at("microbatches", row)]
        if len(alike) > SWEEP_BATCH:
            alike = alike[np.argpartition(self.worth(alike), SWEEP_BATCH)[:SWEEP_BATCH]]
        return unique(np.append(alike, row))
