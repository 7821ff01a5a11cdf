"""Branch and bound: one frontier per number of nodes, the lowest bound first, until the best plan is certain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import Infeasible, TooManyOps
from simpar.planner.certify.exact import SimulatedPlan
from simpar.planner.certify.frontier import SWEPT, Frontier
from simpar.planner.certify.speculation import SpeculativeWorkers
from simpar.planner.problem import Problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import Counts
from simpar.planner.space.fit import Need, needs
from simpar.planner.space.portable import refusals
from simpar.planner.space.rows import ORIGIN, late_count, memory_rows, with_late_axes
from simpar.planner.space.table import Rows

Hear = Callable[[str, int], None]
"""Called with the next phase and the number of layouts it handles; 0 if that is not known yet."""


def nobody(_phase: str, _layouts: int) -> None:
    """Ignores what it is told."""


@dataclass
class Field:
    """The space for one number of nodes: rows over the axes that memory depends on, their memory, and the frontier.

    ``frontier`` has the rows that fit, joined with the other axes; None if nothing fits.
    """

    problem: Problem
    space_size: int
    rows: Rows
    need: Need
    frontier: Frontier | None

    @staticmethod
    def of(problem: Problem, hear: Hear = nobody) -> Field:
        """Enumerate the space, decide memory, and bound what fits. Raises Infeasible if no plan is legal."""
        hear("enumerating", 0)
        rows = memory_rows(problem)
        hear("deciding what fits", rows.count)
        return Field.among(rows, needs(rows), hear)

    @staticmethod
    def among(rows: Rows, need: Need, hear: Hear = nobody, like: Frontier | None = None) -> Field:
        """The field of given rows over the axes that memory depends on: bounds those that fit.

        ``like``: see :meth:`Frontier.of`.
        """
        problem = rows.problem
        fit = need.needed_bytes <= problem.memory_limit_bytes
        size = late_count(rows.subset(~fit)) if not fit.all() else 0
        if not fit.any():
            return Field(problem, size, rows, need, None)
        feasible = with_late_axes(rows.subset(fit))
        needed = need.needed_bytes[fit][feasible.code[ORIGIN]]
        hear("bounding", feasible.count)
        frontier = Frontier.of(feasible, needed, like)
        feasible.forget()
        return Field(problem, size + feasible.count, rows, need, frontier)


@dataclass
class BranchAndBound:
    """Fields, simulated plans (``simulated``) and progress.

    ``is_bounded`` is False if the fields cover only a part of the problem, so that nothing bounds the rest. ``ahead``
    are other processes while it runs, and behind that what these have found.
    """

    fields: list[Field]
    progress: SearchProgress
    simulated: list[SimulatedPlan] = field(default_factory=list)
    is_bounded: bool = True
    ahead: SpeculativeWorkers | None = None

    @property
    def frontiers(self) -> list[Frontier]:
        """The frontiers of the fields in which something fits."""
        return [one.frontier for one in self.fields if one.frontier is not None]

    @property
    def best(self) -> float:
        """The incumbent: the lowest objective of a simulated plan that satisfies the constraints, else infinity."""
        return min((one.worth for one in self.simulated if self.counts_for(one)), default=np.inf)

    def counts_for(self, simulated: SimulatedPlan) -> bool:
        """Whether a simulated plan satisfies the constraints."""
        deadline = simulated.problem.constraints.deadline_s
        return simulated.fits and (deadline is None or simulated.step_time_s <= deadline)

    def hear(self, phase: str, layouts: int) -> None:
        """Report a phase on so many layouts, before any of them is simulated."""
        self.progress.report(phase, replace(self.counts(), space_size=layouts), None)

    def counts(self) -> Counts:
        """What has been done so far."""
        feasible = sum(frontier.rows.count for frontier in self.frontiers)
        swept = sum(frontier.swept for frontier in self.frontiers)
        return Counts(sum(one.space_size for one in self.fields), feasible, feasible, swept, len(self.simulated))

    def lowest(self) -> tuple[Frontier, int] | None:
        """The frontier and row with the lowest bound of all that may still win; None if there is none."""
        rows = []
        for frontier in self.frontiers:
            row, deadline_s = frontier.next(), frontier.rows.problem.constraints.deadline_s
            if row is not None and deadline_s is not None and frontier.bound_s[row] > deadline_s:
                # the row with the least energy may be late where others are not
                frontier.drop_late(deadline_s)
                row = frontier.next()
            if row is not None:
                rows.append((frontier, row))
        return min(rows, key=lambda one: float(one[0].worth(one[1])), default=None)

    def run(self, most: int | None = None) -> None:
        """Search until nothing can beat the incumbent, or until ``most`` plans have been simulated."""
        with SpeculativeWorkers(self.frontiers, self.progress.workers) as self.ahead:
            self._run(most)

    def _run(self, most: int | None) -> None:
        before = len(self.simulated)
        while (lowest := self.lowest()) is not None and (most is None or len(self.simulated) - before < most):
            self.progress.check()
            frontier, row = lowest
            if frontier.worth(row) >= self.best:
                return
            frontier, row = self._hopeful() or lowest
            if frontier.level[row] < SWEPT:
                frontier.raise_bound(row)
            else:
                self.simulate(frontier, row)
                for each in self.frontiers:
                    each.prune(self.best)
            best = self.best
            self.progress.report("searching", self.counts(), best if np.isfinite(best) else None)

    def _hopeful(self) -> tuple[Frontier, int] | None:
        """The row that is expected to beat the incumbent by most, where bounds alone are a poor guide."""
        best = self.best
        rows = [(frontier, row) for frontier in self.frontiers if (row := frontier.hopeful(best)) is not None]
        return min(rows, key=lambda one: float(one[0].worth(one[1])), default=None)

    def simulate(self, frontier: Frontier, row: int) -> SimulatedPlan | None:
        """Simulate a row, unless the export target refuses its plan; None if it was not simulated.

        If interrupted, the row still counts as open. A row whose Program has more ops than are built stays open as
        well, but is not looked at again.
        """
        if refusals(frontier.rows, row):
            frontier.close(row)
            return None
        if not frontier.may_fit(row):
            return None
        try:
            result = self._measured(frontier, row)
        except TooManyOps:
            frontier.mark_unbuildable(row)
            return None
        self.simulated.append(result)
        frontier.close(row)
        return result

    def _measured(self, frontier: Frontier, row: int) -> SimulatedPlan:
        """The simulated step of a row, possibly from another process."""
        if self.ahead is None:
            return frontier.simulate(row)
        return self.ahead.simulate(self.frontiers.index(frontier), row, self.best)

    def gap(self) -> float:
        """The share of the incumbent's objective by which an unseen plan might still beat it; 1 without bounds."""
        if not self.is_bounded:
            return 1.0
        lowest, best = self.lowest(), self.best
        least = [float(one.worth(one.unbuilt).min()) for one in self.frontiers if len(one.unbuilt)]
        least += [float(lowest[0].worth(lowest[1]))] if lowest else []
        if not least or not np.isfinite(best):
            return 0.0
        return max(0.0, 1.0 - min(least) / best)

    def unbuilt(self) -> int:
        """The number of rows that may win but whose Program has more ops than are built."""
        best = self.best
        return sum(int((one.worth(one.unbuilt) < best).sum()) for one in self.frontiers)

    def count_unseen(self, limit_s: float) -> int:
        """The number of rows bounded below ``limit_s`` that were neither simulated, dropped nor refused."""
        return sum(one.count_unseen(limit_s) for one in self.frontiers)

    def left_out(self) -> dict[str, list[Any]]:
        """Values of axes that the export target left out for every number of nodes."""
        spaces = [(one.frontier.rows if one.frontier else one.rows).left_out for one in self.fields]
        first, *others = spaces or [{}]
        return {
            name: [value for value in values if all(value in other.get(name, ()) for other in others)]
            for name, values in first.items()
        }

    def ranked(self) -> list[SimulatedPlan]:
        """Simulated plans that satisfy the constraints, best first; ties in the order of the space."""
        return sorted((one for one in self.simulated if self.counts_for(one)), key=lambda one: one.worth)


def fields_of(problem: Problem, node_counts: list[int], hear: Hear = nobody) -> list[Field]:
    """The fields of several numbers of nodes. Raises Infeasible if no plan is legal on any of them."""
    fields, refused = [], None
    for nodes in node_counts:
        try:
            fields.append(Field.of(replace(problem, cluster=replace(problem.cluster, nodes=nodes)), hear))
        except Infeasible as error:
            refused = error
    if not fields:
        raise refused or Infeasible("no number of nodes to search")
    return fields
