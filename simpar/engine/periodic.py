"""Steps that repeat: microbatches in the middle of a step that run like those before them are not run one by one.

A Program whose microbatches are alike over some range (:class:`Range`, checked op by op and edge by edge) is run with
fewer of them. Where every op of a period in that run starts and finishes one and the same time after its counterpart of
the period before, and nothing else is under way (:func:`_turn`), the state of the step repeats, so that those that
were left out repeat that period. Times are the integers that the whole Program would give; where any of this does not
hold, there is no answer, and the whole Program has to be run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.ir.program import Csr, OpTable, Program, Timing
from simpar.units import Flags, Indices, Ints, unique

FEW_OPS, FEW_MICROBATCHES = 10_000, 12
"""A Program with fewer ops, or fewer microbatches for each of its classes, is run as a whole.

Looking for what repeats takes about a third of the time of running all ops, and a pipeline fills and drains with about
four microbatches for each of its ranks.
"""
MANY_OPS = 1_000_000
"""A Program with more ops is run as a whole too.

Of three public launches with more, two do not settle within half of their microbatches, and what is run to see it
takes up to six tenths of the time of running all.
"""
MOST_KEPT = 0.3
"""The most microbatches, as a share of all, that are run to see whether the step repeats."""
LAPS = 12
"""Microbatches are left out by as many, or by two periods; times may repeat after any part of them.

In pipelines, times may repeat only after as many periods as ranks wait for each other in turn.
"""
MOST_STREAMS = 4
"""The most streams that an op of a microbatch may be on."""
MOST_BLOCKS = 2**16


@dataclass(frozen=True)
class MicrobatchBlocks:
    """Ops by class and microbatch: block b is ``order[start[b] : start[b] + size[b]]``.

    ``block`` is the block of every op and ``place`` where it stands there, ``microbatch`` its microbatch, of which
    there are ``count``. A class's first block has its ops of no microbatch, -1; then they come in order.
    """

    order: Indices
    start: Indices
    size: Indices
    place: Indices
    block: Indices
    microbatch: Indices
    count: int

    @staticmethod
    def of(program: Program) -> MicrobatchBlocks | None:
        """The blocks of a Program; None where it has too few microbatches, or too many blocks."""
        microbatch, class_id = program.ops.microbatch, program.ops.class_id
        count, classes = int(microbatch.max(initial=-1)) + 1, int(class_id.max(initial=-1)) + 1
        if count < FEW_MICROBATCHES * classes or classes * (count + 1) >= MOST_BLOCKS:
            return None
        block = class_id.astype(np.int32) * (count + 1) + microbatch + 1
        order = np.argsort(block.astype(np.uint16), kind="stable").astype(np.int32)  # 16-bit integers: by radix
        size = np.bincount(block, minlength=classes * (count + 1)).astype(np.int32)
        start = (np.cumsum(size) - size).astype(np.int32)
        place = np.empty(len(program), dtype=np.int32)
        place[order] = np.arange(len(program), dtype=np.int32) - np.repeat(start, size)
        return MicrobatchBlocks(order, start, size, place, block, microbatch.astype(np.int32), count)

    def shift(self, ops: Indices, by: int | Ints) -> Ints:
        """The counterparts of ops so many microbatches later; -1 where there is none. Those of none are their own."""
        old = self.microbatch[ops]
        new = old + by
        exists = (old >= 0) & (new >= 0) & (new < self.count)
        block = self.block[ops] + np.where(exists, by, 0)
        place = self.place[ops]
        exists &= place < self.size[block]
        target = self.order[np.where(exists, self.start[block] + place, 0)]
        return np.where(exists, target, np.where(old < 0, ops, -1)).astype(np.int64)


@dataclass(frozen=True)
class Waits:
    """For what ops wait: dependencies, ``degree`` of every op, and predecessors on streams.

    ``entry`` are the entries of Program.streams at which every op of a microbatch stands, int64[ops] each: first ones,
    second ones ...; -1 where an op has no more. ``stream`` is the stream of every entry.
    """

    dependencies: Csr
    degree: Ints
    streams: Csr
    entry: tuple[Ints, ...]
    stream: Indices

    @staticmethod
    def of(program: Program, blocks: MicrobatchBlocks) -> Waits | None:
        """Those of a Program; None where an op of a microbatch is on too many streams."""
        item = program.streams.item.astype(np.int64)
        left, entry = np.flatnonzero(blocks.microbatch[item] >= 0), list[Ints]()
        while len(left):
            if len(entry) == MOST_STREAMS:
                return None
            nth = np.full(len(program), -1, dtype=np.int64)
            nth[item[left[::-1]]] = left[::-1]  # the first entry of an op is assigned last
            left = left[nth[item[left]] != left]
            entry.append(nth)
        streams = replace(program.streams, item=item)
        dependencies = replace(program.dependencies, item=program.dependencies.item.astype(np.int64))
        return Waits(dependencies, np.diff(dependencies.pointer), streams, tuple(entry), streams.owners())

    def before(self, entry: Ints) -> Ints:
        """The op before an entry on its stream; -2 for the first one of a stream."""
        return np.where(entry > self.streams.pointer[self.stream[entry]], self.streams.item[entry - 1], -2)

    def entries_of(self, ops: Ints) -> tuple[Ints, Ints]:
        """(Index in ``ops``, entry) of all their dependencies."""
        degree = self.degree[ops]
        owner = np.repeat(np.arange(len(ops)), degree)
        inside = np.arange(len(owner)) - np.repeat(np.cumsum(degree) - degree, degree)
        return owner, self.dependencies.pointer[ops][owner] + inside


@dataclass(frozen=True)
class Range:
    """Microbatches ``first`` to below ``end``, each of which is like the one ``period`` later, that one included.

    ``reach`` is how many microbatches lie at most between an op of these and what it waits for.
    """

    blocks: MicrobatchBlocks
    waits: Waits
    period: int
    first: int
    end: int
    reach: int

    @property
    def laps(self) -> int:
        """Periods that are left out together."""
        return _laps(self.period)

    @property
    def length(self) -> int:
        """Microbatches that are alike, the last period included."""
        return self.end + self.period - self.first


def run(program: Program, engine: Callable[[Program], Timing]) -> Timing:
    """Start and finish of every op, as ``engine`` gives them for the Program or for one with fewer microbatches."""
    short = _shortened(program)
    timing = None if short is None else short.whole(engine(short.program))
    return engine(program) if timing is None else timing


def _shortened(program: Program) -> Short | None:
    """The Program with as few microbatches as may show that it repeats; None where most would be left."""
    if not FEW_OPS <= len(program) <= MANY_OPS or (blocks := MicrobatchBlocks.of(program)) is None:
        return None
    alike = _range_of(program, blocks)
    if alike is None:
        return None
    turns = _turns(blocks, alike.length, alike.period, alike.reach)
    return None if turns is None else Short.of(program, alike, turns)


def _turns(blocks: MicrobatchBlocks, length: int, period: int, reach: int) -> int | None:
    """Periods to leave out where ``length`` microbatches are alike; None where most would be left."""
    laps, wanted = _laps(period), 3 * reach + 4 * period + 4
    turns = (length - wanted) // period // laps * laps
    return None if blocks.count - turns * period > MOST_KEPT * blocks.count else turns


def _laps(period: int) -> int:
    """Periods that are left out together."""
    return max(LAPS // period, 2)


def _range_of(program: Program, blocks: MicrobatchBlocks) -> Range | None:
    """The longest range of microbatches that are alike; None where there is none worth it."""
    waits = Waits.of(program, blocks)
    if waits is None:
        return None
    classes = int(program.ops.class_id.max()) + 1
    periods = [each for each in sorted({1, 2, 4, classes}) if 4 * each <= blocks.count]
    middle = (blocks.count - max(periods)) // 2
    for period in periods:
        pairs = _Pairs.of(program, blocks, period, (middle, middle + max(periods)))
        unlike, least = pairs.differing(program, waits)
        if unlike.any():
            continue
        if _turns(blocks, blocks.count, period, least) is None:
            return None  # not even if all are alike
        differs, reach = _Pairs.of(program, blocks, period, (0, blocks.count - period)).differing(program, waits)
        first, end = _longest(~differs)
        return Range(blocks, waits, period, first, end, reach)
    return None


def _longest(flags: Flags) -> tuple[int, int]:
    """The longest run of set flags: its first and the one behind its last."""
    bounds = np.flatnonzero(np.concatenate([[True], ~flags, [True]]))
    at = int(np.argmax(np.diff(bounds)))
    return int(bounds[at]), int(bounds[at + 1]) - 1


@dataclass(frozen=True)
class _Pairs:
    """Ops of a span of microbatches, and their counterparts a period later, -1 for none.

    ``later`` are the counterparts of all ops, where the span is all.
    """

    blocks: MicrobatchBlocks
    period: int
    span: tuple[int, int]
    ops: Ints
    others: Ints
    later: Ints | None

    @staticmethod
    def of(program: Program, blocks: MicrobatchBlocks, period: int, span: tuple[int, int]) -> _Pairs:
        """Those of a span."""
        ops = np.flatnonzero((blocks.microbatch >= span[0]) & (blocks.microbatch < span[1]))
        whole = 2 * len(ops) > len(program)
        later = blocks.shift(np.arange(len(program)), period) if whole else None
        return _Pairs(blocks, period, span, ops, blocks.shift(ops, period) if later is None else later[ops], later)

    def shift(self, ops: Indices) -> Ints:
        """The counterparts of any ops a period later."""
        return self.blocks.shift(ops, self.period) if self.later is None else self.later[ops]

    def differing(self, program: Program, waits: Waits) -> tuple[Flags, int]:
        """Which microbatches are not like those a period later: in ops, or in what these wait for.

        Also how many microbatches lie at most between an op that is alike and what it waits for.
        """
        ops, table, blocks = self.ops, program.ops, self.blocks
        differs = self.others < 0
        others = np.where(differs, ops, self.others)
        for column in (table.fixed_ns, table.work_bytes, table.route, table.rate_cap_bytes_per_s):
            differs |= column[ops] != column[others]
        differs |= waits.degree[ops] != waits.degree[others]
        alike, waited = np.flatnonzero(~differs), list[tuple[Indices, Indices]]()
        owner, entry = waits.entries_of(ops[alike])
        owner, before = alike[owner], waits.dependencies.item[entry]
        unlike = self.shift(before) != waits.dependencies.item[waits.entries_of(others[alike])[1]]
        differs[owner[unlike]] = True
        waited.append((owner, before))
        for nth in waits.entry:
            mine, its = nth[ops], nth[others]
            differs |= (mine < 0) != (its < 0)
            both = np.flatnonzero((mine >= 0) & (its >= 0))
            mine, its = mine[both], its[both]
            ahead, after = waits.before(mine), waits.before(its)
            unlike = (waits.stream[mine] != waits.stream[its]) | (ahead < 0) | (after < 0)
            unlike |= self.shift(np.maximum(ahead, 0)) != after
            differs[both[unlike]] = True
            waited.append((both, ahead))
        reach = 0
        for own, other in waited:
            there = blocks.microbatch[np.maximum(other, 0)]
            counts = ~differs[own] & (other >= 0) & (there >= 0)
            reach = max(reach, int(np.abs(blocks.microbatch[ops[own]] - there).max(where=counts, initial=0)))
        return self._by_microbatch(differs), reach

    def _by_microbatch(self, differs: Flags) -> Flags:
        """Microbatches with an op that differs, or with another number of ops than the one a period later."""
        first, end = self.span
        sizes = self.blocks.size.reshape(-1, self.blocks.count + 1)[:, 1:]
        result: Flags = (sizes[:, first:end] != sizes[:, first + self.period : end + self.period]).any(axis=0)
        result[self.blocks.microbatch[self.ops[differs]] - first] = True
        return result


@dataclass(frozen=True)
class Short:
    """A Program without ``turns`` periods of a range, and where its ops come from.

    ``ops`` are the ops of the whole Program that stand for those of ``program``, ``microbatch`` theirs in ``program``:
    from ``cut`` on they are those of the whole Program less the ones left out.
    """

    program: Program
    alike: Range
    turns: int
    cut: int
    ops: Ints
    microbatch: Ints

    @staticmethod
    def of(program: Program, alike: Range, turns: int) -> Short | None:
        """Leave out some periods; None if an op waits for one in a way that does not repeat."""
        blocks, gone = alike.blocks, turns * alike.period
        cut = alike.end - alike.reach - gone
        if cut < alike.first + alike.reach + alike.period:
            return None
        kept = (blocks.microbatch < cut) | (blocks.microbatch >= cut + gone)
        ops = np.flatnonzero(kept)
        number = np.where(kept, np.cumsum(kept) - 1, -1)
        cutter = _Cutter(blocks, alike.first, cut, gone)
        streams, dependencies = cutter.streams(alike.waits, kept), cutter.dependencies(alike.waits, ops)
        if streams is None or dependencies is None:
            return None
        columns = {each.name: getattr(program.ops, each.name)[ops] for each in fields(program.ops)}
        less = replace(
            program, ops=OpTable(**columns), streams=replace(streams, item=number[streams.item]),
            dependencies=replace(dependencies, item=number[dependencies.item]),
        )  # fmt: skip
        own = blocks.microbatch[ops]
        return Short(less, alike, turns, cut, ops, np.where(own >= cut, own - gone, own))

    def whole(self, timing: Timing) -> Timing | None:
        """The times of the whole Program from those of this one; None if they do not show that the step repeats."""
        turn = _turn(self, timing)
        if turn is None:
            return None
        early_ns, long_ns, lag = turn
        late_ns, laps = early_ns + long_ns, self.turns * self.alike.period // lag
        blocks, gone = self.alike.blocks, self.turns * self.alike.period
        start, finish = (np.full(len(blocks.place), -1, dtype=np.int64) for _ in range(2))

        def put(rows: Flags, by: int | Ints, later_ns: int | Ints) -> None:
            own = np.flatnonzero(rows)
            target = blocks.shift(self.ops[own], np.where(self.microbatch[own] >= self.cut, by - gone, by))
            own, target = own[target >= 0], target[target >= 0]
            start[target], finish[target] = timing.start_ns[own] + later_ns, timing.finish_ns[own] + later_ns

        is_early = timing.start_ns <= late_ns
        put(is_early, 0, 0)
        again = is_early & (timing.start_ns > early_ns)
        for number in range(1, laps + 1):
            put(again, number * lag, number * long_ns)
        put(~is_early, gone, laps * long_ns)
        return None if (start < 0).any() else Timing(start, finish)


@dataclass(frozen=True)
class _Cutter:
    """Leaves microbatches ``cut`` to below ``cut + gone`` out; ops of the last ones then follow those before the cut.

    What an op waits for is put as the microbatches are counted afterwards: as far from its own as it was. Those before
    ``first`` stay, for they have finished long before.
    """

    blocks: MicrobatchBlocks
    first: int
    cut: int
    gone: int

    def _placed(self, owner: Indices, other: Indices) -> Ints:
        """The ops that stand for what ops wait for; -1 where there is none."""
        own, its = self.blocks.microbatch[owner], self.blocks.microbatch[other]
        is_late = own >= self.cut + self.gone
        by = np.where(is_late & (its >= self.first) & (its < self.cut + self.gone), -self.gone, 0)
        by = np.where((own >= 0) & ~is_late & (its >= self.cut), self.gone, by)
        result = self.blocks.shift(other, by)
        its = self.blocks.microbatch[result]
        return np.where((result >= 0) & ((its < self.cut) | (its >= self.cut + self.gone)), result, -1)

    def dependencies(self, waits: Waits, ops: Ints) -> Csr | None:
        """Those of some ops."""
        owner, entry = waits.entries_of(ops)
        item = self._placed(ops[owner], waits.dependencies.item[entry])
        pointer = np.concatenate([[0], np.cumsum(waits.degree[ops])])
        return None if (item < 0).any() else Csr(pointer, item)

    def streams(self, waits: Waits, kept: Flags) -> Csr | None:
        """Each stream up to the last op before the cut, and from behind the last one that is left out."""
        parts, lengths = list[Indices](), list[int]()
        for number in range(len(waits.streams)):
            row = waits.streams.row(number)
            mine = self.blocks.microbatch[row]
            ends = [np.flatnonzero((mine >= 0) & (mine < least)) for least in (self.cut, self.cut + self.gone)]
            head, tail = (int(each[-1]) if len(each) else -1 for each in ends)
            if head < tail:
                if self.blocks.shift(row[[head]], self.gone)[0] != row[tail]:
                    return None
                first = np.full(head + 1, row[head])  # ops before the cut are put as if all waited like its last
                row = np.concatenate([self._placed(first, row[: head + 1]), row[tail + 1 :]])
            if (row < 0).any() or not kept[row].all() or len(row) != int(kept[waits.streams.row(number)].sum()):
                return None
            if len(unique(row)) < len(row):
                return None
            parts.append(row)
            lengths.append(len(row))
        return Csr(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), np.concatenate(parts))


def _turn(short: Short, timing: Timing) -> tuple[int, int, int] | None:
    """An instant in ns, and the nanoseconds after which the step is in the same state, so many microbatches on.

    None if no instant is known for which this holds.
    """
    begins, ends = _by_microbatch(short.microbatch, timing)
    apart = short.microbatch < 0
    laps, period = short.alike.laps, short.alike.period
    for lag in (part * period for part in range(1, laps + 1) if laps % part == 0):
        steady = _steady(short, timing, lag)
        if steady is None:
            continue
        first, end, long_ns = steady
        for at in range(first + lag, end - lag + 1):
            now_ns = int(ends[at])
            live = (timing.start_ns <= now_ns) & (timing.finish_ns > now_ns)
            since_ns = int(timing.start_ns[live].min(initial=now_ns))
            quiet = ends[first] <= since_ns and ends[first + lag] <= since_ns + long_ns
            closed = begins[end - lag] > now_ns and begins[end] > now_ns + long_ns
            away = (timing.finish_ns[apart] <= since_ns) | (timing.start_ns[apart] > now_ns + long_ns)
            if quiet and closed and away.all():
                return now_ns, long_ns, lag
    return None


def _by_microbatch(own: Ints, timing: Timing) -> tuple[Ints, Ints]:
    """For every number of microbatches: the first start of an op of later ones, and the last finish of earlier ones."""
    count = int(own.max()) + 1
    order = np.argsort(own, kind="stable")
    order = order[int((own < 0).sum()) :]
    at = np.searchsorted(own[order], np.arange(count))
    first = np.minimum.reduceat(timing.start_ns[order], at)
    latest = np.maximum.reduceat(timing.finish_ns[order], at)
    begins = np.minimum.accumulate(first[::-1])[::-1]
    ends = np.maximum.accumulate(latest)
    far = np.iinfo(np.int64).max
    return np.append(begins, far), np.concatenate([[-1], ends])


def _steady(short: Short, timing: Timing, lag: int) -> tuple[int, int, int] | None:
    """The longest range of microbatches all ops of which start and finish one time before those ``lag`` later.

    Its first and the one behind its last, the later ones included, and that time in ns.
    """
    alike, own = short.alike, short.microbatch
    gone = short.turns * alike.period
    last = alike.end + alike.period - gone - lag  # up to here, each microbatch is like the one ``lag`` later
    if last <= alike.first:
        return None
    rows = np.flatnonzero((own >= alike.first) & (own < last))
    crosses = (own[rows] < short.cut) & (own[rows] + lag >= short.cut)
    number = np.full(len(alike.blocks.place), -1, dtype=np.int64)
    number[short.ops] = np.arange(len(short.ops))
    later = number[alike.blocks.shift(short.ops[rows], lag + np.where(crosses, gone, 0))]
    steps = np.stack([timing.start_ns[later] - timing.start_ns[rows], timing.finish_ns[later] - timing.finish_ns[rows]])
    lengths, counts = np.unique(steps[0], return_counts=True)
    if not len(lengths):
        return None
    long_ns = int(lengths[np.argmax(counts)])
    differs = np.zeros(last - alike.first, dtype=bool)
    differs[own[rows[(steps != long_ns).any(axis=0)]] - alike.first] = True
    first, end = (alike.first + each for each in _longest(~differs))
    return (first, end + lag, long_ns) if end - first > lag and long_ns > 0 else None
