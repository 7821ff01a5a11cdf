"""Where the step went: every nanosecond of a rank's compute stream, attributed to one cause.

The compute stream of a class of ranks is a row of ops and gaps. An op's time splits into kernels, launch gaps
and exposed tensor-parallel communication. A gap ends when the op behind it may start: the part of it during
which the predecessor that finished last was running is exposed communication of that kind, and so on along
collectives that follow each other; the rest (the predecessor had not started either, or sits on another stage)
is bubble.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.program.phases import COMPUTE
from simpar.program.program import predecessors
from simpar.program.templates import Node, Template
from simpar.units import NS_PER_S

if TYPE_CHECKING:
    from simpar.program.lower import Lowered
    from simpar.program.program import Timing

Ints = NDArray[np.int64]
_Links = list[tuple[NDArray[np.str_], Ints]]
_CHAINED = ("tp", "cp", "ep")  # collectives inside blocks, which may follow each other

CAUSES = (
    "compute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble", "optimizer", "host",
    "offload",
)  # fmt: skip
_CAUSE_OF_KIND = {
    "forward": "compute", "backward": "compute", "input_gradient": "compute", "weight_gradient": "compute",
    "forward_backward": "compute",
    "recompute": "compute", "tp": "exposed_tp", "pp": "exposed_pp", "dp": "exposed_dp", "cp": "exposed_cp",
    "ep": "exposed_ep", "optimizer": "optimizer", "host": "host", "offload": "offload", "join": "compute",
}  # fmt: skip
PIPELINE_KINDS = (
    "forward",
    "backward",
    "input_gradient",
    "weight_gradient",
    "forward_backward",
    "recompute",
    "host",
    "tp",
    "cp",
    "ep",
    "join",
)


@dataclass(frozen=True)
class Accounts:
    """Per class of ranks: nanoseconds by cause ([num_classes, num_causes]), schedule bubble and window.

    ``communication`` int64[num_classes, kinds, 2] holds busy ns and bytes for the kinds in ``kinds``;
    ``recompute_ns`` is the share of "compute" spent on recomputed forwards.
    """

    causes_ns: Ints
    bubble_in_window_ns: Ints
    window_ns: int
    step_ns: int
    recompute_ns: Ints
    kinds: tuple[str, ...]
    communication: Ints

    def critical_class(self) -> int:
        """The class with the least idle time: the one that the step waits for."""
        return int(np.argmin(self.causes_ns[:, CAUSES.index("bubble")]))

    def breakdown_s(self, class_id: int) -> dict[str, float]:
        """Seconds by cause of one class; they sum to the step time."""
        return {
            cause: float(ns) / NS_PER_S for cause, ns in zip(CAUSES, self.causes_ns[class_id], strict=True)
        }


def account(lowered: Lowered, timing: Timing) -> Accounts:
    """Attribute the whole step of every class."""
    slots, layout = lowered.slots, lowered.layout
    start, finish = timing.start_ns[lowered.op_of_slot], timing.finish_ns[lowered.op_of_slot]
    step_ns = int(timing.finish_ns.max(initial=0))
    binding = _binding_predecessors(lowered, timing)
    window = _window(lowered, start, finish)
    causes = np.zeros((layout.num_classes, len(CAUSES)), dtype=np.int64)
    bubbles = np.zeros(layout.num_classes, dtype=np.int64)
    recompute = np.zeros(layout.num_classes, dtype=np.int64)
    kinds = ("tp", "pp", "dp", "cp", "ep", "offload")
    communication = np.zeros((layout.num_classes, len(kinds), 2), dtype=np.int64)
    for class_id in range(layout.num_classes):
        mine = np.flatnonzero(slots.class_id == class_id)
        facts = _node_facts(lowered, class_id, mine)
        on_compute = mine[facts.on_compute]
        _add_ops(causes[class_id], facts, start[on_compute], finish[on_compute])
        gaps = _Gaps.of(start[on_compute], finish[on_compute], step_ns)
        ops = lowered.op_of_slot[on_compute]
        links = list(_links(gaps, binding[ops], binding, lowered, timing))
        _add_gaps(causes[class_id], gaps, links)
        bubbles[class_id] = _bubble_inside(gaps, links, window)
        recompute[class_id] = facts.parts[:, _PARTS.index("recompute")].sum()
        _add_communication(communication[class_id], kinds, facts, finish[mine] - start[mine])
    return Accounts(causes, bubbles, window[1] - window[0], step_ns, recompute, kinds, communication)


def bubble_fraction(accounts: Accounts, multiplicity: Ints) -> float:
    """Idle share of the pipeline window that the schedule causes, averaged over ranks."""
    if accounts.window_ns == 0:
        return 0.0
    return float(np.average(accounts.bubble_in_window_ns / accounts.window_ns, weights=multiplicity))


_INSIDE = ("tp", "cp", "ep")
"""Kinds of communication that happen inside the passes of a block."""
_PARTS = ("forward", "backward", "input_gradient", "weight_gradient", "recompute", "host", *_INSIDE)


@dataclass(frozen=True)
class _Facts:
    """Columns over one class's slots: which sit on the compute stream, kinds, inner parts, communication.

    ``inside`` int64[n, kinds of _INSIDE, 2] holds busy ns and bytes of collectives in blocks, ``size_bytes`` those
    of a slot's own collective.
    """

    on_compute: NDArray[np.bool_]
    kind: NDArray[np.str_]
    parts: Ints
    inside: Ints
    size_bytes: Ints


def _node_facts(lowered: Lowered, class_id: int, mine: Ints) -> _Facts:
    actions = lowered.actions[class_id]
    tables = [_template_facts(template) for template in actions.templates]
    bases = np.cumsum([0, *(len(table.kind) for table in tables[:-1])])
    source = bases[actions.template[lowered.slots.action[mine]]] + lowered.slots.node[mine]
    columns = {
        name: np.concatenate([getattr(table, name) for table in tables])[source]
        for name in _Facts.__dataclass_fields__
    }
    return _Facts(**columns)


def _template_facts(template: Template) -> _Facts:
    nodes = template.nodes
    return _Facts(
        on_compute=np.array([COMPUTE in node.streams for node in nodes]),
        kind=np.array([node.kind for node in nodes]),
        parts=np.array([_inner_parts(node) for node in nodes], dtype=np.int64).reshape(
            len(nodes), len(_PARTS)
        ),
        inside=np.array([_inside(node) for node in nodes], dtype=np.int64).reshape(
            len(nodes), len(_INSIDE), 2
        ),
        size_bytes=np.array([_bytes_moved(node) for node in nodes], dtype=np.int64),
    )


def _inner_parts(node: Node) -> list[int]:
    parts = dict.fromkeys(_PARTS, 0)
    for _, segment in node.segments:
        for kind, duration in segment.parts_ns.items():
            parts[kind] += duration
    if not node.segments and node.kind in parts and node.collective is None:
        parts[node.kind] = node.duration_ns
    return list(parts.values())


def _inside(node: Node) -> list[list[int]]:
    """Busy ns and bytes of the collectives in a node's blocks, by kind."""
    found = {kind: [0, 0] for kind in _INSIDE}
    for _, segment in node.segments:
        for step, start, finish in zip(segment.steps, segment.start_ns, segment.finish_ns, strict=True):
            if step.collective is not None:
                found[step.kind][0] += int(finish - start)
                found[step.kind][1] += round(step.collective.size_bytes * step.collective.count)
    return list(found.values())


def _bytes_moved(node: Node) -> int:
    """Bytes of the tensor that the node's own collective works on."""
    return round(node.collective.size_bytes * node.collective.count) if node.collective else 0


def _add_ops(row: Ints, facts: _Facts, start: Ints, finish: Ints) -> None:
    duration = finish - start
    kinds, parts = facts.kind[facts.on_compute], facts.parts[facts.on_compute]
    known = parts.sum(axis=1)
    for column, part in enumerate(_PARTS):
        row[CAUSES.index(_CAUSE_OF_KIND[part])] += parts[:, column].sum()
    rest = duration - known
    for kind in np.unique(kinds):
        row[CAUSES.index(_CAUSE_OF_KIND[str(kind)])] += rest[kinds == kind].sum()


@dataclass(frozen=True)
class _Gaps:
    """Idle intervals before each op of a compute stream, and the one from the last op to the step's end."""

    begin: Ints
    end: Ints
    tail: tuple[int, int]

    @staticmethod
    def of(start: Ints, finish: Ints, step_ns: int) -> _Gaps:
        order = np.argsort(start, kind="stable")
        begin = np.zeros(len(start), dtype=np.int64)
        begin[order[1:]] = np.maximum.accumulate(finish[order])[:-1]
        return _Gaps(np.minimum(begin, start), start, (int(finish.max(initial=0)), step_ns))


def _binding_predecessors(lowered: Lowered, timing: Timing) -> Ints:
    """The predecessor of every op that finished last (-1 without predecessors)."""
    pointer, preds = predecessors(lowered.program)
    binding = np.full(len(pointer) - 1, -1, dtype=np.int64)
    has = np.flatnonzero(np.diff(pointer) > 0)
    if not len(has):
        return binding
    owner = np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))
    order = np.lexsort((timing.finish_ns[preds], owner))
    binding[has] = preds[order[pointer[has + 1] - 1]]
    return binding


def _links(
    gaps: _Gaps, last: Ints, binding: Ints, lowered: Lowered, timing: Timing
) -> Iterator[tuple[NDArray[np.str_], Ints]]:
    """What each gap waited for: kind of the op that finished last and the share it was running, then what it followed.

    Collectives inside blocks start when another ends: a gap is shared out link by link along such a chain.
    """
    kinds_of_label = np.array([label.kind for label in lowered.program.labels])
    at, end = last, gaps.end
    while (at >= 0).any():
        known, safe = at >= 0, np.where(at >= 0, at, 0)
        kind = np.where(known, kinds_of_label[lowered.program.ops.label[safe]], "bubble")
        start = timing.start_ns[safe]
        running = np.minimum(end, timing.finish_ns[safe]) - np.maximum(gaps.begin, start)
        exposed = known & np.isin(kind, (*_CHAINED, "pp", "dp", "offload"))
        covered = np.where(exposed, np.clip(running, 0, None), 0)
        # data-parallel collectives and transfers with the host queue behind their like: the whole wait is theirs
        yield kind, np.where(np.isin(kind, ("dp", "offload")), end - gaps.begin, covered)
        before = binding[safe]
        earlier = np.where(before >= 0, before, safe)
        follows = np.isin(kind, _CHAINED) & (before >= 0) & (timing.finish_ns[earlier] == start)
        follows &= np.isin(kinds_of_label[lowered.program.ops.label[earlier]], _CHAINED) & (
            start > gaps.begin
        )
        at, end = np.where(follows, before, -1), start


def _add_gaps(row: Ints, gaps: _Gaps, links: _Links) -> None:
    waited = 0
    for kind, covered in links:
        for name in np.unique(kind[covered > 0]):
            row[CAUSES.index(_CAUSE_OF_KIND[str(name)])] += covered[kind == name].sum()
        waited += int(covered.sum())
    row[CAUSES.index("bubble")] += (gaps.end - gaps.begin).sum() - waited + gaps.tail[1] - gaps.tail[0]


def _window(lowered: Lowered, start: Ints, finish: Ints) -> tuple[int, int]:
    """From the first to the last pass of any stage."""
    kinds = np.array([label.kind for label in lowered.program.labels])[lowered.slots.label]
    inside = np.isin(kinds, PIPELINE_KINDS)
    return int(start[inside].min(initial=0)), int(finish[inside].max(initial=0))


def _bubble_inside(gaps: _Gaps, links: _Links, window: tuple[int, int]) -> int:
    idle = np.clip(np.minimum(gaps.end, window[1]) - np.maximum(gaps.begin, window[0]), 0, None)
    tail = max(0, window[1] - max(gaps.tail[0], window[0]))
    covered = sum((covered for _, covered in links), np.zeros_like(idle))
    return int(np.clip(idle - covered, 0, None).sum()) + tail


def _add_communication(row: Ints, kinds: tuple[str, ...], facts: _Facts, duration: Ints) -> None:
    for index, kind in enumerate(kinds):
        own = facts.kind == kind
        row[index, 0] += duration[own].sum()
        row[index, 1] += facts.size_bytes[own].sum()
    for index, kind in enumerate(_INSIDE):
        row[kinds.index(kind)] += facts.inside[:, index].sum(axis=0)
