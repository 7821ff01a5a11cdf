"""Rows with bounds sharpened where it pays: by kernels, passes, whole steps, sweeps, simulations.

Always the row with the lowest bound is looked at again, together with others for which the next, dearer look can be
shared; a row whose bound is no better than the best simulated step is never looked at again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.power import beyond_waiting
from simpar.errors import TooManyOps
from simpar.plan.schedules import declared, looks_at_costs
from simpar.plan.sync import apart
from simpar.program.emission.collective_prices import Added, Prices
from simpar.search.bound.batched_sweep import Sweeps
from simpar.search.bound.data_parallel import Configurations
from simpar.search.bound.dualpipe import asked_bound_ns, kernels_bound_ns
from simpar.search.bound.pipelines import Pipelines
from simpar.search.bound.steps import StepBounds
from simpar.search.certify.exact import BY_TIME, Exact, Known, Rates, measure, objective_rates, swept_ns
from simpar.search.certify.token_slices import SliceBounds, sliced, with_slices
from simpar.search.problem import Problem
from simpar.search.space.axes import both_ends, undecided
from simpar.search.space.fit import needed_by_table, needs
from simpar.search.space.jobs import Jobs, plan_of
from simpar.search.space.portable import refusals
from simpar.search.space.recomputation import RecomputeBounds, alike, decide
from simpar.search.space.table import Rows
from simpar.units import NS_PER_S, Flags, Floats, Ints

KERNELS, PASSES, STEP, TABLED, SWEPT, EXACT = range(6)
SIZED = ("tp", "cp", "pp", "schedule", "vpp", "zero", "sequence_parallel", "tp_overlap")
"""Axes that decide how many ops a pass has, and how many ranks differ."""
TRIES = 3
SOON = 1.02  # rows whose bounds are this close to the lowest are looked at along with it
PASSED_AT_ONCE, ROWS_AT_ONCE, SWEPT_AT_ONCE = 16384, 16384, 64
UNTOLD = ("tp", "cp", "pp", "ep", "zero", "hsdp", "sequence_parallel", "tp_overlap")
"""Axes that kernels alone do not rank."""
DEGREES = ("tp", "cp", "pp", "ep")
FAMILY, FAMILIES = (*DEGREES, "zero"), 4
TOLD = ("schedule", "micro_batch", "recompute")
PASSED, PROMISING = 512, 48
MANY_MICROBATCHES = 40
"""From which on tables that hold little in flight are bounded by how they begin before they are made."""
KEPT, KEPT_OPS = 6, 200_000
"""Simulated steps that are kept to be reported, the best ones, and how many ops they may have together."""


@dataclass
class Frontier:
    """Rows that fit, the seconds that bound each, how that was found, and the device memory that each needs.

    The objective of a row is at least what ``rates`` make of its seconds and, for energy, of ``asked_s``, the seconds
    of kernels times the share of power that they ask for beyond waiting. ``simulated`` are rows that were simulated,
    in Programs of ``num_ops`` ops; those that do not fit are dropped. ``unbuilt`` are rows whose Programs have more
    ops than are built: they stay as they are bounded.
    """

    rows: Rows
    sweeps: Sweeps
    bound_s: Floats
    level: NDArray[np.int8]
    needed_bytes: Floats
    rates: Rates = BY_TIME
    asked_s: Floats | None = None
    swept: int = 0
    simulated: dict[int, Exact] = field(default_factory=dict)
    num_ops: int = 0
    unbuilt: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _active: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @cached_property
    def _lowest(self) -> tuple[Ints, Ints, float]:
        """Rows that were active when last all were looked through, those with the lowest bounds, and up to which."""
        return self._active, self._active[:0], 0.0

    @cached_property
    def squeeze(self) -> RecomputeBounds:
        """What memory costs rows that wait for their recomputation."""
        return RecomputeBounds(self.bounds.pipelines)

    @cached_property
    def turned_down(self) -> dict[int, float]:
        """Bounds, in seconds, of rows that were dropped because their own tables hold too much."""
        return {}

    @cached_property
    def _large(self) -> Known:
        """Large steps that were simulated."""
        return {}

    @cached_property
    def slicing(self) -> SliceBounds:
        """Bounds of rows in slices of tokens."""
        return SliceBounds(self.bounds.pipelines)

    @cached_property
    def own(self) -> Flags:
        """Rows that are bounded by themselves: in slices of tokens, and pipelines with two ends."""
        return sliced(self.rows) | both_ends(self.rows)

    @cached_property
    def greedy(self) -> NDArray[np.bool_]:
        """Rows whose tables are made for the durations of their passes."""
        names = filter(looks_at_costs, map(str, self.rows.domain["schedule"]))
        return np.asarray(self.rows.one_of("schedule", *names))

    @cached_property
    def begun(self) -> NDArray[np.bool_]:
        """Rows whose tables have been begun, or are looked at as a whole at once."""
        begins = [name for name in map(str, self.rows.domain["schedule"]) if declared(name).beginnings]
        held = self.rows.one_of("schedule", *begins) & (self.rows.at("pp", ...) > 1)
        return np.asarray(~held | (self.rows.at("microbatches", ...) < MANY_MICROBATCHES))

    @staticmethod
    def of(rows: Rows, needed_bytes: Floats) -> Frontier:
        """All rows bounded by their kernels, and by those of a rank that is slow, wherever it stands in a pipeline."""
        problem, rows = rows.problem, with_slices(rows)
        pipelines = Pipelines.of(
            Jobs(rows), Prices(problem.cluster.in_training.whole, Added.of(problem.stack))
        )
        sweeps = Sweeps(StepBounds(pipelines, Configurations.of(pipelines.blocks, pipelines.meet)))
        bound, least = pipelines.kernels_bound_ns()
        if (cut := np.unique(pipelines.index[sliced(rows)])).size:
            bound[cut], least[cut] = SliceBounds(pipelines).kernels_bound_ns(cut)
        if (ends := np.unique(pipelines.index[both_ends(rows)])).size:
            bound[ends], least[ends] = kernels_bound_ns(pipelines, ends)
        if "sync" not in rows.domain and not apart(problem.base):  # else others need not wait for a slow rank
            bound = np.maximum(bound, max(problem.perturbation.slow_ranks.values(), default=1.0) * least)
        bound_s = np.asarray(problem.stack.step_s(bound))[pipelines.index]
        level = np.full(rows.count, KERNELS, dtype=np.int8)
        rates, active, asked_s = objective_rates(problem), np.arange(rows.count), None
        if rates.asked_per_s:
            asked = pipelines.asked_bound_ns()
            asked[cut] = least[cut] * min(beyond_waiting(streaming=each) for each in (True, False))
            asked[ends] = asked_bound_ns(pipelines, ends)
            asked_s = (asked / NS_PER_S)[pipelines.index]
        return Frontier(rows, sweeps, bound_s, level, needed_bytes, rates, asked_s, _active=active)

    @property
    def bounds(self) -> StepBounds:
        """Bounds of whole steps."""
        return self.sweeps.bounds

    def worth(self, rows: Any) -> Any:
        """What the objective of rows is at least."""
        worth = self.rates.per_s * self.bound_s[rows]
        if self.asked_s is None:
            return worth
        busy = self.rates.asked_per_s * self.asked_s[rows]
        return np.minimum(worth + busy, self.rates.most_per_s * self.bound_s[rows])

    def forget(self, best: float) -> None:
        """Look no more at rows that cannot beat the best."""
        alive = (self.worth(self._active) < best) & (self.level[self._active] < EXACT)
        self._active = self._active[alive]

    def next(self) -> int | None:
        """The row with the lowest bound that is still looked at, or None."""
        rows, worth = self._near()
        return int(rows[np.argmin(worth)]) if len(rows) else None

    def _near(self) -> tuple[Ints, Floats]:
        """Active rows with bounds up to a little above the lowest, and what they are worth.

        As bounds only rise, no other row comes to stand before these: millions are looked through only when these few
        have risen, or others are active.
        """
        active, rows, limit = self._lowest
        worth = self.worth(rows)
        if active is not self._active or not len(rows) or SOON * worth.min() > limit:
            rows, worth = self._active, self.worth(self._active)
            lowest = worth.min(initial=np.inf)
            limit = lowest + (SOON**2 - 1) * abs(lowest)
            rows, worth = rows[worth <= limit], worth[worth <= limit]
            self._lowest = self._active, rows, limit
        return rows, worth

    def shortest(self, mask: Flags, level: int = SWEPT, tries: int | None = None) -> int | None:
        """The best of some rows by the bounds of a level, or None without any; contention is left out.

        After so many ``tries`` to find out, sweeps that is, it is the best of those that have come that far.
        """
        kept, self._active = self._active, np.flatnonzero(mask & np.isfinite(self.bound_s))
        try:
            while (row := self.next()) is not None and self.level[row] < level:
                if tries is not None and tries <= 0:
                    self._active = self._active[self.level[self._active] >= level]
                    return self.next()
                if tries is not None:  # a Program of its own is dearer than a table
                    tries -= 2 if self.own[row] else int(self.level[row] == TABLED)
                self.sharpen(row)
        finally:
            self._active = kept
        return row

    def layouts(self) -> Ints:
        """The layout of every row, numbered: rows of one differ in data parallelism and the order of ranks alone."""
        pipelines = self.bounds.pipelines
        return pipelines.blocks.key * len(pipelines.shapes.row) + pipelines.shapes.index

    def promising(self, mask: Flags, near: Rows) -> Flags:
        """A few of some rows that are likely to have the shortest steps, bounded in whole, unlike most of the others.

        Of families the one of a good row (``near``, of these or of another frontier), those in which one degree is
        half of its or twice, and those with the shortest steps by the row of each that kernels hold for the shortest;
        of them the rows with the shortest passes. Left out, as far as there are others, are rows that bounds tell
        little of: tensor ranks that share the links between nodes, and tables that are made for durations.
        """
        told = mask & (self.rows.at("tp", ...) <= self.rows.problem.cluster.domain_size) & ~self.greedy
        rows = np.flatnonzero((told if told.any() else mask) & np.isfinite(self.bound_s))
        family = self.rows.number(FAMILY)
        few = self._in_whole(self._first_of(rows, self.rows.number(UNTOLD)), family)
        away = sum(np.abs(np.log2(self.rows.at(name, rows) / near[name])) for name in DEGREES)
        best = np.isin(family[rows], family[self._first_of(few, family)[:FAMILIES]])
        alike = self.rows.number(TOLD, family, int(family.max()) + 1)
        again = self._in_whole(rows[best | (away <= 1.0)], alike)
        return np.isin(np.arange(self.rows.count), np.append(few, again))

    def _in_whole(self, rows: Ints, number: Ints) -> Ints:
        """Rows with the shortest passes, bounded in whole: of those with the same number one."""
        rows = self._first_of(rows, self.bounds.pipelines.index * (number.max() + 1) + number)[:PASSED]
        self._raise_passes(rows)
        rows = self._first_of(rows, number)[:PROMISING]
        self._raise_steps(rows)
        return rows

    def _first_of(self, rows: Ints, number: Ints) -> Ints:
        """Of all rows with the same number the one with the lowest bound; lowest first."""
        ordered = rows[np.argsort(self.bound_s[rows], kind="stable")]
        return ordered[np.sort(np.unique(number[ordered], return_index=True)[1])]

    def sharpen(self, row: int) -> None:
        """Bound a row by the next means, and others along with it."""
        if self.own[row]:
            self._sweep_own(row)
            return
        {KERNELS: self._passes, PASSES: self._steps, STEP: self._tables, TABLED: self._sweep}[
            int(self.level[row])
        ](row)

    def nearest(self, level: int, most: int) -> list[int]:
        """Active rows of a level with the lowest bounds, lowest first."""
        mine = self._active[self.level[self._active] == level]
        return [int(row) for row in mine[np.argsort(self.worth(mine), kind="stable")[:most]]]

    def may_fit(self, row: int) -> bool:
        """Whether a row may fit with the very table that it runs; it is dropped if not."""
        needed_bytes = self.least_bytes(row)
        self.needed_bytes[row] = max(self.needed_bytes[row], needed_bytes)
        if needed_bytes > self.rows.problem.memory_limit_bytes:
            self.turned_down[row] = float(self.bound_s[row])
            self.drop(np.array([row]))
            return False
        return True

    def least_bytes(self, row: int, problem: Problem | None = None) -> float:
        """Device memory that a row needs at least, more than it was let in with: 0 where its table is known to all.

        A ``problem`` may ask for another probability of fitting. What any durations leave in flight has let it in: a
        table that is made for those of the row may hold more.
        """
        name = str(self.rows.domain["schedule"][self.rows.code["schedule"][row]])
        if row in self.simulated or self.own[row] or not looks_at_costs(name) or self.rows.at("pp", row) == 1:
            return 0.0
        return needed_by_table(self.rows, row, self.sweeps.table_of(row), problem)

    def simulate(self, row: int) -> Exact:
        """The simulated step of a row. Raises TooManyOps where it has more than are built."""
        # two large Programs are never held beside the one that is made
        found = measure(
            self.rows.problem, plan_of(self.rows, row), self.num_ops, self._large, make_room=self._let_go
        )
        self.note(row, found)
        return found

    def first_that(self, allowed: Callable[[Exact], bool], *, on_any_target: bool = False) -> Exact | None:
        """The first of a few rows, shortest by whole steps, that is allowed as it was simulated."""
        left = np.ones(self.rows.count, dtype=bool)
        for _ in range(TRIES):
            if (row := self.shortest(left, STEP)) is None:
                return None
            left[row] = False
            with suppress(TooManyOps):
                if (on_any_target or not refusals(self.rows, row)) and allowed(found := self.simulate(row)):
                    return found
        return None

    def note(self, row: int, found: Exact) -> None:
        """A row was simulated; it is dropped if it does not fit. Only the best steps are kept, and the last one."""
        self.simulated[row], self.num_ops = found, self.num_ops + found.num_ops
        if found.kept:
            self._let_go(found)
        if not found.fits:
            self.drop(np.array([row]))

    def _let_go(self, last: Exact | None = None) -> None:
        """Keep the best steps, and the ``last`` one."""
        held = [one for one in self.simulated.values() if one.kept]
        held.sort(key=lambda one: (not one.fits, one.worth))
        ops = np.cumsum([one.num_ops for one in held])
        for at, one in enumerate(held[1:], start=1):
            if (at >= KEPT or ops[at] > KEPT_OPS) and one is not last:
                one.let_go()

    def unseen(self, limit_s: float) -> int:
        """Rows bounded below so many seconds that were neither simulated nor dropped or refused."""
        found = (self.bound_s < limit_s) & (self.level < EXACT)
        found[list(self.simulated)] = False
        return int(found.sum())

    def drop(self, rows: Ints) -> None:
        """Look at rows no more, whatever is asked for: they do not fit."""
        self.bound_s[rows], self.level[rows] = np.inf, EXACT
        self._active = self._active[~np.isin(self._active, rows)]

    def leave(self, row: int) -> None:
        """The Program of a row has more ops than are built: it stays bounded, and so do those that are as large."""
        rows = np.append(self._active[self.as_large(row)[self._active]], row)
        self.unbuilt = np.union1d(self.unbuilt, rows)
        self._active = np.setdiff1d(self._active, rows)

    def as_large(self, row: int) -> Flags:
        """Rows of which a step has at least as many ops as one of a row: more microbatches of passes that are alike."""
        rows = self.rows
        found = np.asarray(rows.at("microbatches", ...) >= rows.at("microbatches", row))
        for name in SIZED:
            found &= rows.code[name] == rows.code[name][row]
        return found

    def settle(self, row: int) -> None:
        """A row was simulated, or will never be: its bound plays no part any more."""
        self.level[row] = EXACT
        self._active = self._active[self._active != row]

    def _at(self, level: int, most: int) -> Ints:
        """Active rows of a level, those with the lowest bounds."""
        rows, worth = self._near()
        mine: Ints = rows[(worth <= SOON * worth.min()) & (self.level[rows] == level) & ~self.own[rows]]
        if len(mine) <= most:
            return mine
        kept: Ints = mine[np.argpartition(self.worth(mine), most)[:most]]
        return kept

    def _raise(self, rows: Ints, bound_ns: Floats, level: int) -> None:
        bound_s = self.rows.problem.stack.step_s(bound_ns)
        self.bound_s[rows] = np.maximum(self.bound_s[rows], bound_s)
        self.level[rows] = level

    def _sweep_own(self, row: int) -> None:
        """Sweep the Program of a row; if in slices, choose those of it and its like first."""
        if sliced(self.rows)[row] and not self.slicing.is_chosen(row):
            self.slicing.set_slices(self.slicing.alike(row), self.slicing.choose(row))
        self._raise(np.array([row]), np.array([swept_ns(self.rows.problem, plan_of(self.rows, row))]), SWEPT)
        self.swept += 1

    def _decide(self, row: int) -> None:
        """Make the choice by layer that a row and its like wait for; forget them where nothing fits."""
        mine = alike(self.rows, row)
        policy = decide(self.rows, row)
        if policy is None:
            self.drop(mine)
            return
        self.rows.set("recompute", mine, policy)
        pipe = self.bounds.pipelines.moved(mine)
        self.needed_bytes[mine] = needs(self.rows.some([row])).needed_bytes[0]
        self._raise(
            mine, np.repeat(self.bounds.pipelines.passes_bound_ns(np.array([pipe])), len(mine)), PASSES
        )

    def _passes(self, row: int) -> None:
        self._raise_passes(np.append(self._at(KERNELS, PASSED_AT_ONCE), row))

    def _raise_passes(self, rows: Ints) -> None:
        """Bound the pipelines of some rows by their passes: for all rows that have them."""
        pipelines = self.bounds.pipelines
        which = np.unique(pipelines.index[rows[(self.level[rows] == KERNELS) & ~self.own[rows]]])
        found = np.zeros(len(pipelines.row))
        found[which] = pipelines.passes_bound_ns(which)
        mine = np.flatnonzero((self.level == KERNELS) & (found[pipelines.index] > 0))
        assert not self.own[mine].any(), "such rows are bounded by themselves"
        self._raise(mine, found[pipelines.index[mine]], PASSES)
        waiting = mine[undecided(self.rows, mine)]
        if len(waiting):
            self._raise(waiting, self._squeezed(waiting), PASSES)

    def _squeezed(self, rows: Ints) -> Floats:
        """Nanoseconds of the ends of pipelines of undecided rows, with what dropping activations costs it at least."""
        pipelines, found = self.bounds.pipelines, np.zeros(len(rows))
        which = pipelines.index[rows]
        for shape, mine in pipelines.by_shape(which):
            extra = pipelines.microbatches(which[mine]) * self.squeeze.extra_ns(rows[mine], shape)
            for path in pipelines.paths(shape, which[mine]):
                found[mine] = np.maximum(found[mine], (path.ends[:, [0, -1]].T + extra).max(axis=0))
        return found

    def _steps(self, row: int) -> None:
        if undecided(self.rows, row).any():
            self._decide(row)
            return
        self._raise_steps(np.append(self._at(PASSES, ROWS_AT_ONCE), row))

    def _raise_steps(self, rows: Ints) -> None:
        """Bound rows whose passes are known by whole steps."""
        rows = np.unique(rows[self.level[rows] == PASSES])
        rows = rows[~undecided(self.rows, rows)]
        self._raise(rows, self.bounds.of(rows), STEP)

    def _tables(self, row: int) -> None:
        """Bound pipelines of whole steps with the same table by it, as it bounds every row that has them.

        By how it begins, first.
        """
        index, mine = self.bounds.pipelines.index, self.level == STEP
        wanted = np.zeros(len(self.bounds.pipelines.row), dtype=bool)
        wanted[index[self._like(row)]] = True
        rows = np.flatnonzero(mine & wanted[index])
        rows = rows[self.begun[rows] == self.begun[row]]
        if self.begun[row]:
            self._raise(rows, self.sweeps.tables_ns(rows), TABLED)
        else:
            self._raise(rows, self.sweeps.begun_ns(rows), STEP)
            self.begun[rows] = True

    def _sweep(self, row: int) -> None:
        rows = self._like(row)
        self._raise(rows, self.sweeps.of(rows), SWEPT)
        self.swept += len(rows)

    def _like(self, row: int) -> Ints:
        """A row and active ones that are bounded like it with the same table, those with the lowest bounds."""
        columns, alike = self.rows, self._at(int(self.level[row]), len(self._active))
        for name in ("schedule", "pp", "vpp"):
            alike = alike[columns.code[name][alike] == columns.code[name][row]]
        alike = alike[columns.at("microbatches", alike) == columns.at("microbatches", row)]
        if len(alike) > SWEPT_AT_ONCE:
            alike = alike[np.argpartition(self.worth(alike), SWEPT_AT_ONCE)[:SWEPT_AT_ONCE]]
        return np.unique(np.append(alike, row))
