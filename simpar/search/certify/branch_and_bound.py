"""A search under way: one arena for every number of nodes, the lowest bound first, until the best is certain."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible
from simpar.report.result import Result
from simpar.search.certify.exact import Exact, Figures, figures_of, measure
from simpar.search.certify.frontier import SWEPT, Arena
from simpar.search.problem import Problem
from simpar.search.progress import Watch
from simpar.search.result import Counts
from simpar.search.space.fit import Need, needs
from simpar.search.space.rows import ORIGIN, late_count, memory_rows, plan_of, refusals, with_late_axes


@dataclass
class Field:
    """The space of one number of nodes: what its rows need in memory, and the arena of those that fit."""

    problem: Problem
    space_size: int
    need: Need
    arena: Arena | None

    @staticmethod
    def of(problem: Problem) -> Field:
        """Enumerate, decide memory, bound. Raises Infeasible where no plan is legal."""
        rows = memory_rows(problem)
        need = needs(rows)
        fit = need.needed_bytes <= problem.memory_limit_bytes
        size = late_count(rows.some(~fit)) if not fit.all() else 0
        if not fit.any():
            return Field(problem, size, need, None)
        feasible = with_late_axes(rows.some(fit))
        needed = need.needed_bytes[fit][feasible.code[ORIGIN]]
        return Field(problem, size + feasible.count, need, Arena.of(feasible, needed))


@dataclass
class Hunt:
    """Fields, what was simulated, and who watches; not ``is_bounded`` where its fields are not those of its problem."""

    fields: list[Field]
    watch: Watch
    found: list[Exact] = field(default_factory=list)
    num_ops: int = 0
    is_bounded: bool = True
    _ahead: dict[tuple[int, int], Figures | None] = field(default_factory=dict)

    @property
    def arenas(self) -> list[Arena]:
        """Arenas of the fields in which something fits."""
        return [one.arena for one in self.fields if one.arena is not None]

    @property
    def best(self) -> float:
        """The best objective of a simulated plan that fits and meets the deadline, infinity without one."""
        return min((found.worth for found in self.found if self.counts_for(found)), default=np.inf)

    def counts_for(self, found: Exact) -> bool:
        """Whether a simulated plan satisfies the constraints."""
        deadline = found.problem.constraints.deadline_s
        return found.fits and (deadline is None or found.step_time_s <= deadline)

    def counts(self) -> Counts:
        """What has been done so far."""
        feasible = sum(arena.rows.count for arena in self.arenas)
        swept = sum(arena.swept for arena in self.arenas)
        return Counts(sum(one.space_size for one in self.fields), feasible, feasible, swept, len(self.found))

    def lowest(self) -> tuple[Arena, int] | None:
        """The arena and row with the lowest bound of all that may still win, or None."""
        rows = [(arena, row) for arena in self.arenas if (row := arena.next()) is not None]
        deadlines = [arena.rows.problem.constraints.deadline_s for arena, _ in rows]
        rows = [
            (arena, row)
            for (arena, row), most in zip(rows, deadlines, strict=True)
            if most is None or arena.bound_s[row] <= most
        ]
        return min(rows, key=lambda one: float(one[0].worth(one[1])), default=None)

    def run(self) -> None:
        """Until nothing can beat the best."""
        while (lowest := self.lowest()) is not None:
            self.watch.check()
            arena, row = lowest
            if arena.worth(row) >= self.best:
                return
            if arena.level[row] < SWEPT:
                arena.sharpen(row)
            else:
                self.simulate(arena, row)
                for each in self.arenas:
                    each.forget(self.best)
            best = self.best
            self.watch.report("searching", self.counts(), best if np.isfinite(best) else None)

    def simulate(self, arena: Arena, row: int) -> Exact | None:
        """Simulate a row, unless the export target refuses its plan. Stopped halfway, the row still counts as open."""
        if refusals(arena.rows, row):
            arena.settle(row)
            return None
        found = self._measured(arena, row)
        self.num_ops = found.num_ops
        if self.counts_for(found) and found.worth < self.best:  # only the best will be reported as it was run
            self.found = [one.alone for one in self.found]
        else:
            found = found.alone
        self.found.append(found)
        arena.settle(row, found)
        return found

    def _measured(self, arena: Arena, row: int) -> Exact:
        """The simulated step of a row; with several workers those of rows that are likely to be next, as well.

        What these find is kept until their turn comes, so that the search takes the same way with any number of
        workers.
        """
        problem, workers = arena.rows.problem, self.watch.workers
        if workers.jobs == 1:
            return measure(problem, plan_of(arena.rows, row), self.num_ops)
        place = self.arenas.index(arena)
        if (place, row) not in self._ahead:
            rows = [(place, row), *self._likely(workers.at_once)]
            rows = [one for one in dict.fromkeys(rows) if one not in self._ahead][: workers.at_once]
            arenas = self.arenas
            plans = [
                (arenas[at].rows.problem, plan_of(arenas[at].rows, each), self.num_ops) for at, each in rows
            ]
            self._ahead.update(zip(rows, workers.map(figures_of, plans), strict=True))
        plan, figures = plan_of(arena.rows, row), self._ahead.pop((place, row))
        return figures.exact(problem, plan) if figures else measure(problem, plan, self.num_ops)

    def _likely(self, most: int) -> list[tuple[int, int]]:
        """Arenas and rows that are swept and have the lowest bounds of those that are not simulated yet."""
        found = [
            (float(arena.worth(row)), at, row)
            for at, arena in enumerate(self.arenas)
            for row in arena.nearest(SWEPT, 2 * most)
        ]
        return [(at, row) for worth, at, row in sorted(found) if worth < self.best]

    def report(self) -> Result:
        """The result of the best plan, of which the step that was run is not kept any longer."""
        result = self.ranked()[0].report()
        self.found = [one.alone for one in self.found]
        return result

    def gap(self) -> float:
        """The share of the best objective by which an unseen plan might still beat it; 1 where none is bounded."""
        if not self.is_bounded:
            return 1.0
        lowest, best = self.lowest(), self.best
        if lowest is None or not np.isfinite(best):
            return 0.0
        return max(0.0, 1.0 - float(lowest[0].worth(lowest[1])) / best)

    def ranked(self) -> list[Exact]:
        """Simulated plans that satisfy the constraints, best first; equal ones in the order of the space."""
        return sorted(
            (found for found in self.found if self.counts_for(found)), key=lambda found: found.worth
        )


def fields_of(problem: Problem, node_counts: list[int]) -> list[Field]:
    """The fields of several numbers of nodes. Raises Infeasible where no plan is legal on any of them."""
    fields, refused = [], None
    for nodes in node_counts:
        try:
            fields.append(Field.of(replace(problem, cluster=replace(problem.cluster, nodes=nodes))))
        except Infeasible as error:
            refused = error
    if not fields:
        raise refused or Infeasible("no number of nodes to search")
    return fields


Mask = NDArray[np.bool_]
