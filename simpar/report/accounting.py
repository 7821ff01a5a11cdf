"""Where the step went: every nanosecond of a rank's compute stream, attributed to one cause.

The compute stream of a class of ranks is a row of ops and gaps. The time of an op splits into kernels, launch gaps, and
exposed communication inside its blocks. Gaps are followed back to what they wait for
(:mod:`simpar.report.attribution`). It is computed once; everything that reports time reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import PIPELINE
from simpar.report.attribution import BUBBLE, GROUPS, SLOW, UNEQUAL, Excess, Gaps
from simpar.report.chains import binding_predecessors
from simpar.report.idle import IDLE_REASONS, OWN_CAUSES, IdleTime, Participation, Waiting
from simpar.report.loops import to_ticks, weigh
from simpar.report.slot_facts import COMMUNICATION, HOST, INSIDE, PARTS, PASSES, SlotFacts, slot_facts
from simpar.units import NS_PER_S, Flags, Floats, Indices, Ints

if TYPE_CHECKING:
    from simpar.program.ir.program import Program, Timing
    from simpar.program.lower import Lowered


CAUSES = (
    "compute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble", "waiting", "optimizer",
    "host", "offload",
)  # fmt: skip
_CAUSE_OF_KIND = {
    **dict.fromkeys((*PASSES, "join"), "compute"), "optimizer": "optimizer", "host": "host", "offload": "offload",
    **{kind: f"exposed_{kind}" for kind in COMMUNICATION if kind != "offload"},
}  # fmt: skip
_CAUSE_OF_WHY = np.array(
    [CAUSES.index(_CAUSE_OF_KIND.get(why, "bubble" if why == "bubble" else "waiting")) for why in IDLE_REASONS]
)
_IN_WINDOW = (*PASSES, "host", *INSIDE, "join")
_INSIDE = [COMMUNICATION.index(kind) for kind in INSIDE]


@dataclass(frozen=True)
class Accounts:
    """Per class of ranks, ``causes_ns`` int64[num_classes, num_causes], whose rows sum to ``end_ns``.

    ``end_ns`` int64[num_classes] is the end of the step, or of a replica's local step if replicas step on their own.
    ``window_ns`` is the time from the first to the last pass of any stage. ``recompute_ns`` is the part of "compute"
    spent on recomputed forwards. ``slowdown`` float64[num_classes] is the factor on the kernels of each class,
    ``binding`` int32[num_ops] the predecessor that every op waited for last. Quantities that only some reports need are
    computed on demand.
    """

    op_of_slot: Indices
    timing: Timing
    facts: SlotFacts
    causes_ns: Ints
    end_ns: Ints
    window_ns: int
    recompute_ns: Ints
    slowdown: Floats
    binding: Indices
    idle: IdleTime

    @property
    def step_ns(self) -> int:
        """Finish of the last op."""
        return self.timing.makespan_ns

    @cached_property
    def busy_ns(self) -> Ints:
        """Time during which a collective or message of a kind that a class takes part in is under way.

        int64[num_classes, kinds of COMMUNICATION].
        """
        result = self.idle.part.busy_ns()
        result[:, _INSIDE] += self.facts.summed(self.facts.inside[:, :, 0])
        return result

    @cached_property
    def moved_bytes(self) -> Ints:
        """Bytes of the buffers of the communication of a class: int64[num_classes, kinds of COMMUNICATION]."""
        own = [np.where(self.facts.kind == kind, self.facts.size_bytes, 0) for kind in COMMUNICATION]
        result = self.facts.summed(np.stack(own, axis=1))
        result[:, _INSIDE] += self.facts.summed(self.facts.inside[:, :, 1])
        return result

    def kernels_s(self) -> Floats:
        """Seconds of every class in matrix products and in memory-bound kernels: float64[num_classes, 2].

        The latter are the streaming kernels of passes, and the optimizer's.
        """
        compute, optimizer = (self.causes_ns[:, CAUSES.index(name)] for name in ("compute", "optimizer"))
        streaming = self.facts.summed(self.facts.streaming_ns)
        result: Floats = np.stack([compute - streaming, streaming + optimizer], axis=1) / NS_PER_S
        return result

    def critical_class(self) -> int:
        """The class that explains the step: among those at full speed (if any), the one that waits least."""
        idle = self.causes_ns[:, [CAUSES.index("bubble"), CAUSES.index("waiting")]].sum(axis=1)
        slow = self.slowdown > self.slowdown.min()
        return int(np.argmin(np.where(slow, self.step_ns + 1, idle)))

    def breakdown_s(self, class_id: int) -> dict[str, float]:
        """Seconds by cause of one class; they sum to the length of its step."""
        return {cause: float(ns) / NS_PER_S for cause, ns in zip(CAUSES, self.causes_ns[class_id], strict=True)}

    def communication_s(self) -> dict[str, tuple[float, float]]:
        """By kind of communication, the seconds of the critical class in which it is (under way, exposed)."""
        critical = self.critical_class()
        causes, busy_ns = self.breakdown_s(critical), self.busy_ns[critical].tolist()
        exposed_s = [causes[_CAUSE_OF_KIND[kind]] for kind in COMMUNICATION]
        busy_s = [busy / NS_PER_S for busy in busy_ns]
        return dict(zip(COMMUNICATION, zip(busy_s, exposed_s, strict=True), strict=True))

    def bubble_fraction(self, multiplicity: Ints) -> float:
        """The pipeline bubble as a share of the window of passes, averaged over ranks.

        What slow or unequal ranks add to the window is subtracted, so that it is the window of equal ranks.
        """
        bubble = self.causes_ns[:, CAUSES.index("bubble")]
        alike = self.window_ns - self.idle.waits_ns[:, [SLOW, UNEQUAL]].sum(axis=1)
        share = bubble / np.maximum(np.maximum(alike, bubble), 1)
        return float(np.average(share, weights=multiplicity))

    def inside_shares(self, ops: Ints) -> dict[str, Floats]:
        """The shares of the time of ops in which their kernels wait inside the op, by kind: float64[len(ops)] each.

        They wait for collectives of their blocks, or for launches on the host.
        """
        slot = np.zeros(len(self.timing.start_ns), dtype=np.int64)
        slot[self.op_of_slot[::-1]] = np.arange(len(self.op_of_slot))[::-1]  # the first of several slots of an op
        parts = self.facts.parts[self.facts.node[slot[ops]]]
        whole = np.maximum(parts.sum(axis=1), 1)
        return {kind: parts[:, PARTS.index(kind)] / whole for kind in (HOST, *INSIDE)}

    def waiting(self, class_id: int) -> list[Waiting]:
        """For which ranks a class waits, longest first; the times sum to its cause "waiting"."""
        return self.idle.waiting(class_id)

    def idle_of(self, class_id: int) -> tuple[Ints, Ints, Ints]:
        """When a class computes nothing, in order: begin and end in ns, and the index of the cause in CAUSES."""
        parts = [*self.idle.pieces_of(class_id), self._blocking(class_id)]
        begin, end, why = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort((np.argsort(np.argsort(IDLE_REASONS))[why], end, begin))
        return begin[order], end[order], _CAUSE_OF_WHY[why[order]]

    def _blocking(self, class_id: int) -> tuple[Ints, Ints, Ints]:
        """Communication that occupies the compute stream of a class: begin and end in ns, index in WHY."""
        mine, facts = self.facts.rows[class_id], self.facts
        number = np.array([OWN_CAUSES.index(kind) if kind in COMMUNICATION else -1 for kind in facts.kind.tolist()])
        blocks = (facts.on_compute & (number >= 0))[facts.node[mine]] & (facts.duration_ns[mine] > 0)
        op = self.op_of_slot[mine][blocks]
        return self.timing.start_ns[op], self.timing.finish_ns[op], number[facts.node[mine][blocks]]


def account(
    lowered: Lowered,
    timing: Timing,
    slow_ranks: Mapping[int, float] | None = None,
    nominal_ns: int | None = None,
    last_ops: Indices | None = None,
) -> Accounts:
    """Attribute the whole step of every class.

    ``slow_ranks`` are the slowdown factors under which the Program was lowered, and ``nominal_ns`` the step without
    them, if known: slow ranks are blamed for no more of a bubble than they lengthen the step. ``last_ops``
    int32[num_classes] are the ops that end the step of every class, if classes end at different ops.
    """
    quotient, num = lowered.quotient, lowered.quotient.num_classes
    slowdown = np.array([(slow_ranks or {}).get(rank, 1.0) for rank in quotient.representative_rank.tolist()])
    facts = slot_facts(lowered, timing)
    binding = binding_predecessors(lowered.program, timing)
    excess = Excess(*_excess(lowered, facts, slowdown), binding)
    ops = (lowered.op_of_slot[mine][facts.on_compute[facts.node[mine]]] for mine in facts.rows)
    if last_ops is None:
        last = int(np.argmax(timing.finish_ns)) if len(timing.finish_ns) else -1
        last_ops = np.full(num, last, dtype=np.int32)
    end_ns = timing.finish_ns[last_ops] if len(timing.finish_ns) else np.zeros(num, dtype=np.int64)
    columns = enumerate(zip(ops, last_ops.tolist(), strict=True))
    gaps = Gaps.joined([Gaps.of(class_id, each, timing, excess, last) for class_id, (each, last) in columns])
    most_slow_ns = timing.makespan_ns - (nominal_ns or 0)
    idle = IdleTime.of(lowered, timing, gaps, excess, Participation.of(lowered, timing), most_slow_ns)
    causes, waits, exposed = _of_ops(facts), idle.waits_ns, idle.exposed_ns
    for number, kind in enumerate(OWN_CAUSES):
        causes[:, CAUSES.index(_CAUSE_OF_KIND[kind])] += exposed[:, number]
    causes[:, CAUSES.index("bubble")] += waits[:, BUBBLE]
    causes[:, CAUSES.index("waiting")] += waits[:, :BUBBLE].sum(axis=1)
    recompute = facts.summed(facts.parts[:, PARTS.index("recompute")])
    window = _window_ns(lowered.program, timing)
    return Accounts(lowered.op_of_slot, timing, facts, causes, end_ns, window, recompute, slowdown, binding, idle)


def _of_ops(facts: SlotFacts) -> Ints:
    """Time of the ops on the compute streams of all classes, by cause: int64[num_classes, num_causes]."""
    cause = np.array([CAUSES.index(_CAUSE_OF_KIND.get(kind, "compute")) for kind in facts.kind.tolist()])
    of_node = np.zeros((len(cause), len(CAUSES)), dtype=np.int64)
    of_node[np.arange(len(cause)), cause] -= facts.parts.sum(axis=1)
    for column, part in enumerate(PARTS):
        of_node[:, CAUSES.index(_CAUSE_OF_KIND[part])] += facts.parts[:, column]
    result = facts.summed(np.where(facts.on_compute[:, None], of_node, 0))
    return result + facts.time_by(np.where(facts.on_compute, cause, -1), len(CAUSES))


_PASS, _UPDATE, _FIRST_SORT = range(3)
_SORTS = (*COMMUNICATION, "tied embedding")
"""Kinds of communication in which ranks are compared: messages belong to the pipeline, tied-embedding sums do not."""


def _excess(lowered: Lowered, facts: SlotFacts, slowdown: Floats) -> tuple[dict[int, Floats], Floats, NDArray[np.int8]]:
    """Time of every op beyond that of other ranks at full speed: float64[num_ops] ns by SLOW, UNEQUAL and GROUPS.

    They are whole ticks, whose sums do not depend on their order. Also returns the share of GROUPS in the time of
    every sort of communication, float64[num_classes, _SORTS], and the sort of every op. Ranks are compared over the
    whole step: if a class's passes take a tenth more than the mean rank's, so does each of them. Communication, hidden
    or not, is compared with the class that has least of it.
    """
    rows, node, exposed = facts.rows, facts.node, facts.exposed_inside_ns.sum(axis=1).astype(np.float64)
    passes, updates = (facts.on_compute & np.isin(facts.kind, kinds) for kinds in ((*PASSES, HOST), ("optimizer",)))
    own = dict[int, Floats]()

    def add(cause: int, mine: slice, ticks: Floats) -> None:
        if ticks.any():
            own.setdefault(cause, np.zeros(len(node)))[mine] = ticks

    def alone_ns(which: Flags, mine: slice) -> Floats:
        """Time of slots of some nodes without exposed communication in their blocks; 0 for others."""
        return np.where(which[node[mine]], facts.duration_ns[mine] - exposed[node[mine]], 0.0)

    for class_id in np.flatnonzero(slowdown > 1).tolist():
        mine = rows[class_id]
        alone = alone_ns(passes, mine)
        kernels = alone - facts.parts[:, PARTS.index("host")][node[mine]]
        add(SLOW, mine, to_ticks(np.where(alone > 0, kernels, 0.0) * (1 - 1 / slowdown[class_id])))
    sort = _sorts(facts)
    totals_ns = [facts.time_by(np.where(which, 0, -1), 1)[:, 0].astype(np.float64) for which in (passes, updates)]
    for total_ns, which in zip(totals_ns, (passes, updates), strict=True):
        total_ns -= facts.summed(np.where(which, facts.exposed_inside_ns.sum(axis=1), 0))
    if SLOW in own:
        totals_ns[0] -= [own[SLOW][mine].sum() for mine in rows]
    share, nothing = _shares(lowered, facts, sort, totals_ns), np.zeros(len(exposed))
    for mine, of_class in zip(rows, share, strict=True):
        if of_class[_PASS] or of_class[_UPDATE]:
            factor = passes * of_class[_PASS] + updates * of_class[_UPDATE]
            if SLOW in own and own[SLOW][mine].any():
                kernels = alone_ns(passes, mine) - own[SLOW][mine]
                add(UNEQUAL, mine, to_ticks(kernels * of_class[_PASS] + alone_ns(updates, mine) * of_class[_UPDATE]))
            else:
                add(UNEQUAL, mine, weigh(node[mine], facts.duration_ns[mine], exposed, factor, nothing))
        groups = np.append(of_class[_FIRST_SORT:], 0.0)
        if groups.any():
            inside = (facts.exposed_inside_ns * groups[_INSIDE]).sum(axis=1)
            add(GROUPS, mine, weigh(node[mine], facts.duration_ns[mine], nothing, groups[sort], inside))
    for cause in list(own):  # one after the other: these are the longest columns there are
        own[cause] = lowered.of_ops(own.pop(cause))
    return own, share[:, _FIRST_SORT:], lowered.of_ops(sort[node])


def _sorts(facts: SlotFacts) -> NDArray[np.int8]:
    """Index in _SORTS of every node, -1 if it is not communication."""
    kinds = [COMMUNICATION.index(kind) if kind in COMMUNICATION else -1 for kind in facts.kind.tolist()]
    return np.where(facts.is_tied, _SORTS.index("tied embedding"), kinds).astype(np.int8)


def _shares(lowered: Lowered, facts: SlotFacts, sort: NDArray[np.int8], kernels_ns: Sequence[Floats]) -> Floats:
    """The share of a class's time that goes beyond other ranks', float64[num_classes, 2 + sorts].

    The columns are passes and updates, which take ``kernels_ns`` by class, and every sort of communication.
    """
    times = facts.time_by(sort, len(_SORTS))
    times[:, _INSIDE] += facts.summed(facts.inside[:, :, 0])
    totals = np.column_stack([*kernels_ns, times])
    usual = totals.min(axis=0)
    usual[:_FIRST_SORT] = np.average(totals, axis=0, weights=lowered.quotient.multiplicity)[:_FIRST_SORT]
    # share = 1 - usual / time; usual: the mean rank's kernels, the least communication of any class
    share: Floats = 1 - np.divide(usual, totals, out=np.ones_like(totals), where=totals > 0)
    share[:, _FIRST_SORT + _SORTS.index(PIPELINE)] = 0.0
    return share


def _window_ns(program: Program, timing: Timing) -> int:
    """Nanoseconds from the first to the last pass of any stage."""
    inside = np.isin([label.kind for label in program.labels], _IN_WINDOW)[program.ops.label]
    if not inside.any():
        return 0
    first = timing.start_ns.min(where=inside, initial=timing.makespan_ns)
    return int(timing.finish_ns.max(where=inside, initial=0) - first)
