"""The composition of every op of a rank: kernels, launch gaps and the collectives inside its blocks, in columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.power import streaming_operators
from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import COMMUNICATION as KINDS_BY_DEGREE
from simpar.plan.choices.mesh import INSIDE_BLOCKS
from simpar.program.blocks.phases import COMPUTE
from simpar.program.blocks.segments import Segment
from simpar.program.emission.traffic import EMBEDDING_GROUP
from simpar.program.structure.templates import TemplateNode
from simpar.report.loops import tally
from simpar.units import Indices, Ints

if TYPE_CHECKING:
    from simpar.program.ir.program import Timing
    from simpar.program.lower import Lowered


PASSES = ("forward", "backward", "input_gradient", "weight_gradient", "forward_backward", "recompute")
INSIDE = INSIDE_BLOCKS
COMMUNICATION = (*KINDS_BY_DEGREE, "offload")
HOST = "host"
"""Kind of the ops that wait for launches on the host."""
PARTS = ("forward", "backward", "input_gradient", "weight_gradient", "recompute", HOST, *INSIDE)


@dataclass(frozen=True)
class SlotFacts:
    """The template node of every slot, ``node`` int32[num_slots], and its ``duration_ns`` int64[num_slots].

    ``rows`` are the slots of every class. The other columns are over the nodes of all distinct templates in turn:
    whether they are on the compute stream, kinds, inner parts, communication. ``parts`` int64[nodes, PARTS] splits the
    compute stream of a block. ``inside`` int64[nodes, INSIDE, 2] are busy ns and bytes of collectives in blocks,
    ``size_bytes`` the bytes of a node's own collective, ``is_tied`` whether it sums gradients of tied embeddings.
    ``streaming_ns`` int64[nodes] is the time of memory-bound kernels on the compute stream, inside passes.
    """

    node: Indices
    duration_ns: Ints
    rows: tuple[slice, ...]
    on_compute: NDArray[np.bool_]
    kind: NDArray[np.str_]
    parts: Ints
    inside: Ints
    size_bytes: Ints
    is_tied: NDArray[np.bool_]
    streaming_ns: Ints

    @cached_property
    def exposed_inside_ns(self) -> Ints:
        """Time for which the blocks of each node wait for their own collectives: int64[nodes, INSIDE]."""
        return self.parts[:, [PARTS.index(kind) for kind in INSIDE]]

    @cached_property
    def tallies(self) -> tuple[tuple[Ints, Ints], ...]:
        """How many slots of each class belong to each node, and their time, up to the last node that the class has."""
        return tuple(tally(self.node[mine], self.duration_ns[mine]) for mine in self.rows)

    def summed(self, of_node: Ints) -> Ints:
        """A column over nodes, int64[nodes, ...], summed over the slots of every class: int64[num_classes, ...]."""
        return np.array([count @ of_node[: len(count)] for count, _ in self.tallies], dtype=np.int64)

    def time_by(self, group: NDArray[np.signedinteger[Any]], groups: int) -> Ints:
        """The time of the slots of every class by group of nodes: int64[num_classes, groups], for ``group`` [nodes].

        Slots of nodes of group -1 do not count.
        """
        result = np.zeros((len(self.rows), groups + 1), dtype=np.int64)
        for row, (_, total_ns) in zip(result, self.tallies, strict=True):
            np.add.at(row, group[: len(total_ns)], total_ns)
        return result[:, :groups]


def slot_facts(lowered: Lowered, timing: Timing) -> SlotFacts:
    """The facts of all slots, in their order."""
    slots = lowered.slots
    nodes: list[TemplateNode] = []
    first: dict[int, int] = {}  # classes share templates
    result = np.empty(len(lowered.op_of_slot), dtype=np.int32)
    rows = tuple(slots.of_class(class_id) for class_id in range(len(lowered.actions)))
    for mine, actions in zip(rows, lowered.actions, strict=True):
        for template in actions.templates:
            if id(template) not in first:
                first[id(template)] = len(nodes)
                nodes += template.nodes
        begins = np.array([first[id(template)] for template in actions.templates], dtype=np.int32)
        np.add(begins[actions.template][slots.action[mine]], slots.node[mine], out=result[mine])
    parts, inside, streaming_ns = _contents(nodes, streaming_operators(lowered.job.graph))
    return SlotFacts(
        node=result,
        duration_ns=lowered.of_slots(timing.finish_ns - timing.start_ns),
        rows=rows,
        on_compute=np.array([COMPUTE in node.streams for node in nodes], dtype=bool),
        kind=np.array([node.kind for node in nodes], dtype=np.str_),
        parts=parts,
        inside=inside,
        size_bytes=np.array([node.collective.moved_bytes if node.collective else 0 for node in nodes], dtype=np.int64),
        is_tied=np.array([node.collective is not None and node.collective.group == EMBEDDING_GROUP for node in nodes]),
        streaming_ns=streaming_ns,
    )


@dataclass(frozen=True)
class _Inside:
    """What a segment runs, once: ns of PARTS, (ns, bytes) of INSIDE, and ns of kernels of some operators."""

    parts: list[int]
    inside: list[list[int]]
    streaming_ns: int

    @staticmethod
    def of(segment: Segment, streaming: Collection[str]) -> _Inside:
        """The contents of a segment; ``streaming`` are the operators whose kernels count."""
        parts, totals, took = dict.fromkeys(PARTS, 0), {kind: [0, 0] for kind in INSIDE}, 0
        for kind, duration in segment.parts_ns.items():
            parts[kind] += duration
        for step, ns in zip(segment.steps, (segment.finish_ns - segment.start_ns).tolist(), strict=True):
            if step.collective is not None:
                totals[step.kind][0] += ns
                totals[step.kind][1] += step.collective.moved_bytes
            if step.stream == COMPUTE and step.name in streaming:
                took += ns
        return _Inside(list(parts.values()), list(totals.values()), took)


def _contents(nodes: Sequence[TemplateNode], streaming: Collection[str]) -> tuple[Ints, Ints, Ints]:
    """The columns ``parts``, ``inside`` and ``streaming_ns`` of :class:`SlotFacts`."""
    num, part_of = len(nodes), {kind: number for number, kind in enumerate(PARTS)}
    parts = np.zeros((num, len(PARTS)), dtype=np.int64)
    inside = np.zeros((num, len(INSIDE), 2), dtype=np.int64)
    steps_at, runs_at = ([at for at, node in enumerate(nodes) if bool(node.segments) is runs] for runs in (False, True))
    steps, at = [nodes[at] for at in steps_at], np.array(steps_at, dtype=np.int64)
    alone_ns = np.array([node.duration_ns for node in steps], dtype=np.int64)
    part = np.array([-1 if node.collective else part_of.get(node.kind, -1) for node in steps], dtype=np.int64)
    parts[at[part >= 0], part[part >= 0]] = alone_ns[part >= 0]
    streams = np.array([node.name in streaming and COMPUTE in node.streams for node in steps], dtype=bool)
    streamed = np.zeros(num, dtype=np.int64)
    streamed[at[streams]] = alone_ns[streams]
    numbers, distinct = dict[int, int](), list[_Inside]()  # nodes share segments
    held: list[tuple[int, int, int]] = []  # node, how often a segment runs in it, and which segment
    for run in runs_at:
        for _, segment in nodes[run].segments:
            if id(segment) not in numbers:
                numbers[id(segment)] = len(distinct)
                distinct.append(_Inside.of(segment, streaming))
            held.append((run, nodes[run].repeats, numbers[id(segment)]))
    if held:
        where, repeats, which = np.array(held, dtype=np.int64).T
        np.add.at(parts, where, repeats[:, None] * np.array([one.parts for one in distinct])[which])
        np.add.at(inside, where, repeats[:, None, None] * np.array([one.inside for one in distinct])[which])
        np.add.at(streamed, where, repeats * np.array([one.streaming_ns for one in distinct])[which])
    return parts, inside, streamed
