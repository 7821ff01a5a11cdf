"""Branch and bound that goes on behind the winner, as far as an effort reaches that is the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import TooManyOps
from simpar.planner.certify.exact import MANY_OPS, SimulatedPlan
from simpar.planner.certify.frontier import EXACT, SWEPT, Frontier
from simpar.planner.certify.speculation import SpeculativeWorkers, one_of_each
from simpar.planner.space.portable import refusals
from simpar.program.emission.emit import at_most
from simpar.units import Flags, Floats, Ints
from simpar.workers import Workers

SIMULATION_S, OP_S, SWEEP_S = 0.1, 5e-7, 0.02
"""Seconds that a simulation, each of its ops, and a sweep of a row usually take on one core.

Efforts are counted in these and not by a clock, so that the answer is the same on every machine.
"""
LEAN_SWEEP_S = 0.002
"""Seconds of a sweep where a list is to be made certain: what it takes where rows are swept many at once."""
MAX_TRIES = 12
"""Tables swept to find the next row to simulate."""


@dataclass
class Continuation:
    """Simulations of rows with the lowest bounds of a frontier, while the effort of ``left_s`` seconds lasts.

    ``ratios`` are those of worth to bound of the rows simulated so far. ``ahead`` simulates small steps before their
    turn, with the workers of the search ``before``; it is the caller's to end.
    """

    frontier: Frontier
    left_s: float
    before: SpeculativeWorkers | None = None
    ratios: list[float] = field(default_factory=list)
    done: Flags = field(init=False)
    ahead: SpeculativeWorkers = field(init=False)
    _too_large: Flags = field(init=False)
    _large: list[int] = field(init=False)
    _saved_s: float = 0.0
    _open: Ints = field(init=False)

    @staticmethod
    def of(frontier: Frontier, least_s: float, before: SpeculativeWorkers | None = None) -> Continuation:
        """With the effort that the search of the frontier has taken, and at least ``least_s`` seconds of it."""
        spent_s = SIMULATION_S * len(frontier.simulated) + OP_S * frontier.num_ops + SWEEP_S * frontier.swept
        return Continuation(frontier, max(least_s, spent_s), before)

    def __post_init__(self) -> None:
        self.done = self.frontier.level >= EXACT  # closed by the search: simulated, refused, or too full
        self.done[list(self.frontier.simulated)] = True
        self._too_large = np.zeros(self.frontier.rows.count, dtype=bool)
        self._large = [row for row, one in self.frontier.simulated.items() if one.num_slots > MANY_OPS]
        self._open = np.zeros(0, dtype=np.int64)
        before = self.before or SpeculativeWorkers([self.frontier], Workers())
        self.ahead = before.behind(self.frontier, self._coming, MANY_OPS)

    def open(self, rows: Ints, limit: Callable[[Ints], Floats]) -> Ints:
        """Those of some rows that may be worth less than their ``limit`` and were not simulated, nor refused."""
        rows = rows[~self.done[rows]]
        return np.asarray(rows[self.frontier.worth(rows) < limit(rows)])

    def simulate_lowest(
        self, rows: Ints, limit: Callable[[Ints], Floats], least_s: float = 0.0, *, lean: bool = False
    ) -> Iterator[tuple[int, SimulatedPlan]]:
        """Rows with the lowest bounds and their simulated steps, until none is ``open`` or ``least_s`` are left.

        ``limit`` gives the limits of rows; they only fall, and the caller changes them between two simulations. With
        ``lean``, sweeps count as LEAN_SWEEP_S.
        """
        frontier = self.frontier
        while self._left_s(lean) > least_s:
            rows = self.open(rows, limit)
            rows, swept = rows[~self._too_large[rows]], frontier.swept
            if not len(rows):
                return
            self._open = rows
            row = frontier.shortest(rows, tries=MAX_TRIES)
            self.left_s -= SWEEP_S * (frontier.swept - swept)
            self._saved_s += (SWEEP_S - LEAN_SWEEP_S) * (frontier.swept - swept)
            if row is None or frontier.worth(row) >= limit(np.array([row]))[0]:  # bounds have risen
                continue
            if refusals(frontier.rows, row) or not frontier.may_fit(row):
                self.done[row] = True
                continue
            bound = float(frontier.worth(row))
            most_ops = max(int((self._left_s(lean) - least_s) / OP_S), 1)
            try:
                with at_most(most_ops):
                    one = self.ahead.simulate(0, row, np.inf, most_ops)
            except TooManyOps:
                self._too_large |= frontier.at_least_as_large(row)
                continue
            self.done[row] = True
            self._large += [row] if one.num_slots > MANY_OPS else []
            self.left_s -= SIMULATION_S + OP_S * one.num_ops
            self.ratios.append(one.worth / bound)
            yield row, one

    def _left_s(self, lean: bool) -> float:
        return self.left_s + (self._saved_s if lean else 0.0)

    def _coming(
        self, frontier: Frontier, _best: float, asked: Sequence[int]
    ) -> Iterator[tuple[tuple[bool, float], int]]:
        """Swept rows with the lowest bounds of those that were open last and are not large, in their order."""
        rows = self._open[frontier.level[self._open] >= SWEPT]
        rows = rows[~self.done[rows]]
        for row in self._large:
            rows = rows[~frontier.at_least_as_large(row, rows)]
        worth = frontier.worth(rows)
        order = np.argsort(worth, kind="stable")
        return one_of_each(frontier, rows[order], ((False, each) for each in worth[order].tolist()), asked)
