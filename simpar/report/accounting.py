"""Where the step went: every nanosecond of a rank's compute stream, attributed to one cause.

The compute stream of a class of ranks is a row of ops and gaps. An op's time splits into kernels, launch gaps
and exposed communication inside its blocks; gaps are followed back to what they wait for
(:mod:`simpar.report.attribution`). Everything that reports time reads what is computed here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.program.emission.traffic import EMBEDDING_GROUP
from simpar.report.attribution import BUBBLE, GROUPS, SLOW, UNEQUAL, Excess, Gaps, binding_predecessors
from simpar.report.idle import OWN, Idle, Participation, Waiting
from simpar.report.slot_facts import COMMUNICATION, INSIDE, PARTS, PASSES, SlotFacts, slot_facts
from simpar.units import NS_PER_S

if TYPE_CHECKING:
    from simpar.program.ir.program import Program, Timing
    from simpar.program.lower import Lowered

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CAUSES = (
    "compute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble", "waiting", "optimizer",
    "host", "offload",
)  # fmt: skip
_CAUSE_OF_KIND = {
    **dict.fromkeys((*PASSES, "join"), "compute"), "optimizer": "optimizer", "host": "host", "offload": "offload",
    **{kind: f"exposed_{kind}" for kind in ("tp", "pp", "dp", "cp", "ep")},
}  # fmt: skip
_IN_WINDOW = (*PASSES, "host", *INSIDE, "join")


@dataclass(frozen=True)
class Accounts:
    """Per class of ranks: ``causes_ns`` int64[num_classes, num_causes], whose rows sum to ``step_ns``.

    ``window_ns`` lies between the first and the last pass of any stage; ``recompute_ns`` is the share of "compute"
    spent on recomputed forwards. ``busy_ns`` and ``moved_bytes`` int64[num_classes, kinds of COMMUNICATION] say how
    long at least one collective or message of a kind was under way that the class took part in, and the bytes of its
    buffers. ``slowdown`` float64[num_classes] is the factor on the kernels of each, ``binding`` int64[num_ops] what
    every op waited for last; ``blocking`` has communication on compute streams: class, begin and end in ns, kind.
    """

    causes_ns: Ints
    window_ns: int
    step_ns: int
    recompute_ns: Ints
    busy_ns: Ints
    moved_bytes: Ints
    slowdown: Floats
    binding: Ints
    idle: Idle
    blocking: tuple[tuple[int, int, int, str], ...]

    def critical_class(self) -> int:
        """The class that the step is explained on: of those at full speed (if any is) the one with least waiting."""
        idle = self.causes_ns[:, [CAUSES.index("bubble"), CAUSES.index("waiting")]].sum(axis=1)
        slow = self.slowdown > self.slowdown.min()
        return int(np.argmin(np.where(slow, self.step_ns + 1, idle)))

    def breakdown_s(self, class_id: int) -> dict[str, float]:
        """Seconds by cause of one class; they sum to the step time."""
        return {
            cause: float(ns) / NS_PER_S for cause, ns in zip(CAUSES, self.causes_ns[class_id], strict=True)
        }

    def bubble_fraction(self, multiplicity: Ints) -> float:
        """Pipeline bubble as a share of the window of passes, averaged over ranks.

        The window is that of ranks that are alike: without what it is longer by because ranks are slow or unequal.
        """
        bubble = self.causes_ns[:, CAUSES.index("bubble")]
        alike = self.window_ns - self.idle.waits_ns(len(bubble))[:, [SLOW, UNEQUAL]].sum(axis=1)
        share = bubble / np.maximum(np.maximum(alike, bubble), 1)
        return float(np.average(share, weights=multiplicity))

    def waiting(self, class_id: int) -> list[Waiting]:
        """For whom a class waits, longest first; they sum to its cause "waiting"."""
        return self.idle.waiting(class_id)

    def idle_of(self, class_id: int) -> list[tuple[int, int, str]]:
        """When a class computes nothing: begin and end in ns, and the cause, in order."""
        pieces = self.idle.pieces_of(class_id)
        pieces += [(begin, end, kind) for owner, begin, end, kind in self.blocking if owner == class_id]
        return [
            (begin, end, _CAUSE_OF_KIND.get(why, "bubble" if why == "bubble" else "waiting"))
            for begin, end, why in sorted(pieces)
        ]


def account(
    lowered: Lowered,
    timing: Timing,
    slow_ranks: Mapping[int, float] | None = None,
    nominal_ns: int | None = None,
) -> Accounts:
    """Attribute the whole step of every class.

    ``slow_ranks`` are the factors under which it was lowered and ``nominal_ns`` the step without them, where it is
    known: slow ranks take no more of a bubble than the step is longer.
    """
    layout, num = lowered.layout, lowered.layout.num_classes
    slowdown = np.array([(slow_ranks or {}).get(rank, 1.0) for rank in layout.representative_rank.tolist()])
    facts = slot_facts(lowered, timing)
    mine = [np.flatnonzero(lowered.slots.class_id == class_id) for class_id in range(num)]
    binding = binding_predecessors(lowered.program, timing)
    excess = Excess.of(*_excess(lowered, facts, mine, slowdown), binding)
    ops = [lowered.op_of_slot[rows[facts.on_compute[rows]]] for rows in mine]
    gaps = Gaps.joined([Gaps.of(class_id, each, timing, excess) for class_id, each in enumerate(ops)])
    part = Participation.of(lowered)
    most_slow_ns = timing.makespan_ns - (nominal_ns or 0)
    idle = Idle.of(lowered, timing, gaps, excess, part, most_slow_ns)
    exposed, waits = idle.exposed_ns(num), idle.waits_ns(num)
    busy = _busy_ns(part, timing)
    causes = np.zeros((num, len(CAUSES)), dtype=np.int64)
    moved = np.zeros((num, len(COMMUNICATION)), dtype=np.int64)
    for class_id, rows in enumerate(mine):
        own = facts.take(rows)
        _add_ops(causes[class_id], own)
        for number, kind in enumerate(OWN):
            causes[class_id, CAUSES.index(_CAUSE_OF_KIND[kind])] += exposed[class_id, number]
        for number, kind in enumerate(COMMUNICATION):
            moved[class_id, number] = own.size_bytes[own.kind == kind].sum()
        for number, kind in enumerate(INSIDE):
            inside = own.inside[:, number].sum(axis=0)
            busy[class_id, COMMUNICATION.index(kind)] += inside[0]
            moved[class_id, COMMUNICATION.index(kind)] += inside[1]
    causes[:, CAUSES.index("bubble")] += waits[:, BUBBLE]
    causes[:, CAUSES.index("waiting")] += waits[:, :BUBBLE].sum(axis=1)
    recompute = np.array([facts.parts[rows, PARTS.index("recompute")].sum() for rows in mine])
    window = _window_ns(lowered.program, timing)
    blocking = _blocking(lowered, facts, timing)
    return Accounts(
        causes, window, timing.makespan_ns, recompute, busy, moved, slowdown, binding, idle, blocking
    )


def _blocking(lowered: Lowered, facts: SlotFacts, timing: Timing) -> tuple[tuple[int, int, int, str], ...]:
    """Communication that takes the compute stream while it lasts."""
    rows = np.flatnonzero(facts.on_compute & np.isin(facts.kind, COMMUNICATION) & (facts.duration_ns > 0))
    op = lowered.op_of_slot[rows]
    columns = (lowered.slots.class_id[rows], timing.start_ns[op], timing.finish_ns[op], facts.kind[rows])
    return tuple(zip(*(column.tolist() for column in columns), strict=True))


def _busy_ns(part: Participation, timing: Timing) -> Ints:
    """How long at least one op of a kind is under way with a class: int64[num_classes, kinds of COMMUNICATION]."""
    class_id, zero = np.arange(part.num_classes), np.zeros(part.num_classes, dtype=np.int64)
    each = part.under_way(timing)
    return np.stack([kind.between_ns(class_id, zero, zero + timing.makespan_ns) for kind in each], axis=1)


def _add_ops(row: Ints, facts: SlotFacts) -> None:
    """Time of a class's compute stream that its ops take, by cause."""
    on_compute = np.flatnonzero(facts.on_compute)
    kinds, parts = facts.kind[on_compute], facts.parts[on_compute]
    for column, part in enumerate(PARTS):
        row[CAUSES.index(_CAUSE_OF_KIND[part])] += parts[:, column].sum()
    rest = facts.duration_ns[on_compute] - parts.sum(axis=1)
    for kind in np.unique(kinds):
        row[CAUSES.index(_CAUSE_OF_KIND[str(kind)])] += rest[kinds == kind].sum()


_PASS, _UPDATE, _FIRST_SORT = range(3)
_SORTS = (*COMMUNICATION, "tied embedding")
"""Communication in which ranks are compared: messages are the pipeline's, sums of tied embeddings are not."""


def _excess(
    lowered: Lowered, facts: SlotFacts, mine: Sequence[Ints], slowdown: Floats
) -> tuple[Floats, Floats, Ints]:
    """What every op takes beyond other ranks at full speed, by SLOW, UNEQUAL and GROUPS: float64[num_ops, 3] ns.

    And the share of GROUPS in a class's time of every sort of communication, float64[num_classes, _SORTS], and the
    sort of every op. Ranks are compared over the whole step: where passes take a tenth more than the mean rank's, so
    does each of them. Communication is compared with the rank that has least.
    """
    sort = _sorts(lowered, facts)
    times, busy = _times_ns(facts, sort)
    kernels = np.where(times[:, _PASS] > 0, times[:, _PASS] - facts.parts[:, PARTS.index("host")], 0)
    slow = kernels * (1 - 1 / slowdown[lowered.slots.class_id])
    times[:, _PASS] -= slow
    busy[:, _PASS] -= slow
    totals = np.array([busy[rows].sum(axis=0) for rows in mine])
    usual = totals.min(axis=0)
    usual[:_FIRST_SORT] = np.average(totals, axis=0, weights=lowered.layout.multiplicity)[:_FIRST_SORT]
    share = 1 - np.divide(usual, totals, out=np.ones_like(totals), where=totals > 0)
    share[:, _FIRST_SORT + _SORTS.index("pp")] = 0.0
    beyond = times * share[lowered.slots.class_id]
    found = np.zeros((len(times), BUBBLE))
    found[:, SLOW], found[:, UNEQUAL] = slow, beyond[:, :_FIRST_SORT].sum(axis=1)
    found[:, GROUPS] = beyond[:, _FIRST_SORT:].sum(axis=1)
    _, first = np.unique(lowered.op_of_slot, return_index=True)
    return found[first], share[:, _FIRST_SORT:], sort[first]


def _sorts(lowered: Lowered, facts: SlotFacts) -> Ints:
    """Index in _SORTS of every slot, -1 for what is no communication."""
    found = np.full(len(facts.kind), -1, dtype=np.int64)
    for number, kind in enumerate(COMMUNICATION):
        found[facts.kind == kind] = number
    tied = [group.kind == EMBEDDING_GROUP for group in lowered.layout.groups]
    found[np.array([*tied, False])[lowered.slots.group]] = _SORTS.index("tied embedding")
    return found


def _times_ns(facts: SlotFacts, sort: Ints) -> tuple[Floats, Floats]:
    """Time of every slot in passes, in updates, and in every sort of communication: float64[n, 2 + sorts].

    Once as the compute stream sees it, once with the collectives in blocks that kernels hide.
    """
    exposed, hidden = facts.exposed_inside_ns, facts.inside[:, :, 0]
    alone = np.where(facts.on_compute, facts.duration_ns - exposed.sum(axis=1), 0)
    kernels = [
        np.where(np.isin(facts.kind, kinds), alone, 0) for kinds in ((*PASSES, "host"), ("optimizer",))
    ]
    own = [np.where(sort == number, facts.duration_ns, 0) for number in range(len(_SORTS))]
    found = []
    for inside in (exposed, hidden):
        columns = np.stack([*kernels, *own], axis=1).astype(np.float64)
        for number, kind in enumerate(INSIDE):
            columns[:, _FIRST_SORT + _SORTS.index(kind)] += inside[:, number]
        found.append(columns)
    return found[0], found[1]


def _window_ns(program: Program, timing: Timing) -> int:
    """From the first to the last pass of any stage."""
    inside = np.isin([label.kind for label in program.labels], _IN_WINDOW)[program.ops.label]
    if not inside.any():
        return 0
    return int(timing.finish_ns[inside].max() - timing.start_ns[inside].min())
