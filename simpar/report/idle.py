"""Idle time of every rank by cause: its own communication, slower or busier other ranks, the schedule."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import PIPELINE
from simpar.report.attribution import (
    BUBBLE,
    GROUPS,
    SLOW,
    WAITS,
    Excess,
    GapPieces,
    Gaps,
    follow_back,
    place_shares,
    split_waiting,
)
from simpar.report.loops import unite
from simpar.report.slot_facts import COMMUNICATION, HOST
from simpar.units import Flags, Floats, Indices, Ints

if TYPE_CHECKING:
    from simpar.program.ir.program import Timing
    from simpar.program.lower import Lowered

OWN_CAUSES = (*COMMUNICATION, HOST)
"""Kinds of ops that a rank itself may have under way while its compute stream is idle."""
IDLE_REASONS = (*OWN_CAUSES, *WAITS)
"""Why a compute stream is idle."""
_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True)
class Participation:
    """Which classes take part in which ops of kinds in OWN, as columns ``op`` and ``class_id``; pairs may repeat.

    A message has its sender and every op that waits for it. ``kind_of_op`` int16[num_ops] indexes ``kinds``;
    ``class_of_op`` is the class to which an op belongs.
    """

    op: Indices
    class_id: Indices
    num_classes: int
    kinds: tuple[str, ...]
    kind_of_op: NDArray[np.int16]
    class_of_op: Indices
    timing: Timing
    _unions: dict[str, UnderWay] = field(default_factory=dict)

    @staticmethod
    def of(lowered: Lowered, timing: Timing) -> Participation:
        """Participation from the slots of all classes and the dependencies on messages."""
        program, slots = lowered.program, lowered.slots
        kinds = tuple(dict.fromkeys((*OWN_CAUSES, *(label.kind for label in program.labels))))
        of_label = np.array([kinds.index(label.kind) for label in program.labels], dtype=np.int16)
        kind_of_op, class_of_op = of_label[program.ops.label], program.ops.class_id
        joined = np.flatnonzero(lowered.of_slots(kind_of_op < len(OWN_CAUSES)))
        message = np.flatnonzero((kind_of_op == OWN_CAUSES.index(PIPELINE))[program.dependencies.item])
        waiting = np.searchsorted(program.dependencies.pointer, message, side="right") - 1
        op = np.concatenate([lowered.op_of_slot[joined], program.dependencies.item[message]])
        class_id = np.concatenate([slots.class_id[joined], class_of_op[waiting]])
        return Participation(op, class_id, lowered.quotient.num_classes, kinds, kind_of_op, class_of_op, timing)

    @cached_property
    def _of_others(self) -> Ints:
        """Sorted keys op * num_classes + class of the pairs in which the op belongs to another class."""
        rows = np.flatnonzero(self.class_id != self.class_of_op[self.op])
        return np.sort(self.op[rows].astype(np.int64) * self.num_classes + self.class_id[rows])

    def has(self, op: Indices, class_id: Ints) -> Flags:
        """Whether each class takes part in each op and the op is of a kind in OWN."""
        result, others = self.kind_of_op[op] < len(OWN_CAUSES), self._of_others
        rows = np.flatnonzero(result & (self.class_of_op[op] != class_id))
        key = op[rows].astype(np.int64) * self.num_classes + class_id[rows]
        at = np.searchsorted(others, key)
        result[rows] = np.append(others, -1)[at] == key
        return np.asarray(result)

    def under_way(self, kind: str) -> UnderWay:
        """The time during which every class takes part in an op of a kind in OWN."""
        if kind not in self._unions:
            span = self.timing.makespan_ns + 1
            self._unions[kind] = UnderWay.of(*self._instants(kind, span), span)
        return self._unions[kind]

    def _instants(self, kind: str, span: int) -> tuple[Ints, Ints]:
        """When the pairs of a kind begin and end, on the axis of :class:`UnderWay`."""
        rows = np.flatnonzero(self._kind == OWN_CAUSES.index(kind))
        op, offset = self.op[rows], self.class_id[rows].astype(np.int64) * span
        start, finish = self.timing.start_ns[op], self.timing.finish_ns[op]
        start += offset
        finish += offset
        return start, finish

    @cached_property
    def _kind(self) -> NDArray[np.int16]:
        """The kind of the op of every pair."""
        return self.kind_of_op[self.op]

    def busy_ns(self) -> Ints:
        """Time during which an op of a kind is under way with a class: int64[num_classes, kinds of COMMUNICATION]."""
        class_id, zero = np.arange(self.num_classes), np.zeros(self.num_classes, dtype=np.int64)
        each = (self.under_way(kind) for kind in COMMUNICATION)
        return np.stack([one.between_ns(class_id, zero, zero + self.timing.makespan_ns) for one in each], axis=1)


@dataclass(frozen=True)
class UnderWay:
    """Unions of intervals int64[n] of all classes on one axis, one after the other: class c begins at c * ``span``."""

    start: Ints
    finish: Ints
    before: Ints
    span: int

    @staticmethod
    def of(start: Ints, finish: Ints, span: int) -> UnderWay:
        """The unions of intervals given in any order."""
        start, finish = unite(start, finish)
        length = finish - start
        return UnderWay(start, finish, np.cumsum(length) - length, span)

    def between_ns(self, class_id: Ints, begin: Ints, end: Ints) -> Ints:
        """How much of begin..end (within a step) lies inside the union of each class."""
        offset = class_id * self.span
        return self._until(end + offset) - self._until(begin + offset)

    def _until(self, time: Ints) -> Ints:
        if not len(self.start):
            return np.zeros_like(time)
        at = np.searchsorted(self.start, time, side="right") - 1
        inside = self.before[at] + np.minimum(time, self.finish[at]) - self.start[at]
        return np.where(at >= 0, inside, 0)


@dataclass(frozen=True)
class Waiting:
    """Time that a rank waits for others, with the cause (a word of WAITS) and the ranks waited for.

    ``class_id`` is the class of the ranks waited for (-1: not a single one), ``kind`` the kind of their op.
    """

    cause: str
    class_id: int
    kind: str
    ns: int


@dataclass(frozen=True)
class IdleTime:
    """All gaps: the rank's own communication and launches (``own``), the rest (``waits``), and its causes.

    The op of a piece of ``own`` is of the kind that is exposed. ``shares_ns`` int64[gaps, WAITS] splits the waiting of
    every gap by cause.
    """

    gaps: Gaps
    own: GapPieces
    waits: GapPieces
    shares_ns: Ints
    excess: Excess
    part: Participation

    @staticmethod
    def of(
        lowered: Lowered, timing: Timing, gaps: Gaps, excess: Excess, part: Participation, most_slow_ns: int
    ) -> IdleTime:
        """Follow every gap back and split its waiting: excess of the chain first, then the schedule, then other groups.

        Own transfers that are exposed because a slow rank is late are waiting for it. No class loses more than
        ``most_slow_ns`` of the schedule's bubbles to slow ranks.
        """
        pieces = follow_back(gaps, timing, excess.binding)
        takes_part = part.has(pieces.op, gaps.class_id[pieces.gap])
        own, waits = _with_own_in_parallel(gaps, pieces.take(takes_part), pieces.take(~takes_part), part)
        stage = lowered.stage_of_class
        sort = excess.sort[own.op]
        paid: Floats = np.where(sort < 0, 0.0, excess.share[gaps.class_id[own.gap], sort]) * own.length_ns
        surplus = excess.chain(gaps.behind) - gaps.past
        behind_slow = surplus[:, SLOW] >= 1.0
        surplus[:, SLOW] = np.minimum(surplus[:, SLOW], max(0, most_slow_ns))
        wait_ns = _per_gap(waits, waits.length_ns, gaps)
        shares = np.zeros((len(gaps), len(WAITS)), dtype=np.int64)
        shares[:, :BUBBLE] = _shared_by_class(gaps, wait_ns, surplus, _per_gap(own, paid, gaps))
        left = wait_ns - shares.sum(axis=1)
        elsewhere = stage[part.class_of_op[waits.op]] != stage[gaps.class_id[waits.gap]]
        shares[:, BUBBLE] = np.minimum(left, _per_gap(waits, waits.length_ns * elsewhere, gaps))
        left -= shares[:, BUBBLE]
        shares[:, SLOW] += np.where(behind_slow, left, 0)
        shares[:, GROUPS] += np.where(behind_slow, 0, left)
        late_ns = _late_by_slow(gaps, _per_gap(own, own.length_ns, gaps), surplus[:, SLOW], shares[:, SLOW])
        if late_ns.any():
            parts = dict(place_shares(own, np.stack([late_ns, _per_gap(own, own.length_ns, gaps) - late_ns], axis=1)))
            own, waits = GapPieces.joined([parts[1]]), GapPieces.joined([waits, parts[0]])
            shares[:, SLOW] += late_ns
        return IdleTime(gaps, own, waits, shares, excess, part)

    @cached_property
    def exposed_ns(self) -> Ints:
        """Exposed communication outside blocks, and waits for launches: int64[num_classes, kinds of OWN]."""
        result = np.zeros((self.part.num_classes, len(OWN_CAUSES)), dtype=np.int64)
        at = self.gaps.class_id[self.own.gap], self.part.kind_of_op[self.own.op]
        np.add.at(result, at, self.own.length_ns)
        return result

    @cached_property
    def waits_ns(self) -> Ints:
        """Waiting by cause, int64[num_classes, WAITS]."""
        result = np.zeros((self.part.num_classes, len(WAITS)), dtype=np.int64)
        for class_id, mine in enumerate(self.gaps.rows):
            result[class_id] = self.shares_ns[mine].sum(axis=0)
        return result

    def waiting(self, class_id: int) -> list[Waiting]:
        """The ranks that a class waits for, apart from waiting caused by the schedule; longest first."""
        rows = np.flatnonzero(self.gaps.class_id == class_id)
        by_rank: dict[tuple[str, int, str], int] = {}
        for cause, name in enumerate(WAITS[:BUBBLE]):
            given = rows[self.shares_ns[rows, cause] > 0]
            op = self.excess.find_cause(self.gaps.behind[given], cause)
            whom = np.where(op >= 0, self.part.class_of_op[op], -1)
            whom[whom == class_id] = -1
            kind = np.where((op >= 0) & (cause == GROUPS), self.part.kind_of_op[op], -1)
            kinds = (*self.part.kinds, "")
            columns = (whom.tolist(), kind.tolist(), self.shares_ns[given, cause].tolist())
            for other, what, ns in zip(*columns, strict=True):
                key = name, other, kinds[what]
                by_rank[key] = by_rank.get(key, 0) + ns
        entries = [Waiting(*key, ns) for key, ns in by_rank.items()]
        return sorted(entries, key=lambda entry: -entry.ns)

    def pieces_of(self, class_id: int) -> list[tuple[Ints, Ints, Ints]]:
        """When the compute stream of a class is idle and why: columns begin ns, end ns and index in WHY."""
        low, high = np.searchsorted(self.gaps.class_id, [class_id, class_id + 1]).tolist()
        own, waits = (_between(pieces, low, high) for pieces in (self.own, self.waits))
        return [
            (own.begin, own.end, self.part.kind_of_op[own.op]),
            *(
                (pieces.begin, pieces.end, np.full(len(pieces.gap), len(OWN_CAUSES) + cause))
                for cause, pieces in place_shares(waits, self.shares_ns[low:high])
            ),
        ]


def _with_own_in_parallel(
    gaps: Gaps, own: GapPieces, waits: GapPieces, part: Participation
) -> tuple[GapPieces, GapPieces]:
    """Count waiting for others' collectives as the rank's own, as far as it runs one of the kind in the same gap.

    The first stage reduces its gradients last. Another stage that waits for it reduces its own gradients in the same
    gap, which would take as long if it did not wait.
    """
    added, kept, own_kind, kind_of = [own], list[GapPieces](), part.kind_of_op[own.op], part.kind_of_op[waits.op]
    for number, kind in enumerate(COMMUNICATION):
        rows = np.flatnonzero(kind_of == number)
        if kind == PIPELINE or not len(rows):
            continue
        theirs, counted = waits.take(rows), own.take(own_kind == number)
        need = _per_gap(theirs, theirs.length_ns, gaps)
        extra, some = np.zeros_like(need), np.flatnonzero(need)
        spare = part.under_way(kind).between_ns(gaps.class_id[some], gaps.begin[some], gaps.end[some])
        extra[some] = np.minimum(need[some], spare - _per_gap(counted, counted.length_ns, gaps)[some])
        parts = dict(place_shares(theirs, np.stack([extra, need - extra], axis=1)))
        added.append(parts[0])
        kept.append(parts[1])
        waits, kind_of = waits.take(kind_of != number), kind_of[kind_of != number]
    return GapPieces.joined(added), GapPieces.joined([waits, *kept])


def _late_by_slow(gaps: Gaps, own_ns: Ints, surplus_ns: Floats, given_ns: Ints) -> Ints:
    """The part of the rank's own transfers of every gap that are exposed because a slow rank is late: int64[gaps].

    A rank that gathers ahead runs its next transfer when the slow rank gets to it. It hides behind the kernels of the
    slow rank, and outlasts those of the others. That is as much of the slow rank's excess (``surplus_ns``, since the
    step began) as waiting (``given_ns``) does not explain, in this gap or a later one.
    """
    result = np.zeros(len(gaps), dtype=np.int64)
    for mine in gaps.rows:
        rest = surplus_ns[mine] - np.cumsum(given_ns[mine])
        ahead = np.minimum.accumulate(rest[::-1])[::-1]
        result[mine] = split_waiting(own_ns[mine], ahead[:, None])[:, 0]
    return result


def _between(pieces: GapPieces, low: int, high: int) -> GapPieces:
    """The pieces of gaps low..high-1, with gaps renumbered from low."""
    between = pieces.take(slice(*np.searchsorted(pieces.gap, [low, high]).tolist()))
    return GapPieces(between.gap - low, between.begin, between.end, between.op)


def _per_gap(pieces: GapPieces, ns: NDArray[_Number], gaps: Gaps) -> NDArray[_Number]:
    """Sums of ``ns`` by gap."""
    total = np.zeros(len(gaps), dtype=ns.dtype)
    np.add.at(total, pieces.gap, ns)
    return total


def _shared_by_class(gaps: Gaps, wait_ns: Ints, surplus: Floats, paid: Floats) -> Ints:
    """The waiting of every gap that a surplus of its chain explains: int64[gaps, 3].

    ``paid`` float64[gaps] is the excess of the rank's own exposed communication, which is not a surplus of others.
    """
    shares = np.zeros((len(gaps), BUBBLE), dtype=np.int64)
    for mine in gaps.rows:
        left = surplus[mine].copy()
        left[:, GROUPS] -= np.cumsum(paid[mine])
        shares[mine] = split_waiting(wait_ns[mine], left)
    return shares
