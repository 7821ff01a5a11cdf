"""Orders: the actions of every pipeline rank as the schedule alone has them, for all plans that run the schedule."""

from dataclasses import field
from functools import cached_property, lru_cache

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.schedules.actions import LETTERS, F, Schedule, W
from simpar.program.fold.refinement import by_appearance
from simpar.program.structure.stages import FLAGS, Key, flags_of
from simpar.units import Ints

MOST_KEPT = 8
"""Schedules whose orders are kept: those of layouts that are simulated one after the other."""


@dataclass(frozen=True, eq=False)
class Order:
    """The n - 1 actions of a pipeline rank in order, and the tail of the step as the n-th entry.

    ``keys`` are the distinct (letter, virtual stage, flags) in order of appearance, ``key`` int64[n - 1] is that of
    every action; flags hold FLAGS times its hop (:func:`hops`). ``stage`` and ``microbatch`` (both -1 for the tail) are
    int64[n]. ``ways`` are (stage, stage that it waits for or -1, a microbatch) that differ in who sends, ``way``
    int64[n] is that of every entry; its arrival waits for action number ``awaited`` int64[n] (-1: none) of the latter
    stage's rank.
    """

    keys: list[Key]
    key: Ints
    stage: Ints
    microbatch: Ints
    awaited: Ints
    ways: list[list[int]]
    way: Ints

    def keys_at(self, actions: Ints) -> list[int]:
        """The indices of the keys of some actions, int64[n] ascending, in order of appearance."""
        first = np.full(len(self.keys), len(self.key))
        first[self.key[actions[::-1]]] = actions[::-1]  # the first of several is written last
        count = np.count_nonzero(first < len(self.key))
        appearing: list[int] = np.argsort(first, kind="stable")[:count].tolist()
        return appearing


@dataclass(frozen=True, eq=False)
class Orders:
    """The orders of the ranks of a schedule, each made when it is first asked for.

    ``by_runs`` is as in :func:`simpar.program.structure.stages.flags_of`, ``by_stage`` as in :func:`ways`.
    """

    schedule: Schedule
    by_runs: bool
    by_stage: bool
    _made: dict[int, Order] = field(init=False, default_factory=dict)

    def of(self, rank: int) -> Order:
        """The order of actions that all classes of a pipeline rank share."""
        if rank not in self._made:
            self._made[rank] = self._make(rank)
        return self._made[rank]

    def _make(self, rank: int) -> Order:
        """Forwards wait for the forward of the stage before, backwards for the gradient of the stage behind.

        A backward of the last stage waits for its own forward.
        """
        code, here, number = (each.astype(np.int64) for each in self.schedule.arrays(rank))
        stage, microbatch = np.append(here, -1), np.append(number, -1)
        forward, last = code == F, here + 1 == self.schedule.num_stages
        source = np.where(forward, here - 1, np.where(last, here, here + 1))
        source = np.append(np.where(code == W, -1, source), -1)
        waits, gradient = np.flatnonzero(source >= 0), np.where(forward | last, 0, 1)
        awaited = np.full(len(stage), -1)
        awaited[waits] = self._positions[gradient[waits], source[waits], microbatch[waits]]
        senders = by_appearance(ways(self.schedule, stage, source, microbatch, by_stage=self.by_stage))
        flags = flags_of(code, here, by_runs=self.by_runs) + FLAGS * hops(self.schedule, rank, code, here, number)
        width = FLAGS * self.schedule.num_ranks
        each, key = distinct((here * len(LETTERS) + code) * width + flags)
        keys = [(LETTERS[one // width % len(LETTERS)], one // width // len(LETTERS), one % width) for one in each]
        pairs = np.stack([stage, source, microbatch], axis=1)[senders.representative].tolist()
        return Order(keys, key, stage, microbatch, awaited, pairs, senders.class_of)

    @cached_property
    def _positions(self) -> Ints:
        """Position, on its rank, of the action that hands an activation (0: F) or a gradient (1: B or I) over.

        int64[2, stages, microbatches], -1 for none.
        """
        ranks = self.schedule.ranks
        count = 1 + max(int(columns.microbatch.max(initial=0)) for columns in ranks)
        result = np.full((2, self.schedule.num_stages, count), -1, dtype=np.int64)
        for columns in ranks:
            at = np.flatnonzero(columns.code != W)
            way = np.where(columns.code[at] == F, 0, 1)
            result[way, columns.stage[at], columns.microbatch[at]] = at
        return result


@lru_cache(maxsize=MOST_KEPT)
def orders_of(schedule: Schedule, *, by_runs: bool, by_stage: bool) -> Orders:
    """The orders of a schedule; schedules are kept too (:func:`simpar.plan.schedules.make_schedule`)."""
    return Orders(schedule, by_runs, by_stage)


def hops(schedule: Schedule, rank: int, code: Ints, stage: Ints, microbatch: Ints) -> Ints:
    """Pipeline ranks, modulo their number, that the message of each of a rank's actions goes ahead, int64[n].

    Where no message of the plan depends on its microbatch, they are 0: two stages say how far it is.
    """
    if not schedule.ranks_of_first:
        return np.zeros_like(code)
    target = np.clip(np.where(code == F, stage + 1, stage - 1), 0, schedule.num_stages - 1)
    ahead: Ints = (schedule.rank_of(target, microbatch) - rank) % schedule.num_ranks
    return ahead


def ways(schedule: Schedule, stage: Ints, source: Ints, microbatch: Ints | int = 0, *, by_stage: bool) -> Ints:
    """Numbers int64[n], equal only where the same ranks send from stages ``source`` (-1: none) to ``stage``.

    ``by_stage``: who sends from a stage depends on who receives.
    """
    if schedule.ranks_of_first:
        return np.where(source < 0, -1, schedule.rank_of(source, microbatch))
    if by_stage:
        return stage * (schedule.num_stages + 1) + source + 1
    return np.append(np.asarray(schedule.rank_of_stage, dtype=np.int64), -1)[source]


def distinct(values: Ints) -> tuple[list[int], Ints]:
    """Distinct values in order of appearance, and the index int64[n] of every value among them."""
    classes = by_appearance(values)
    return values[classes.representative].tolist(), classes.class_of
