"""Rows with bounds sharpened where it pays: by kernels, passes, whole steps, work of tables, sweeps, simulations.

Always the row with the lowest bound is looked at again, together with others for which the next, dearer look can be
shared; a row whose bound is no better than the best simulated step is never looked at again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.program.emission.collective_prices import Added, Prices
from simpar.search.bound.batched_sweep import Sweeps
from simpar.search.bound.data_parallel import Schemes
from simpar.search.bound.dualpipe import kernels_bound_ns
from simpar.search.bound.paths import Stages
from simpar.search.bound.pipelines import Pipelines
from simpar.search.bound.steps import RowBounds
from simpar.search.certify.exact import Exact, measure, objective_rates, swept_ns
from simpar.search.certify.token_slices import Slicing, sliced, with_slices
from simpar.search.space.axes import Rows, both_ends
from simpar.search.space.fit import needs
from simpar.search.space.jobs import Jobs
from simpar.search.space.recomputation import Squeeze, alike, decide, set_policy, undecided
from simpar.search.space.rows import plan_of
from simpar.units import NS_PER_S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
KERNELS, PASSES, STEP, WORK, SWEPT, EXACT = range(6)
SOON = 1.05  # rows whose bounds are this close to the lowest are looked at along with it
PIPES_AT_ONCE, ROWS_AT_ONCE, WORKED_AT_ONCE, SWEPT_AT_ONCE = 1024, 16384, 1024, 64


@dataclass
class Frontier:
    """Rows that fit, the seconds that bound each, how that was found, and the device memory that each needs.

    The objective of a row is at least ``slope`` times its seconds plus its ``offset``; ``simulated`` are rows
    that were simulated; those that do not fit are dropped.
    """

    rows: Rows
    sweeps: Sweeps
    bound_s: Floats
    level: NDArray[np.int8]
    needed_bytes: Floats
    slope: float = 1.0
    offset: Floats | float = 0.0
    swept: int = 0
    simulated: dict[int, Exact] = field(default_factory=dict)
    _num_ops: int = 0
    _active: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @cached_property
    def squeeze(self) -> Squeeze:
        """What memory costs rows that wait for their recomputation."""
        return Squeeze(self.bounds.pipelines)

    @cached_property
    def slicing(self) -> Slicing:
        """Bounds of rows in slices of tokens."""
        return Slicing(self.bounds.pipelines)

    @cached_property
    def own(self) -> NDArray[np.bool_]:
        """Rows that are bounded by themselves: in slices of tokens, and pipelines with two ends."""
        return sliced(self.rows) | both_ends(self.rows)

    @staticmethod
    def of(rows: Rows, needed_bytes: Floats) -> Frontier:
        """All rows bounded by their kernels."""
        problem, rows = rows.problem, with_slices(rows)
        pipelines = Pipelines.of(
            Jobs(rows), Prices(replace(problem.cluster.in_training, scaling={}), Added.of(problem.stack))
        )
        sweeps = Sweeps(RowBounds(pipelines, Schemes.of(pipelines.passes, pipelines.meet)))
        bound, least = pipelines.kernels_bound_ns()
        if (cut := np.unique(pipelines.index[sliced(rows)])).size:
            bound[cut], least[cut] = Slicing(pipelines).kernels_bound_ns(cut)
        if (ends := np.unique(pipelines.index[both_ends(rows)])).size:
            bound[ends], least[ends] = kernels_bound_ns(pipelines, ends)
        bound_s = (bound / NS_PER_S + problem.stack.launch.step_overhead_s)[pipelines.index]
        level = np.full(rows.count, KERNELS, dtype=np.int8)
        slope, busy = objective_rates(problem)
        offset = busy * (least / NS_PER_S)[pipelines.index] if busy else 0.0
        active = np.arange(rows.count)
        return Frontier(rows, sweeps, bound_s, level, needed_bytes, slope, offset, _active=active)

    @property
    def bounds(self) -> RowBounds:
        """Bounds of whole steps."""
        return self.sweeps.bounds

    def worth(self, rows: Any) -> Any:
        """What the objective of rows is at least."""
        offset = self.offset if isinstance(self.offset, float) else self.offset[rows]
        return self.slope * self.bound_s[rows] + offset

    def forget(self, best: float) -> None:
        """Look no more at rows that cannot beat the best."""
        alive = (self.worth(self._active) < best) & (self.level[self._active] < EXACT)
        self._active = self._active[alive]

    def next(self) -> int | None:
        """The row with the lowest bound that is still looked at, or None."""
        if not len(self._active):
            return None
        return int(self._active[np.argmin(self.worth(self._active))])

    def shortest(self, mask: NDArray[np.bool_], level: int = SWEPT) -> int | None:
        """The best of some rows by the bounds of a level, or None without any; contention is left out."""
        kept, self._active = self._active, np.flatnonzero(mask & np.isfinite(self.bound_s))
        try:
            while (row := self.next()) is not None and self.level[row] < level:
                self.sharpen(row)
        finally:
            self._active = kept
        return row

    def sharpen(self, row: int) -> None:
        """Bound a row by the next means, and others along with it."""
        if self.own[row]:
            self._sweep_own(row)
            return
        {KERNELS: self._passes, PASSES: self._steps, STEP: self._works, WORK: self._sweep}[
            int(self.level[row])
        ](row)

    def sweep(self, row: int) -> None:
        """Bound a single row by the sweep."""
        if self.own[row] and self.level[row] < SWEPT:
            self._sweep_own(row)
        if undecided(self.rows, row).any():
            self._decide(row)
        if self.level[row] < SWEPT:
            one = np.array([row])
            self._raise(one, self.sweeps.of(one), SWEPT)

    @property
    def exact_rows(self) -> list[int]:
        """Rows that were simulated."""
        return np.flatnonzero(self.level == EXACT).tolist()

    def nearest(self, level: int, most: int) -> list[int]:
        """Active rows of a level with the lowest bounds, lowest first."""
        mine = self._active[self.level[self._active] == level]
        return [int(row) for row in mine[np.argsort(self.worth(mine), kind="stable")[:most]]]

    def simulate(self, row: int) -> Exact:
        """Simulate a row for what is shown beside the winner."""
        found = measure(self.rows.problem, plan_of(self.rows, row), self._num_ops)
        self._num_ops = found.num_ops
        self.note(row, found)
        return found

    def note(self, row: int, found: Exact) -> None:
        """A row was simulated; it is dropped if it does not fit."""
        self.simulated[row] = found.alone
        if not found.fits:
            self.drop(np.array([row]))

    def drop(self, rows: Ints) -> None:
        """Look at rows no more, whatever is asked for: they do not fit."""
        self.bound_s[rows], self.level[rows] = np.inf, EXACT
        self._active = self._active[~np.isin(self._active, rows)]

    def settle(self, row: int, found: Exact | None = None) -> None:
        """A row was simulated, or will never be: its bound plays no part any more."""
        if found is not None:
            self.note(row, found)
        self.level[row] = EXACT
        self._active = self._active[self._active != row]

    def _at(self, level: int, most: int) -> Ints:
        """Active rows of a level, those with the lowest bounds."""
        mine: Ints = self._active[(self.level[self._active] == level) & ~self.own[self._active]]
        mine = mine[self.worth(mine) <= SOON * float(np.min(self.worth(self._active)))]
        if len(mine) <= most:
            return mine
        kept: Ints = mine[np.argpartition(self.worth(mine), most)[:most]]
        return kept

    def _raise(self, rows: Ints, bound_ns: Floats, level: int) -> None:
        overhead = self.rows.problem.stack.launch.step_overhead_s
        self.bound_s[rows] = np.maximum(self.bound_s[rows], bound_ns / NS_PER_S + overhead)
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
        set_policy(self.rows, mine, policy)
        pipe = self.bounds.pipelines.moved(mine)
        self.needed_bytes[mine] = needs(self.rows.some([row])).needed_bytes[0]
        self._raise(
            mine, np.repeat(self.bounds.pipelines.passes_bound_ns(np.array([pipe])), len(mine)), PASSES
        )

    def _passes(self, row: int) -> None:
        pipelines = self.bounds.pipelines
        chosen = self._at(KERNELS, 16 * PIPES_AT_ONCE)
        which = np.unique(np.append(pipelines.index[chosen], pipelines.index[row]))
        found = np.zeros(len(pipelines.row))
        found[which] = pipelines.passes_bound_ns(which)
        mine = self._active[
            (self.level[self._active] == KERNELS) & (found[pipelines.index[self._active]] > 0)
        ]
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
            times = pipelines.passes.alone_ns(pipelines.key[which[mine]], shape)[0]
            path = pipelines.path(shape, which[mine], Stages.plain(shape, times))
            extra = self.squeeze.extra_ns(rows[mine], shape)
            ends = path.ends[:, [0, -1]].T + pipelines.microbatches(which[mine]) * extra
            found[mine] = ends.max(axis=0)
        return found

    def _steps(self, row: int) -> None:
        if undecided(self.rows, row).any():
            self._decide(row)
            return
        rows = np.unique(np.append(self._at(PASSES, ROWS_AT_ONCE), row))
        rows = rows[~undecided(self.rows, rows)]
        self._raise(rows, self.bounds.of(rows), STEP)

    def _works(self, row: int) -> None:
        """By the work of ranks where passes run together, which says little else; other rows are swept."""
        pipelines = self.bounds.pipelines
        if not pipelines.shapes[int(pipelines.shapes.index[row])].pairs:
            self._sweep(row)
            return
        rows = self._like(row, STEP, WORKED_AT_ONCE)
        self._raise(rows, self.sweeps.by_work(rows), WORK)

    def _sweep(self, row: int) -> None:
        rows = self._like(row, int(self.level[row]), SWEPT_AT_ONCE)
        self._raise(rows, self.sweeps.of(rows), SWEPT)
        self.swept += len(rows)

    def _like(self, row: int, level: int, most: int) -> Ints:
        """A row and active ones of a level with the same table, those with the lowest bounds."""
        columns, alike = self.rows, self._active[self.level[self._active] == level]
        for name in ("schedule", "pp", "vpp", "microbatches"):
            values = columns.code[name] if name in columns.code else columns[name]
            alike = alike[values[alike] == values[row]]
        if len(alike) > most:
            alike = alike[np.argpartition(self.worth(alike), most)[:most]]
        return np.unique(np.append(alike, row))
