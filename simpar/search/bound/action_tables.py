"""Action tables swept in batches: when every pass of a pipeline ends, for many rows that share a table.

The graph of a table has one node an action, which waits for the action before it on its rank and for the message (or
the pass on the same rank) that brings its input. Passes of a rank run one after the other, so finish times follow
level by level, as in :mod:`simpar.engine.sweep`, with a batch axis over rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simpar.compiled import Loop
from simpar.plan.schedules.actions import LETTERS, B, F, I, Schedule, W, waits_for
from simpar.search.bound.paths import Hops
from simpar.search.space.table import together
from simpar.units import Flags, Floats, Ints

Blocked = frozenset[tuple[str, bool]]


class Graph(NamedTuple):
    """Columns int64[actions] of a table, and in ``order`` its actions, each behind all that it waits for.

    ``before`` to ``queue`` are actions (-1: none), ``column`` and ``message`` say what takes how long, ``opened`` of
    which stage an action is the first forward (-1: of none).
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
class Table:
    """The precedence graph of a schedule, actions rank after rank.

    ``code``, ``stage`` and ``rank`` int64[actions]; ``before`` is the previous action on the rank and ``source`` the
    one that brings the input (-1: none). ``joined`` are forwards that run together with the action behind them: the
    forward waits for the inputs of both (``other`` is the second one) and takes the time of both. ``whole`` is the
    table in which no pair came apart, where this is another.
    """

    schedule: Schedule
    code: Ints
    stage: Ints
    rank: Ints
    before: Ints
    source: Ints
    other: Ints
    joined: Ints
    whole: Table | None = None

    @staticmethod
    def of(schedule: Schedule, apart: Blocked = frozenset(), whole: Table | None = None) -> Table:
        """The graph of a verified table; passes of a kind in ``apart`` run together with nothing.

        ``whole`` is the graph of the same table where all pairs run together.
        """
        sizes = [len(columns) for columns in schedule.ranks]
        code, stage = (
            np.concatenate([getattr(columns, name) for columns in schedule.ranks]).astype(np.int64)
            for name in ("code", "stage")
        )
        rank = np.repeat(np.arange(len(sizes)), sizes)
        before = np.where(np.diff(rank, prepend=-1) > 0, -1, np.arange(len(code)) - 1)
        source = waits_for(schedule)
        source[code == W] = -1
        marked = _boundary(code, stage)
        alone = np.array([(letter, bool(last)) in apart for letter in LETTERS for last in (0, 1)])[
            code * 2 + marked
        ]
        pairs = np.flatnonzero(np.concatenate([columns.overlap for columns in schedule.ranks]))
        joined = pairs[~(alone[pairs] | alone[pairs + 1])]
        other = np.full(len(code), -1, dtype=np.int64)
        other[joined], source[joined + 1] = source[joined + 1], -1
        return Table(
            schedule,
            code,
            stage,
            rank,
            before,
            source,
            other,
            joined,
            whole,
        )

    @cached_property
    def boundary(self) -> Flags:
        """The first forward of every stage, and the last action of every other letter."""
        return _boundary(self.code, self.stage)

    def last_of(self, rank: int) -> int:
        """The last action of a rank."""
        return int(np.flatnonzero(self.rank == rank)[-1])

    @cached_property
    def _reducing(self) -> dict[tuple[int, int, bool], tuple[Ints, list[tuple[int, bool]], Ints]]:
        return {}

    def reducing(self, rank: int, code: int, *, every: bool) -> tuple[Ints, list[tuple[int, bool]], Ints]:
        """Actions of a rank behind which gradients are reduced: all of a letter, or the last one of each stage.

        With their distinct (stage, boundary) and which of these each of them has.
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
        """Actions in groups that wait only for earlier groups: where pairs come apart, those of the whole table do."""
        if self.whole is not None:
            return self.whole.levels
        depth = np.zeros(len(self.code), dtype=np.int64)
        ends = np.flatnonzero(np.diff(self.rank, append=-1)) + 1
        DEPTHS(ends, self.source, self.other, depth)
        return list(together(depth))

    @cached_property
    def graph(self) -> Graph:
        """The columns that a sweep reads action by action."""
        order, opened = (
            np.concatenate(self.levels),
            np.where(self.boundary & (self.code == F), self.stage, -1),
        )
        waits = self.before, self.source, self.other
        return Graph(order, *waits, self.queue, self.column, self.message, opened)

    @cached_property
    def message(self) -> Ints:
        """Which message every action sends.

        Ahead behind stage s is s, back behind stage s + 1 is S - 1 + s, and 2 S - 2 is none.
        """
        num, ranks = len(self.schedule.rank_of_stage), np.array(self.schedule.rank_of_stage)
        ahead, back = self.code == F, (self.code == B) | (self.code == I)
        target = np.where(ahead, self.stage + 1, np.where(back, self.stage - 1, -1))
        sends = (target >= 0) & (target < num)
        sends &= ranks[np.clip(target, 0, num - 1)] != self.rank
        return np.where(sends, np.where(ahead, self.stage, num - 2 + self.stage), 2 * num - 2)

    @cached_property
    def queue(self) -> Ints:
        """The action whose message leaves before that of every action on the same stream (-1: none)."""
        num, ranks = len(self.schedule.rank_of_stage), np.array(self.schedule.rank_of_stage)
        target = np.clip(np.where(self.code == F, self.stage + 1, self.stage - 1), 0, num - 1)
        distance = (ranks[target] - self.rank) % self.schedule.num_ranks
        stream = (self.rank * 2 + (self.code == F)) * self.schedule.num_ranks + distance
        found = np.full(len(self.code), -1, dtype=np.int64)
        senders = np.flatnonzero(self.message < 2 * num - 2)
        order = senders[np.argsort(stream[senders], kind="stable")]
        same = stream[order[1:]] == stream[order[:-1]]
        found[order[1:][same]] = order[:-1][same]
        return found

    @cached_property
    def column(self) -> Ints:
        """Which duration every action has: (letter, boundary, stage) as one index.

        Behind those come the ``pairs``, and for every stage a backward whose pair took its time.
        """
        num = len(self.schedule.rank_of_stage)
        found = (self.code * 2 + self.boundary) * num + self.stage
        if len(self.joined):
            first = 2 * len(LETTERS) * num
            found[self.joined] = first + self._distinct[1]
            found[self.joined + 1] = first + len(self.pairs) + self.stage[self.joined + 1]
        return found

    @cached_property
    def _distinct(self) -> tuple[Ints, Ints]:
        """Numbers of the distinct pairs, and which of them each pair is."""
        num, back = len(self.schedule.rank_of_stage), self.joined + 1
        number = (self.stage[self.joined] * len(LETTERS) + self.code[back]) * num + self.stage[back]
        unique, index = np.unique(number, return_inverse=True)
        return unique, index

    @cached_property
    def pairs(self) -> tuple[tuple[int, str, int], ...]:
        """Distinct pairs: stage of the forward, letter and stage of the backward."""
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
    table: Table, times: Times, hops: Hops, floors: Floats | None = None, pairs: Pairs | None = None
) -> Floats:
    """When every action ends, float64[actions, n].

    ``times`` are durations [n, stages] by (letter, boundary), ``pairs`` [n] those of the table's pairs; ``floors``
    [n, stages] is when at the earliest the first forward of a stage can end. Messages of one stream queue behind
    each other.
    """
    durations, messages = charged(table, times, hops, pairs)
    count = durations.shape[1]
    all_sent = hops.blocking or bool(
        messages[:-1].all()
    )  # else some stages send none back, which queue for nothing
    finish = np.zeros((len(table.code) + 1, count))  # the last row stands for nothing to wait for
    arrival = np.zeros_like(finish)
    if (sweep := SWEEP.when_worth(finish.size)) is not None:
        opening = np.zeros((0, 0)) if floors is None else floors
        sweep(table.graph, (durations, messages), opening, (finish, arrival), all_sent)
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
        finish[level] = end
        took = messages[table.message[level]]
        behind = np.maximum(end, arrival[table.queue[level]])
        arrival[level] = (behind if all_sent else np.where(took > 0, behind, end)) + took
    return finish[:-1]


def _sweep(
    graph: Graph,
    charges: tuple[Floats, Floats],
    floors: Floats,
    found: tuple[Floats, Floats],
    all_sent: bool,
) -> None:
    """As :func:`finishes_ns` by level, action by action; fills ``found``, ends and arrivals behind all messages."""
    durations, messages = charges
    finish, arrival = found
    for at in graph.order:
        before, source, other, queue = graph.before[at], graph.source[at], graph.other[at], graph.queue[at]
        for row in range(finish.shape[1]):
            begin = max(finish[before, row], arrival[source, row], arrival[other, row])
            end = begin + durations[graph.column[at], row]
            if len(floors) and graph.opened[at] >= 0:
                end = max(end, floors[row, graph.opened[at]])
            finish[at, row] = end
            took = messages[graph.message[at], row]
            leaves = max(end, arrival[queue, row]) if all_sent or took > 0 else end
            arrival[at, row] = leaves + took


def _depths(ends: Ints, source: Ints, other: Ints, depth: Ints) -> None:
    """How many actions at most stand in a chain that ends with each one.

    Ranks, whose actions stop before ``ends``, run as far as they can, there and back, until all have run all.
    """
    ranks, left = len(ends), len(depth)
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


SWEEP = Loop(_sweep)
DEPTHS = Loop(_depths)


def charged(table: Table, times: Times, hops: Hops, pairs: Pairs | None = None) -> tuple[Floats, Floats]:
    """Durations by the table's columns and messages, float64[..., n]: what blocks its sender lengthens the pass."""
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


def _columns(table: Table, hops: Hops) -> Floats:
    """A zero for every column of a table and every row: passes by letter, boundary and stage, pairs, stages."""
    stages = len(table.schedule.rank_of_stage)
    return np.zeros((len(LETTERS) * 2 * stages + len(table.pairs) + stages, len(hops.ahead)))


def _blocked(table: Table, durations: Floats, hops: Hops) -> tuple[Floats, Floats]:
    """Durations that include the message behind a pass, and messages that take nothing more."""
    messages = np.zeros((2 * len(table.schedule.rank_of_stage) - 1, durations.shape[1]))
    return durations + _sent(table, hops), messages


def computed_ns(table: Table, finish: Floats, hops: Hops) -> Floats:
    """When the kernels of every action end, before what blocks its sender, float64[actions, n]."""
    return np.asarray(finish - _sent(table, hops)[table.column]) if hops.blocking else finish


def _sent(table: Table, hops: Hops) -> Floats:
    """What the messages behind passes take, by the table's columns, float64[..., n]."""
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
