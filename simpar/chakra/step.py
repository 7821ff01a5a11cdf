"""A simulated step as execution traces: the ops of every rank in the order of their start, with their dependencies.

Times are those of the simulation, rounded to microseconds, the unit of execution traces: a node lasts from its rounded
start to its rounded finish, so that errors do not add up and a replay with these durations ends at the rounded end of
the step. Ops without duration are not written; dependencies on them become dependencies on what they waited for.
Consecutive kernels are one node, until it lasts ``MERGED_BELOW_NS`` or another node waits for a kernel in between.

An op waits for the op before it on each of its streams, so stream order is part of the dependencies. A message is a
node of its sender, whose stream it occupies, and a node of its receiver, on which ops that need the message depend.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise

import numpy as np

from simpar.chakra.calls import MESSAGE, PERMUTE, CommunicationCall, calls_of, group_names
from simpar.chakra.messages import COLLECTIVE, COLLECTIVES, COMPUTE, RECEIVE, SEND, Attribute, ChakraTrace, TraceNode
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.program.blocks.phases import COMPUTE as COMPUTE_STREAM
from simpar.program.ir.program import Label, Timing
from simpar.program.lower import Lowered
from simpar.units import NS_PER_S, US, to_ns

NS_PER_US = round(US * NS_PER_S)
MERGED_BELOW_NS = 50 * NS_PER_US
"""Kernels shorter than this are joined with those behind them; a microsecond, the unit of traces, is 2 % of it."""


@dataclass(frozen=True)
class StepTraces:
    """Traces of all ranks of a step and its process groups: ``groups`` by name.

    ``unwritten`` are operations for which execution traces have no node; they become host nodes of the same duration.
    """

    ranks: tuple[ChakraTrace, ...]
    groups: Mapping[str, tuple[int, ...]]
    unwritten: tuple[str, ...]

    @property
    def num_nodes(self) -> int:
        """Nodes of all ranks."""
        return sum(len(rank.nodes) for rank in self.ranks)


@dataclass
class _Piece:
    """A node under construction: times in ns, ``after`` are positions among the pieces of the rank."""

    name: str
    kind: int
    start_ns: int
    finish_ns: int
    after: set[int]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    streams: tuple[int, ...] = ()
    merged_name: str = ""

    @property
    def is_kernel(self) -> bool:
        """Whether it runs on the device and may be joined with others."""
        return self.kind == COMPUTE and not self.attributes["is_cpu_op"]


def step_traces(lowered: Lowered, timing: Timing) -> StepTraces:
    """The traces of a step in which every rank is a class of its own and blocks are written step by step.

    The host's work between two steps is a node behind all others. Raises UserError where a rank waits for another
    without a message between them.
    """
    calls = calls_of(lowered)
    names = group_names(calls)
    step = _StepColumns(lowered, timing, calls, names)
    world = len(lowered.quotient.class_of_rank)
    classes = lowered.quotient.class_of_rank.tolist()
    ranks = tuple(ChakraTrace(tuple(_RankPieces(step, classes[rank], rank).nodes())) for rank in range(world))
    step.check_all_waited()
    unwritten = sorted({call.operation for call in calls.values() if not call.is_written})
    return StepTraces(ranks, {name: members for members, name in names.items()}, tuple(unwritten))


class _StepColumns:
    """Columns of a Program as lists, its communication calls, and tags of messages."""

    def __init__(
        self,
        lowered: Lowered,
        timing: Timing,
        calls: Mapping[int, CommunicationCall],
        groups: Mapping[tuple[int, ...], str],
    ) -> None:
        program = lowered.program
        self.lowered, self.calls, self.groups = lowered, calls, groups
        self.start, self.finish = timing.start_ns.tolist(), timing.finish_ns.tolist()
        self.pointer: list[int] = program.dependencies.pointer.tolist()
        self.item: list[int] = program.dependencies.item.tolist()
        self.label: list[int] = program.ops.label.tolist()
        self.microbatch: list[int] = program.ops.microbatch.tolist()
        self.words = [_words(label) for label in program.labels]
        self.between_ns = int(to_ns(lowered.job.stack.launch.step_overhead_s))
        self._tags: dict[tuple[int, int], int] = {}
        self._met: set[tuple[int, int]] = set()
        self._missed: set[tuple[int, int]] = set()

    def waits(self, op: int) -> list[int]:
        """The ops for which an op waits, stream order left out."""
        return self.item[self.pointer[op] : self.pointer[op + 1]]

    def name(self, op: int) -> str:
        """The name of an op in a trace."""
        microbatch = self.microbatch[op]
        return self.words[self.label[op]] + (f" mb{microbatch}" if microbatch >= 0 else "")

    def tag(self, op: int, number: int) -> int:
        """The tag of the ``number``-th message of an op: unique in the trace."""
        return self._tags.setdefault((op, number), len(self._tags))

    def note_wait(self, op: int, waited: int, *, is_met: bool) -> None:
        """Note whether a rank of an op has the op for which it waits: at least one of its ranks must."""
        (self._met if is_met else self._missed).add((op, waited))

    def check_all_waited(self) -> None:
        """Raise UserError for an op none of whose ranks has the op for which it waits."""
        for op, waited in sorted(self._missed - self._met)[:1]:
            program = self.lowered.program
            raise UserError(
                f"{program.describe(op)} waits for {program.describe(waited)} without a message between their ranks; "
                "execution traces have no node for that"
            )


class _RankPieces:
    """The pieces of one rank."""

    def __init__(self, step: _StepColumns, class_id: int, rank: int) -> None:
        self.step, self.rank = step, rank
        program, slots = step.lowered.program, step.lowered.slots
        self.ops = np.unique(step.lowered.op_of_slot[slots.of_class(class_id)]).tolist()
        self.pieces: list[_Piece] = []
        self.ends: dict[int, set[int]] = {}
        """Positions of the pieces that end an op; for an op without duration, of those for which it waited."""
        self.received: dict[int, int] = {}
        self.before: dict[int, list[int]] = {op: [] for op in self.ops}
        self.streams: dict[int, tuple[int, ...]] = {}
        self.kernels = set[int]()
        for stream in np.flatnonzero(program.stream_class == class_id).tolist():
            row = program.streams.row(stream).tolist()
            for one, next_one in pairwise(row):
                self.before[next_one].append(one)
            for each in row:
                self.streams[each] = (*self.streams.get(each, ()), stream)
            if program.stream_names[stream] == COMPUTE_STREAM:
                self.kernels.update(row)

    def nodes(self) -> Iterator[TraceNode]:
        """The nodes of the rank, numbered in the order of their start."""
        for op in self._ordered():
            self._add(op)
        self._close()
        order = sorted(
            range(len(self.pieces)), key=lambda at: (self.pieces[at].start_ns, self.pieces[at].finish_ns, at)
        )
        kept = _merged([self.pieces[at] for at in order], {at: place for place, at in enumerate(order)})
        for number, piece in enumerate(kept):
            start_us, finish_us = _us(piece.start_ns), _us(piece.finish_ns)
            name = piece.name + (f" .. {piece.merged_name}" if piece.merged_name else "")
            after = tuple(sorted(piece.after))
            yield TraceNode(number, name, piece.kind, after, start_us, finish_us - start_us, piece.attributes)

    def _ordered(self) -> list[int]:
        """The ops in an order in which each comes behind the rank's ops for which it waits."""
        waiting = dict.fromkeys(self.ops, 0)
        behind: dict[int, list[int]] = {}
        for op in self.ops:
            for waited in (*self.before[op], *self.step.waits(op)):
                if waited in waiting:
                    waiting[op] += 1
                    behind.setdefault(waited, []).append(op)
        ready = [op for op in self.ops if not waiting[op]]
        for op in ready:
            for follower in behind.get(op, ()):
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
        return ready

    def _add(self, op: int) -> None:
        step = self.step
        after = set[int]().union(*(self.ends[waited] for waited in self.before[op]))
        for waited in step.waits(op):
            after |= self._end_of(op, waited)
        after = self._latest(after)
        call, start, finish = step.calls.get(op), step.start[op], step.finish[op]
        if call is None or not call.is_written:
            if start == finish:
                self.ends[op] = after
                return
            on_host = op not in self.kernels or call is not None
            piece = _Piece(step.name(op), COMPUTE, start, finish, after, {"is_cpu_op": on_host})
            self.ends[op] = {self._append(piece, op)}
            return
        for number in range(call.calls):
            begin, end = (start + (finish - start) * part // call.calls for part in (number, number + 1))
            after = self._communicate(op, number, (begin, end), after)
        self.ends[op] = after

    def _close(self) -> None:
        """Append the host's work between two steps, behind everything else of the rank."""
        if self.step.between_ns:
            waited = set[int]().union(*(piece.after for piece in self.pieces))
            last = set(range(len(self.pieces))) - waited
            begin = max((self.pieces[at].finish_ns for at in last), default=0)
            end = begin + self.step.between_ns
            self._append(_Piece("host between steps", COMPUTE, begin, end, last, {"is_cpu_op": True}))

    def _end_of(self, op: int, waited: int) -> set[int]:
        """Positions of the pieces that end op ``waited``: its last ones here, or the arrival of its message."""
        if waited in self.ends:
            self.step.note_wait(op, waited, is_met=True)
            return self.ends[waited]
        call = self.step.calls.get(waited)
        if call is None or call.operation != MESSAGE or call.members[1] != self.rank:
            self.step.note_wait(op, waited, is_met=False)
            return set()
        self.step.note_wait(op, waited, is_met=True)
        if waited not in self.received:
            for number in range(call.calls):
                span = self.step.start[waited], self.step.finish[waited]
                self.received[waited] = self._message(waited, number, (call.members[0], self.rank), span)
        return {self.received[waited]}

    def _communicate(self, op: int, number: int, span: tuple[int, int], after: set[int]) -> set[int]:
        """Append the nodes of one call; the positions of those that end it."""
        call = self.step.calls[op]
        if call.operation == MESSAGE:
            return {self._message(op, number, call.members, span, after)}
        if call.operation == PERMUTE:
            at, many = call.members.index(self.rank), len(call.members)
            ahead, behind = call.members[(at + 1) % many], call.members[at - 1]
            sent = self._message(op, number * many + at, (self.rank, ahead), span, after)
            got = self._message(op, number * many + (at - 1) % many, (behind, self.rank), span)
            return {sent, got}
        attributes: dict[str, Attribute] = {
            "is_cpu_op": False,
            "comm_type": COLLECTIVES.index(call.operation),
            "comm_size": call.size_bytes,
            "pg_name": self.step.groups[call.members],
        }
        return {self._append(_Piece(self.step.name(op), COLLECTIVE, *span, after, attributes), op)}

    def _message(
        self, op: int, number: int, ends: Sequence[int], span: tuple[int, int], after: set[int] | None = None
    ) -> int:
        """Append this side's node of a message and return its position; a receive has no dependencies here."""
        attributes: dict[str, Attribute] = {
            "is_cpu_op": False,
            "comm_src": ends[0],
            "comm_dst": ends[1],
            "comm_tag": self.step.tag(op, number),
            "comm_size": self.step.calls[op].size_bytes,
        }
        if after is None:
            return self._append(_Piece(self.step.name(op), RECEIVE, *span, set(), attributes))
        return self._append(_Piece(self.step.name(op), SEND, *span, after, attributes), op)

    def _append(self, piece: _Piece, op: int | None = None) -> int:
        """Append a piece on the streams of its op (a receive is on none) and return its position."""
        if op is not None:
            piece.streams = self.streams.get(op, ())
        self.pieces.append(piece)
        return len(self.pieces) - 1

    def _latest(self, after: set[int]) -> set[int]:
        """The dependencies without those implied by stream order: only the last piece of each stream."""
        if len(after) < 2:
            return after
        last: dict[int, int] = {}
        for at in sorted(after):
            last |= dict.fromkeys(self.pieces[at].streams, at)
        return {at for at in after if all(last[stream] == at for stream in self.pieces[at].streams)}


def _merged(pieces: list[_Piece], place: Mapping[int, int]) -> list[_Piece]:
    """Pieces in order with short kernels joined; ``place`` maps the positions in ``after`` to new ones."""
    direct = [_direct({place[at] for at in piece.after}, pieces, place) for piece in pieces]
    followers = [0] * len(pieces)
    for waited in (at for each in direct for at in each):
        followers[waited] += 1
    kept: list[_Piece] = []
    number = [-1] * len(pieces)
    last: dict[int, int] = {}
    """For every kept kernel, the piece that ends it so far."""
    for at, piece in enumerate(pieces):
        waited = next(iter(direct[at])) if len(direct[at]) == 1 else -1
        if waited >= 0 and piece.is_kernel and pieces[waited].is_kernel and followers[waited] == 1:
            target = number[waited]
            run = kept[target]
            if last[target] == waited and run.finish_ns - run.start_ns < MERGED_BELOW_NS:
                kept[target] = replace(run, finish_ns=piece.finish_ns, merged_name=piece.name)
                number[at], last[target] = target, at
                continue
        number[at] = len(kept)
        last[number[at]] = at
        kept.append(replace(piece, after={number[each] for each in direct[at]}))
    return kept


def _direct(after: set[int], pieces: Sequence[_Piece], place: Mapping[int, int]) -> set[int]:
    """The dependencies of a piece without those that another of its dependencies has itself."""
    if len(after) < 2:
        return after
    implied = {place[at] for each in after for at in pieces[each].after}
    return after - implied


def _us(time_ns: int) -> int:
    return (time_ns + NS_PER_US // 2) // NS_PER_US


def _words(label: Label) -> str:
    words = [label.kind] + [label.name] * (label.name != label.kind)
    return " ".join(words + [f"L{label.layer}"] * (label.layer >= 0))
