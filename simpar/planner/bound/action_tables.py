"""Batched sweeps of action tables: when every pass of a pipeline ends, for many rows that share a table.

In the graph of a table every action is a node. It waits for the previous action on its rank and for the message (or the
pass on the same rank) that brings its input. Finish times follow level by level, as in :mod:`simpar.engine.sweep`, with
a batch axis over rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simpar.dataclass import dataclass
from simpar.native import NativeLibrary, int64_column, pointers
from simpar.plan.schedules.actions import LETTERS, B, F, I, Schedule, W, waits_for
from simpar.planner.bound.paths import Hops
from simpar.planner.space.table import group_indices
from simpar.units import Flags, Floats, Ints

Blocked = frozenset[tuple[str, bool]]
LIBRARY = NativeLibrary(Path(__file__).with_suffix(".c"), worth=500_000)  # entries of finish times


class ActionColumns(NamedTuple):
    """Columns int64[actions] of a table; ``order`` lists its actions, each after everything that it waits for.

    ``before``, ``source``, ``other`` and ``queue`` are actions (-1: none). ``column`` and ``message`` index the
    durations of passes and messages. ``opened`` is the stage whose first forward an action is (-1: none).
    """

    order: Ints
    before: Ints
    source: Ints
    other: Ints
    queue: Ints
    column: Ints
    message: Ints
    opened: Ints


@dataclass(frozen=True)
class PrecedenceGraph:
    """The precedence graph of a schedule; actions are numbered rank by rank.

    ``code``, ``stage`` and ``rank`` are int64[actions]. ``before`` is the previous action on the rank, ``source`` the
    action that brings the input (-1: none). ``joined`` are forwards that run together with the action after them: the
    forward waits for the inputs of both (``other`` brings the second one) and takes the time of both. If some pairs
    have been split here, ``whole`` is the table in which none has.
    """

    schedule: Schedule
    code: Ints
    stage: Ints
    rank: Ints
    before: Ints
    source: Ints
    other: Ints
    joined: Ints
    whole: PrecedenceGraph | None = None

    @staticmethod
    def of(schedule: Schedule) -> PrecedenceGraph:
        """The graph of a verified schedule."""
        sizes = [len(columns) for columns in schedule.ranks]
        code, stage = (
            np.concatenate([getattr(columns, name) for columns in schedule.ranks]).astype(np.int64)
            for name in ("code", "stage")
        )
        rank = np.repeat(np.arange(len(sizes)), sizes)
        before = np.where(np.diff(rank, prepend=-1) > 0, -1, np.arange(len(code)) - 1)
        source = waits_for(schedule)
        source[code == W] = -1
        joined = np.flatnonzero(np.concatenate([columns.overlap for columns in schedule.ranks]))
        other = np.full(len(code), -1, dtype=np.int64)
        other[joined], source[joined + 1] = source[joined + 1], -1
        return PrecedenceGraph(schedule, code, stage, rank, before, source, other, joined)

    def split(self, apart: Blocked) -> PrecedenceGraph:
        """The graph in which passes of the kinds in ``apart`` run together with nothing."""
        kinds = np.array([(letter, bool(last)) in apart for letter in LETTERS for last in (0, 1)])
        alone = kinds[self.code * 2 + self.boundary]
        alone = alone[self.joined] | alone[self.joined + 1]
        source, other, gone = self.source.copy(), self.other.copy(), self.joined[alone]
        source[gone + 1], other[gone] = other[gone], -1
        return replace(self, source=source, other=other, joined=self.joined[~alone], whole=self)

    @cached_property
    def boundary(self) -> Flags:
        """Marks the first forward of every stage and, for every other letter, the last action of every stage."""
        return self.whole.boundary if self.whole else _boundary(self.code, self.stage)

    def last_of(self, rank: int) -> int:
        """The last action of a rank."""
        return int(np.flatnonzero(self.rank == rank)[-1])

    @cached_property
    def closing(self) -> Ints:
        """The first action of every rank that is or begins the last backward of a stage, int64[ranks]."""
        last = np.flatnonzero(self.boundary & (self.code != F))
        first = last[np.unique(self.rank[last], return_index=True)[1]]
        return first - np.isin(first - 1, self.joined)

    @cached_property
    def _reducing(self) -> dict[tuple[int, int, bool], tuple[Ints, list[tuple[int, bool]], Ints]]:
        return self.whole._reducing if self.whole else {}

    def reducing(self, rank: int, code: int, *, every: bool) -> tuple[Ints, list[tuple[int, bool]], Ints]:
        """Actions of a rank after which gradients are reduced: all of a letter, or the last one of each stage.

        Returns the actions, the distinct pairs (stage, boundary) among them, and the index of each action's pair.
        """
        known = rank, code, every
        if known not in self._reducing:
            actions = np.flatnonzero((self.rank == rank) & (self.code == code) & (self.boundary | every))
            each = list(zip(self.stage[actions].tolist(), self.boundary[actions].tolist(), strict=True))
            keys = list(dict.fromkeys(each))
            position = {key: at for at, key in enumerate(keys)}
            key_of = np.array([position[key] for key in each], dtype=np.int64)
            self._reducing[known] = actions, keys, key_of
        return self._reducing[known]

    @cached_property
    def levels(self) -> list[Ints]:
        """Actions in groups that wait only for earlier groups; a table with split pairs has the levels of ``whole``."""
        if self.whole is not None:
            return self.whole.levels
        ends = np.flatnonzero(np.diff(self.rank, append=-1)) + 1
        return list(group_indices(depths(ends, self.source, self.other)))

    @cached_property
    def graph(self) -> ActionColumns:
        """The columns that a sweep reads action by action."""
        waits, own = (self.before, self.source, self.other), self.whole or self
        return ActionColumns(own._order, *waits, self.queue, self.column, self.message, own._opened)

    @cached_property
    def _order(self) -> Ints:
        return np.concatenate(self.levels)

    @cached_property
    def _opened(self) -> Ints:
        return np.where(self.boundary & (self.code == F), self.stage, -1)

    @cached_property
    def message(self) -> Ints:
        """The number of the message that every action sends.

        With S virtual stages, the message ahead from stage s is s, the one back from stage s + 1 is S - 1 + s, and 2 S
        - 2 stands for none.
        """
        if self.whole:
            return self.whole.message
        num, ranks = len(self.schedule.rank_of_stage), np.array(self.schedule.rank_of_stage)
        ahead, back = self.code == F, (self.code == B) | (self.code == I)
        target = np.where(ahead, self.stage + 1, np.where(back, self.stage - 1, -1))
        sends = (target >= 0) & (target < num)
        sends &= ranks[np.clip(target, 0, num - 1)] != self.rank
        return np.where(sends, np.where(ahead, self.stage, num - 2 + self.stage), 2 * num - 2)

    @cached_property
    def queue(self) -> Ints:
        """The action whose message directly precedes that of every action on the same stream (-1: none)."""
        if self.whole:
            return self.whole.queue
        num, ranks = len(self.schedule.rank_of_stage), np.array(self.schedule.rank_of_stage)
        target = np.clip(np.where(self.code == F, self.stage + 1, self.stage - 1), 0, num - 1)
        distance = (ranks[target] - self.rank) % self.schedule.num_ranks
        stream = (self.rank * 2 + (self.code == F)) * self.schedule.num_ranks + distance
        result = np.full(len(self.code), -1, dtype=np.int64)
        senders = np.flatnonzero(self.message < 2 * num - 2)
        order = senders[np.argsort(stream[senders], kind="stable")]
        same = stream[order[1:]] == stream[order[:-1]]
        result[order[1:][same]] = order[:-1][same]
        return result

    @cached_property
    def column(self) -> Ints:
        """The index of the duration of every action: (letter, boundary, stage) as one number.

        After these follow the ``pairs``, and then a zero for every stage: the backward of a pair, whose time the pair
        has.
        """
        num = len(self.schedule.rank_of_stage)
        result = (self.code * 2 + self.boundary) * num + self.stage
        if len(self.joined):
            first = 2 * len(LETTERS) * num
            result[self.joined] = first + self._distinct[1]
            result[self.joined + 1] = first + len(self.pairs) + self.stage[self.joined + 1]
        return result

    @cached_property
    def _distinct(self) -> tuple[Ints, Ints]:
        """The codes of the distinct pairs, and the index of every pair among them."""
        num, back = len(self.schedule.rank_of_stage), self.joined + 1
        number = (self.stage[self.joined] * len(LETTERS) + self.code[back]) * num + self.stage[back]
        unique, index = np.unique(number, return_inverse=True)
        return unique, index

    @cached_property
    def pairs(self) -> tuple[tuple[int, str, int], ...]:
        """Distinct pairs as (stage of the forward, letter of the backward, stage of the backward)."""
        num = len(self.schedule.rank_of_stage)
        rest, back = np.divmod(self._distinct[0], num)
        ahead, letter = np.divmod(rest, len(LETTERS))
        each = zip(ahead.tolist(), letter.tolist(), back.tolist(), strict=True)
        return tuple((one, LETTERS[code], other) for one, code, other in each)


def _boundary(code: Ints, stage: Ints) -> Flags:
    num = int(stage.max()) + 1
    key = code * num + stage
    marked = np.zeros(len(key), dtype=bool)
    _, first = np.unique(key, return_index=True)
    marked[first[code[first] == F]] = True
    _, last = np.unique(key[::-1], return_index=True)
    last = len(key) - 1 - last
    marked[last[code[last] != F]] = True
    return marked


Times = Mapping[tuple[str, bool], Floats]
Pairs = Mapping[tuple[int, str, int], Floats]


def finishes_ns(
    table: PrecedenceGraph,
    times: Times,
    hops: Hops,
    floors: Floats | None = None,
    pairs: Pairs | None = None,
    least: Floats | None = None,
) -> Floats:
    """When every action ends, float64[actions, n], at the earliest when ``least`` [actions, n] says.

    ``times`` holds durations [n, stages] by (letter, boundary) and ``pairs`` [n] those of the table's pairs. ``floors``
    [n, stages] are the earliest ends of the first forwards of stages. Messages of one stream queue behind each other.
    """
    durations, messages = charge_messages(table, times, hops, pairs)
    count = durations.shape[1]
    all_sent = hops.blocking or bool(
        messages[:-1].all()
    )  # else some stages send nothing back, and these must not queue
    finish = np.zeros((len(table.code) + 1, count))  # index -1, the extra last row: nothing to wait for
    arrival = np.zeros_like(finish)
    if library := LIBRARY.load_for(finish.size):
        opening = np.zeros((0, 0)) if floors is None else floors
        ends = np.zeros((0, 0)) if least is None else least
        numbers = [np.ascontiguousarray(each, np.float64) for each in (durations, messages, opening, ends)]
        graph = [int64_column(each) for each in table.graph]
        sizes = [ctypes.c_int64(size) for size in (len(table.code), count, opening.shape[1], len(ends), int(all_sent))]
        library.sweep(*sizes, *pointers(*graph, *numbers, finish, arrival))
        return finish[:-1]
    opened = np.zeros(len(table.code), dtype=bool) if floors is None else table.graph.opened >= 0
    for level in table.levels:
        begin = np.maximum(finish[table.before[level]], arrival[table.source[level]])
        if len(table.joined):
            begin = np.maximum(begin, arrival[table.other[level]])
        end = begin + durations[table.column[level]]
        mine = opened[level]
        if floors is not None and mine.any():
            end[mine] = np.maximum(end[mine], floors.T[table.stage[level][mine]])
        if least is not None:
            end = np.maximum(end, least[level])
        finish[level] = end
        took = messages[table.message[level]]
        behind = np.maximum(end, arrival[table.queue[level]])
        arrival[level] = (behind if all_sent else np.where(took > 0, behind, end)) + took
    return finish[:-1]


def depths(ends: Ints, source: Ints, other: Ints) -> Ints:
    """The length of the longest chain of actions that ends with each action, int64[actions].

    The actions of a rank stop before its entry of ``ends``. Ranks are visited back and forth, each running as far as
    its inputs allow, until all have run all actions.
    """
    ranks, left = len(ends), len(source)
    if library := LIBRARY.load_for(left):
        result, columns = np.zeros(left, dtype=np.int64), [int64_column(each) for each in (ends, source, other)]
        assert library.find_depths(ctypes.c_int64(ranks), *pointers(*columns, result)), "a verified table has no cycle"
        return result
    return np.array(_depths(ends.tolist(), source.tolist(), other.tolist()), dtype=np.int64)


def _depths(ends: list[int], source: list[int], other: list[int]) -> list[int]:
    """:func:`depths` in Python."""
    ranks, left, depth = len(ends), len(source), [0] * len(source)
    position, chain = [0 if rank == 0 else ends[rank - 1] for rank in range(ranks)], [0] * ranks
    while left > 0:
        before = left
        for turn in range(2 * ranks):
            rank = turn if turn < ranks else 2 * ranks - 1 - turn
            for at in range(position[rank], ends[rank]):
                one, two, deepest = source[at], other[at], chain[rank]
                if (one >= 0 and depth[one] == 0) or (two >= 0 and depth[two] == 0):
                    break
                if one >= 0:
                    deepest = max(deepest, depth[one])
                if two >= 0:
                    deepest = max(deepest, depth[two])
                chain[rank] = depth[at] = deepest + 1
                position[rank] = at + 1
                left -= 1
        assert left < before, "a verified table has no cycle"
    return depth


def charge_messages(
    table: PrecedenceGraph, times: Times, hops: Hops, pairs: Pairs | None = None
) -> tuple[Floats, Floats]:
    """Durations by column and messages, float64[..., n]; a blocking message lengthens the pass of its sender."""
    stages, durations = len(table.schedule.rank_of_stage), _columns(table, hops)
    for (letter, boundary), values in times.items():
        first = (LETTERS.index(letter) * 2 + boundary) * stages
        durations[first : first + stages] = values.T
    for at, pair in enumerate(table.pairs):
        assert pairs is not None, "a table of pairs is swept with their durations"
        durations[len(LETTERS) * 2 * stages + at] = pairs[pair]
    if hops.blocking:
        return _blocked(table, durations, hops)
    return durations, np.concatenate([hops.ahead.T, hops.back.T, np.zeros_like(durations[:1])])


def _columns(table: PrecedenceGraph, hops: Hops) -> Floats:
    """Zeros for every column of a table and every row: passes by (letter, boundary, stage), pairs, stages."""
    stages = len(table.schedule.rank_of_stage)
    return np.zeros((len(LETTERS) * 2 * stages + len(table.pairs) + stages, len(hops.ahead)))


def _blocked(table: PrecedenceGraph, durations: Floats, hops: Hops) -> tuple[Floats, Floats]:
    """Durations with the blocking message after each pass added, and messages that then take no time."""
    messages = np.zeros((2 * len(table.schedule.rank_of_stage) - 1, durations.shape[1]))
    return durations + _sent(table, hops), messages


def compute_ends_ns(table: PrecedenceGraph, finish: Floats, hops: Hops) -> Floats:
    """When the kernels of every action end, before any blocking message, float64[actions, n]."""
    return np.asarray(finish - _sent(table, hops)[table.column]) if hops.blocking else finish


def _sent(table: PrecedenceGraph, hops: Hops) -> Floats:
    """The time of the message after each pass, by the columns of the table, float64[..., n]."""
    stages, sent = len(table.schedule.rank_of_stage), _columns(table, hops)
    for code, ahead in ((F, True), (B, False), (I, False)):
        for boundary in (0, 1):
            first = (code * 2 + boundary) * stages
            if ahead:
                sent[first : first + stages - 1] = hops.ahead.T
            else:
                sent[first + 1 : first + stages] = hops.back.T
    first = len(LETTERS) * 2 * stages
    for at, (stage, _, _) in enumerate(table.pairs):
        if stage + 1 < stages:
            sent[first + at] = hops.ahead[:, stage]
    sent[first + len(table.pairs) + 1 :] = hops.back.T
    return sent
