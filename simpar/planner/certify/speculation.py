"""Speculative simulations by other processes of the rows that a search will probably need next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.planner.certify.exact import SimulatedPlan, measure
from simpar.planner.certify.frontier import SWEPT, TABLED, Frontier
from simpar.planner.problem import Problem
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.portable import refusals
from simpar.program.emission.emit import MOST_OPS, at_most
from simpar.units import Ints
from simpar.workers import LOCAL, Pool, Workers

if TYPE_CHECKING:
    from concurrent.futures import Future

Place: TypeAlias = tuple[int, int]
"""A frontier (by its index) and one of its rows."""
Task: TypeAlias = tuple[int, Plan, int]
"""A frontier (by its index), the plan of one of its rows, and the most ops that its step may have."""
Coming: TypeAlias = "Callable[[Frontier, float, Sequence[int]], Iterator[tuple[tuple[bool, float], int]]]"
"""Rows that may be simulated next, in their order, each with what decides it: see :func:`likely`."""
MORE_PATIENCE = 6
"""How many times as long a search goes on alone behind its certificate: a process forked there has more to copy."""
TASKS_PER_PROCESS = 2
"""Tasks per forked process: the one it runs and the next one."""


def measure_in_worker(problems: Sequence[Problem], task: Task) -> SimulatedPlan | None:
    """The simulated step of a plan, run in another process; None if it cannot be simulated or has too many ops.

    ``problems`` are those of the frontiers.
    """
    place, plan, most_ops = task
    try:
        with at_most(most_ops):
            return measure(problems[place], plan).release()
    except UserError:
        return None  # the process that needs this plan runs it again and reports why


@dataclass
class SpeculativeWorkers:
    """Keeps what other processes find until its turn comes: a search takes the same path with any number of them.

    ``frontiers`` are those of the search; their number does not change. ``coming`` are rows of one of them that may be
    next (see :func:`likely`), of which other processes simulate those with ``most_ops`` ops or fewer.
    """

    frontiers: Sequence[Frontier]
    workers: Workers
    coming: Coming = field(default_factory=lambda: likely)
    most_ops: int = MOST_OPS
    best: float = float("inf")
    _alone_s: float = 0.0
    _found: dict[Place, Future[SimulatedPlan | None]] = field(default_factory=dict)
    _pool: Pool[Task, SimulatedPlan | None] | None = None
    _refusals: dict[Place, bool] = field(default_factory=dict)

    def __enter__(self) -> SpeculativeWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.__exit__(*error)

    def behind(self, frontier: Frontier, coming: Coming, most_ops: int) -> SpeculativeWorkers:
        """Those that go on with one of the frontiers when this search is over, with what was found for nothing."""
        place = next(at for at, each in enumerate(self.frontiers) if each is frontier)
        over = {(0, row): one for (at, row), one in self._found.items() if at == place and one.done()}
        told = {at: one for at, one in over.items() if not one.cancelled() and one.exception() is None}
        workers = replace(self.workers, patience_s=MORE_PATIENCE * self.workers.patience_s)
        if workers.backend != LOCAL:  # what a second client of a cluster sends may be let go with that of the first
            workers = Workers()
        return SpeculativeWorkers([frontier], workers, coming, most_ops, _found=told)

    def simulate(self, place: int, row: int, best: float, most_ops: int = MOST_OPS) -> SimulatedPlan:
        """The simulated step of a row whose turn has come; rows worth no less than ``best`` are not speculated on.

        It is called inside :func:`at_most` where ``most_ops`` are fewer than are built. Raises TooManyOps if the row's
        Program has more.
        """
        self.best = best
        frontier, alone = self.frontiers[place], self.workers.jobs == 1
        if alone or self._alone_s < self.workers.patience_s:
            began = perf_counter()
            result = frontier.simulate(row)
            self._alone_s += perf_counter() - began
            return result
        from concurrent.futures.process import BrokenProcessPool

        try:
            pool = self._start_pool()
            self._submit_likely(pool, (place, row))
            elsewhere = self._take_result(pool, (place, row))
        except BrokenProcessPool:  # the system killed a process, as when memory runs out: go on alone
            self.workers, elsewhere = Workers(), None
        if elsewhere is None or elsewhere.num_slots > most_ops:
            return frontier.simulate(row)
        result = replace(elsewhere, problem=frontier.rows.problem)
        frontier.record(row, result)
        return result

    def _submit_likely(self, pool: Pool[Task, SimulatedPlan | None], now: Place) -> None:
        """Ask other processes for rows that are likely to be next."""
        queued = sum(not each.done() for each in self._found.values())
        for each in islice(self._likely(pool, now), max(TASKS_PER_PROCESS * pool.size - queued, 0)):
            self._found[each] = pool.submit(self._task(each))

    def _take_result(self, pool: Pool[Task, SimulatedPlan | None], now: Place) -> SimulatedPlan | None:
        """What another process finds for a row; None if this process has to run it.

        While the other process is still running it, this one simulates other likely rows.
        """
        future = self._found.pop(now, None)
        if future is None or (pool.tells_begun and future.cancel()):
            return None
        while not future.done() and (each := next(self._likely(pool, now), None)) is not None:
            self._found[each] = _done(self._function()(self._task(each)))
        return future.result()

    def _function(self) -> Callable[[Task], SimulatedPlan | None]:
        return partial(measure_in_worker, [each.rows.problem for each in self.frontiers])

    def _start_pool(self) -> Pool[Task, SimulatedPlan | None]:
        if self._pool is None:
            self._pool = self.workers.pool(self._function(), beside=True)
        return self._pool

    def _task(self, at: Place) -> Task:
        place, row = at
        return place, plan_of(self.frontiers[place].rows, row), self.most_ops

    def _likely(self, pool: Pool[Task, SimulatedPlan | None], now: Place) -> Iterator[Place]:
        """Rows that are not simulated yet and probably will be, those first that are expected first.

        It is asked when the turn of ``now`` has come, so that no row is dropped before that.
        """
        most = 2 * TASKS_PER_PROCESS * (pool.size + 1)
        asked = [now, *self._found]
        places = [
            (order, at, row)
            for at, frontier in enumerate(self.frontiers)
            for order, row in islice(
                self.coming(frontier, self.best, [row for place, row in asked if place == at]), most
            )
        ]
        for _, at, row in sorted(places):
            rows = self.frontiers[at].rows
            room = (
                self.frontiers[at].worth(row) < self.best
                and self.frontiers[at].least_bytes(row) <= rows.problem.memory_limit_bytes
            )
            if room and not self._refused(at, row):
                yield at, row

    def _refused(self, at: int, row: int) -> bool:
        """Whether the target refuses a row, asked once."""
        if (at, row) not in self._refusals:
            self._refusals[at, row] = bool(refusals(self.frontiers[at].rows, row))
        return self._refusals[at, row]


def likely(frontier: Frontier, best: float, asked: Sequence[int]) -> Iterator[tuple[tuple[bool, float], int]]:
    """Rows beside those ``asked`` that may be simulated next, in their order, each with what decides it.

    They are swept. Where messages meet on links, those of which tables are swept count as well: first those that are
    expected to beat ``best``, then the others by their bounds, and one of all that open alike, because it tells what
    the others take at least.
    """
    rows = frontier.open_from(TABLED if frontier.meets else SWEPT)
    expected = frontier.expected(rows)
    late = np.full(len(rows), frontier.meets) & (expected >= best)
    value = np.where(late, frontier.worth(rows), expected)
    order = np.lexsort((value, late))
    return one_of_each(frontier, rows[order], zip(late[order].tolist(), value[order].tolist(), strict=True), asked)


def one_of_each(
    frontier: Frontier, rows: Ints, order: Iterable[tuple[bool, float]], asked: Sequence[int]
) -> Iterator[tuple[tuple[bool, float], int]]:
    """Rows beside those ``asked``, each with its ``order``: where messages meet, one of all that open alike."""
    meets, openings = frontier.meets, frontier.openings

    def kind(row: int) -> Hashable:
        return row if not meets or frontier.own[row] or openings.told[row] else openings.kind(row)

    known = {*map(kind, asked)}
    for place, row in zip(order, rows.tolist(), strict=True):
        if row in asked or (alike := kind(row)) in known:
            continue
        known.add(alike)
        yield place, row


def _done(simulated: SimulatedPlan | None) -> Future[SimulatedPlan | None]:
    """A future that already has its result."""
    from concurrent.futures import Future

    future: Future[SimulatedPlan | None] = Future()
    future.set_result(simulated)
    return future
