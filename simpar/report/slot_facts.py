"""What every op of a rank consists of: kernels, launch gaps and the collectives inside its blocks, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.program.blocks.phases import COMPUTE
from simpar.program.structure.templates import Node, Template

if TYPE_CHECKING:
    from simpar.program.ir.program import Timing
    from simpar.program.lower import Lowered

Ints = NDArray[np.int64]

PASSES = ("forward", "backward", "input_gradient", "weight_gradient", "forward_backward", "recompute")
INSIDE = ("tp", "cp", "ep")
"""Kinds of communication that happen inside the passes of a block."""
COMMUNICATION = ("tp", "pp", "dp", "cp", "ep", "offload")
HOST = "host"
"""Kind of what waits for launches on the host."""
PARTS = ("forward", "backward", "input_gradient", "weight_gradient", "recompute", HOST, *INSIDE)


@dataclass(frozen=True)
class SlotFacts:
    """Columns over slots: which sit on the compute stream, kinds, inner parts, communication, duration in ns.

    ``parts`` int64[n, PARTS] splits the compute stream of a block; ``inside`` int64[n, INSIDE, 2] holds busy ns and
    bytes of collectives in blocks, ``size_bytes`` those of a slot's own collective.
    """

    on_compute: NDArray[np.bool_]
    kind: NDArray[np.str_]
    parts: Ints
    inside: Ints
    size_bytes: Ints
    duration_ns: Ints

    def take(self, rows: Ints) -> SlotFacts:
        """The facts of the slots at ``rows``."""
        return SlotFacts(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    @property
    def exposed_inside_ns(self) -> Ints:
        """What each slot's blocks wait for their own collectives: int64[n, INSIDE]."""
        return self.parts[:, [PARTS.index(kind) for kind in INSIDE]]


def slot_facts(lowered: Lowered, timing: Timing) -> SlotFacts:
    """The facts of all slots, in their order."""
    op = lowered.op_of_slot
    duration = timing.finish_ns[op] - timing.start_ns[op]
    known: dict[int, dict[str, NDArray[np.generic]]] = {}  # classes share templates
    columns: dict[str, list[NDArray[np.generic]]] = {name: [] for name in _OF_NODES}
    order: list[Ints] = []
    for class_id, actions in enumerate(lowered.actions):
        mine, node = lowered.slots.nodes(class_id, actions)
        tables = []
        for template in actions.templates:
            if id(template) not in known:
                known[id(template)] = _of_template(template)
            tables.append(known[id(template)])
        for name, column in columns.items():
            column.append(np.concatenate([table[name] for table in tables])[node])
        order.append(mine)
    back = np.argsort(np.concatenate(order), kind="stable")
    found = {name: np.concatenate(column)[back] for name, column in columns.items()}
    return SlotFacts(duration_ns=duration, **found)


_OF_NODES = ("on_compute", "kind", "parts", "inside", "size_bytes")


def _of_template(template: Template) -> dict[str, NDArray[np.generic]]:
    nodes, num = template.nodes, len(template.nodes)
    return {
        "on_compute": np.array([COMPUTE in node.streams for node in nodes]),
        "kind": np.array([node.kind for node in nodes]),
        "parts": np.array([_inner_parts(node) for node in nodes], dtype=np.int64).reshape(num, len(PARTS)),
        "inside": np.array([_inside(node) for node in nodes], dtype=np.int64).reshape(num, len(INSIDE), 2),
        "size_bytes": np.array([_bytes_moved(node) for node in nodes], dtype=np.int64),
    }


def _inner_parts(node: Node) -> list[int]:
    parts = dict.fromkeys(PARTS, 0)
    for _, segment in node.segments:
        for kind, duration in segment.parts_ns.items():
            parts[kind] += node.repeats * duration
    if not node.segments and node.kind in parts and node.collective is None:
        parts[node.kind] = node.duration_ns
    return list(parts.values())


def _inside(node: Node) -> list[list[int]]:
    """Busy ns and bytes of the collectives in a node's blocks, by kind."""
    found = {kind: [0, 0] for kind in INSIDE}
    for _, segment in node.segments:
        for step, start, finish in zip(segment.steps, segment.start_ns, segment.finish_ns, strict=True):
            if step.collective is not None:
                found[step.kind][0] += node.repeats * int(finish - start)
                found[step.kind][1] += node.repeats * round(
                    step.collective.size_bytes * step.collective.count
                )
    return list(found.values())


def _bytes_moved(node: Node) -> int:
    """Bytes of the tensor that the node's own collective works on."""
    return round(node.collective.size_bytes * node.collective.count) if node.collective else 0
