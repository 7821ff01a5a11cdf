"""The long form of a template: every step of every segment as a node of its own."""

from dataclasses import replace

from simpar.dataclass import dataclass
from simpar.program.blocks.phases import terminals
from simpar.program.blocks.segments import LAUNCH, Segment, varying_ns, waits_for_host
from simpar.program.structure.templates import PassNode, Template, TemplateNode, TemplateNodes, UnitsBegin


@dataclass(frozen=True)
class Launches(TemplateNode):
    """Launches by the host beside a segment; ``compute_ns`` is the part that varies with the rank's speed."""

    compute_ns: int = 0

    @property
    def varying_ns(self) -> int:
        """The part of the duration that varies with the rank's speed: not that of collectives."""
        return self.compute_ns


def flatten(template: Template) -> Template:
    """The same template with every step of every segment as a node of its own (steps keep their streams).

    The opening steps of a segment wait for all closing steps of the one before, which is what "starts with
    idle streams and ends joined" means; memory moves with the node's first and last step. Launches that outlast a
    segment's device work are counted from the segment's begin, because the host goes on while ranks wait for each
    other or for links.
    """
    nodes, ends = TemplateNodes(), list[int]()
    for node in template.nodes:
        last = tuple(ends[position] for position in node.after)
        if not node.segments:
            ends.append(nodes.add(replace(node, after=last)))
            continue
        first, opening, entered = len(nodes), node, 0
        for number, (layer, segment) in enumerate(node.segments):
            opening = replace(opening, layer=layer)
            if waits_for_host(segment) and len(nodes) == first:
                begin = replace(opening, kind="join", duration_ns=0, segments=(), memory=(), frees=())
                last = (nodes.add(replace(begin, after=last)),)
            at = len(nodes)
            last = _append_steps(nodes, opening, segment, last)
            if at < len(nodes):
                entered = _enter(nodes, at if entered else first, node, (entered, number))
            opening = replace(opening, arrival=False, awaits=())
        ends.append(_close(nodes, node, first, last))
        if first < ends[-1]:
            _enter(nodes, ends[-1], node, (entered, len(node.segments)))
    return Template(tuple(nodes), ends[template.exit])


def _enter(nodes: TemplateNodes, at: int, whole: TemplateNode, units: tuple[int, int]) -> int:
    """Note that a pass enters units, from the first to the last, at the start of a node; the number of the next."""
    at += isinstance(nodes[at], Launches)
    if isinstance(whole, PassNode) and len(whole.passes) == 1:
        facts = {name: getattr(nodes[at], name) for name in TemplateNode.__dataclass_fields__}
        nodes[at] = UnitsBegin(**facts, whole=whole, first=units[0], last=units[1])
    return units[1] + 1


def _append_steps(nodes: TemplateNodes, node: TemplateNode, segment: Segment, last: tuple[int, ...]) -> tuple[int, ...]:
    host: tuple[int, ...] = ()
    if waits_for_host(segment):
        took, busy = segment.duration_ns, varying_ns(segment)
        beside = Launches("host", LAUNCH, (), took, after=last, layer=node.layer, compute_ns=busy)
        host = (nodes.add(beside),)
    offset = len(nodes)
    for step, start, finish in zip(segment.steps, segment.start_ns, segment.finish_ns, strict=True):
        nodes.append(
            TemplateNode(
                kind=node.kind if step.kind in ("forward", "input_gradient", "weight_gradient") else step.kind,
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


def _close(nodes: TemplateNodes, node: TemplateNode, first: int, last: tuple[int, ...]) -> int:
    """Append the join of no duration that ends a flattened node: it frees memory, and the first step allocates it."""
    if first == len(nodes):  # nothing runs
        return nodes.add(replace(node, kind="join", duration_ns=0, segments=(), after=last))
    nodes[first] = replace(nodes[first], memory=tuple(c for c in node.memory if not c.at_finish))
    finishes = tuple(change for change in node.memory if change.at_finish)
    return nodes.add(TemplateNode("join", node.name, node.streams, after=last, memory=finishes, frees=node.frees))
