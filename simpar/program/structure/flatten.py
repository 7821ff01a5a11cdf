"""The long form of a template: every step of every segment as a node of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simpar.program.blocks.phases import terminals
from simpar.program.blocks.segments import LAUNCH, Segment, varying_ns, waits_for_host
from simpar.program.structure.templates import Node, Template


@dataclass(frozen=True)
class Launches(Node):
    """What the host launches beside a segment; ``compute_ns`` varies with the rank's speed, as in the segment."""

    compute_ns: int = 0

    @property
    def varying_ns(self) -> int:
        """The part of the duration that varies with the rank's speed: not that of collectives."""
        return self.compute_ns


def flatten(template: Template) -> Template:
    """The same template with every step of every segment as a node of its own (steps keep their streams).

    The opening steps of a segment wait for all closing steps of the one before, which is what "starts with
    idle streams and ends joined" means; memory moves with the node's first and last step. What the host still
    launches when a segment alone has ended is counted from the segment's begin: it goes on while ranks wait for
    each other or for links.
    """
    nodes: list[Node] = []
    ends: list[tuple[int, ...]] = []
    for node in template.nodes:
        waits = tuple(last for position in node.after for last in ends[position])
        if not node.segments:
            nodes.append(replace(node, after=waits))
            ends.append((len(nodes) - 1,))
            continue
        first = len(nodes)
        last: tuple[int, ...] = waits
        for index, (layer, segment) in enumerate(node.segments):
            opening = (
                replace(node, layer=layer)
                if index == 0
                else replace(node, layer=layer, arrival=False, awaits=())
            )
            if waits_for_host(segment) and len(nodes) == first:
                begin = replace(opening, kind="join", duration_ns=0, segments=(), memory=(), frees=())
                nodes.append(replace(begin, after=last))
                last = (len(nodes) - 1,)
            last = _append_steps(nodes, opening, segment, last)
        _move_ends(nodes, node, first, last)
        ends.append((len(nodes) - 1,))
    return Template(tuple(nodes), ends[template.exit][0])


def _append_steps(nodes: list[Node], node: Node, segment: Segment, last: tuple[int, ...]) -> tuple[int, ...]:
    host: tuple[int, ...] = ()
    if waits_for_host(segment):
        host = (len(nodes),)
        busy = varying_ns(segment)
        took = segment.duration_ns
        nodes.append(Launches("host", LAUNCH, (), took, after=last, layer=node.layer, compute_ns=busy))
    offset = len(nodes)
    for step, start, finish in zip(segment.steps, segment.start_ns, segment.finish_ns, strict=True):
        nodes.append(
            Node(
                kind=node.kind
                if step.kind in ("forward", "input_gradient", "weight_gradient")
                else step.kind,
                name=step.name,
                streams=(step.stream,),
                duration_ns=0 if step.name == LAUNCH else int(finish - start),
                collective=step.collective,
                after=tuple(a + offset for a in step.after) or last,
                arrival=node.arrival and not step.after,
                awaits=() if step.after else node.awaits,
                layer=node.layer if step.layer is None else step.layer,
            )
        )
    return (*(position + offset for position in terminals(segment.steps)), *host) or last


def _move_ends(nodes: list[Node], node: Node, first: int, last: tuple[int, ...]) -> None:
    """Close a flattened node with a join of no duration that carries its end; its opening carries the start."""
    starts = tuple(change for change in node.memory if not change.at_finish)
    finishes = tuple(change for change in node.memory if change.at_finish)
    if first == len(nodes):  # nothing runs
        nodes.append(replace(node, kind="join", duration_ns=0, collective=None, segments=(), after=last))
        return
    nodes[first] = replace(nodes[first], memory=starts)
    join = Node("join", node.name, node.streams, after=last, memory=finishes, frees=node.frees)
    nodes.append(join)
