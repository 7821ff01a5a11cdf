"""The layouts next to the best, in their order, certified as far as the effort reaches.

A layout stands for its variants: plans that differ in virtual stages, in ZeRO stages that work alike, in replicas of
states, overlaps of data parallelism, and the order of ranks.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property, partial

import numpy as np

from simpar.dataclass import dataclass
from simpar.planner.answer.continuation import Continuation
from simpar.planner.certify.exact import SimulatedPlan
from simpar.planner.certify.frontier import Frontier
from simpar.planner.certify.speculation import SpeculativeWorkers
from simpar.units import Floats, Ints

VARIANT_TOLERANCE = 0.005
"""A variant of a simulated layout is simulated, too, if it may be better by more than this share."""
LEAST_EFFORT_S, RESERVED_S = 15.0, 2.0
"""Seconds of effort that a ranking may take even if the certificate took less; and those kept for the rows that bounds
say most about, which are simulated if the best layouts are not certain."""


@dataclass
class LayoutRanking:
    """Layouts of a frontier other than that of the ``winner`` (a row), best first by their best simulated variant."""

    frontier: Frontier
    winner: int
    search: Continuation
    _best: dict[int, tuple[float, int]] = field(default_factory=dict)

    @staticmethod
    def of(frontier: Frontier, winner: int, before: SpeculativeWorkers | None = None) -> LayoutRanking:
        """A ranking with all that was simulated so far, and the effort that it may take."""
        return LayoutRanking(frontier, winner, Continuation.of(frontier, LEAST_EFFORT_S, before))

    def __post_init__(self) -> None:
        self.take_all()

    def take_all(self) -> None:
        """Take in all rows that were simulated, also one between whose simulation and its place here it was stopped."""
        for row, one in self.frontier.simulated.items():
            self._take(row, one)

    @cached_property
    def layout(self) -> Ints:
        """The layout number of every row."""
        return self.frontier.layouts()

    @cached_property
    def _others(self) -> Ints:
        """Rows of all layouts but the winner's."""
        return np.flatnonzero(self.layout != self.layout[self.winner])

    @property
    def rows(self) -> list[int]:
        """The row of the best simulated variant of every other layout that fits, best first."""
        return [row for _, row in sorted(self._best.values())]

    def ranked(self) -> list[SimulatedPlan]:
        """The best simulated variant of every other layout that fits, best first."""
        return [self.frontier.simulated[row] for row in self.rows]

    def find(self, count: int) -> None:
        """Simulate until the best ``count`` layouts are certain, or until the effort has been spent.

        In the second case, the last of it goes to rows whose tensor ranks do not span domains: bounds leave out the
        contention for links between domains, so they say most where there is little of it.
        """
        self._simulate(self._others, count, np.inf, RESERVED_S)
        inside = self.frontier.rows.at("tp", self._others) <= self.frontier.rows.problem.cluster.domain_size
        self._simulate(self._others[inside], count, np.inf)

    def settle(self, limit: float) -> None:
        """Simulate layouts that may be worth less than ``limit``, as far as the effort reaches."""
        self._simulate(self._others, None, limit)

    def certified(self, count: int) -> int:
        """How many of the best ``count`` layouts are certain to be the best of all others, in their order."""
        lowest = self.lowest(count)
        return sum(lowest is None or worth <= lowest for worth, _ in sorted(self._best.values())[:count])

    def lowest(self, count: int) -> float | None:
        """The lowest bound of a row that may still be among the best ``count`` layouts; None if there is none."""
        rows = self.open(count)
        return float(self.frontier.worth(rows).min()) if len(rows) else None

    def open(self, count: int) -> Ints:
        """Rows that may still be among the best ``count`` layouts."""
        return self.search.open(self._others, partial(self._limits, count, np.inf))

    def unseen(self, limit: float) -> tuple[Floats, int]:
        """Layouts of which no variant was simulated and that may be worth less than ``limit``.

        Returns the lowest bound of each, ascending, and the number of their rows below the limit.
        """
        rows = self.search.open(self._others, partial(self._limits, None, limit))
        known = np.zeros(int(self.layout.max()) + 1, dtype=bool)
        known[list(self._best)] = True
        rows = rows[~known[self.layout[rows]]]
        rows = rows[np.argsort(self.frontier.worth(rows), kind="stable")]
        first = np.unique(self.layout[rows], return_index=True)[1]
        return np.sort(np.asarray(self.frontier.worth(rows[first]))), len(rows)

    @property
    def usual_ratio(self) -> float:
        """The median ratio of worth to bound over the rows simulated beside the winner; 1 without any."""
        ratios, middle = sorted(self.search.ratios), len(self.search.ratios) // 2  # numpy's imports masked arrays
        return (ratios[(len(ratios) - 1) // 2] + ratios[middle]) / 2 if ratios else 1.0

    def _take(self, row: int, one: SimulatedPlan) -> None:
        at = int(self.layout[row])
        if one.fits and at != self.layout[self.winner]:
            self._best[at] = min(self._best.get(at, (one.worth, row)), (one.worth, row))

    def _simulate(self, rows: Ints, count: int | None, limit: float, least_s: float = 0.0) -> None:
        wanted = partial(self._limits, count, limit)
        for row, one in self.search.simulate_lowest(rows, wanted, least_s, lean=count is not None):
            self._take(row, one)

    def _limits(self, count: int | None, limit: float, rows: Ints) -> Floats:
        """The bounds from which rows are of no interest.

        A variant of one of the best ``count`` layouts is if it is better by little, one of a layout behind them is not:
        that may be the next best.
        """
        worth = sorted(one for one, _ in self._best.values())
        if count is not None and len(worth) >= count:
            limit = min(limit, worth[count - 1]) if count else -np.inf
        by_layout = np.full(int(self.layout.max()) + 1, limit)
        for at, (each, _) in self._best.items():
            if count is None or each <= limit:
                by_layout[at] = min(limit, each * (1.0 - VARIANT_TOLERANCE))
        return np.asarray(by_layout[self.layout[rows]])
