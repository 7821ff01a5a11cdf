"""The long form of a template: every step of every segment as a node of its own."""

from dataclasses import field, replace
from typing import Any

from simpar.dataclass import dataclass
from simpar.program.blocks.phases import BLOCK_STREAMS, terminals
from simpar.program.blocks.segments import LAUNCH, Segment, take_section, varying_ns, waits_for_host
from simpar.program.structure.sections import split_into_sections
from simpar.program.structure.templates import Await, PassNode, Template, TemplateNode, TemplateNodes, UnitsBegin


@dataclass(frozen=True)
class Launches(TemplateNode):
    """Launches by the host beside a segment; ``compute_ns`` is the part that varies with the rank's speed."""

    compute_ns: int = 0

    @property
    def varying_ns(self) -> int:
        """The part of the duration that varies with the rank's speed: not that of collectives."""
        return self.compute_ns


@dataclass
class _Pieces:
    """Nodes of the long form of a template, where collectives in ``disturbed`` groups are; ``known`` by segment."""

    nodes: TemplateNodes
    disturbed: frozenset[str] | None
    known: dict[int, tuple[Segment, list[tuple[list[int], Segment]]]] = field(default_factory=dict)

    def sections_of(self, segment: Segment) -> list[tuple[list[int], Segment]]:
        """The sections of a segment's steps, each as a segment; every step alone where the host holds them up."""
        if id(segment) not in self.known:
            if self.disturbed is None or waits_for_host(segment):
                every = [[at] for at in range(len(segment.steps))]
            else:
                every = split_into_sections(segment.steps, self.disturbed)
            parts = [take_section(segment, one) if len(one) > 1 else segment for one in every]
            self.known[id(segment)] = segment, [*zip(every, parts, strict=True)]
        return self.known[id(segment)][1]


def flatten(template: Template, disturbed: frozenset[str] | None = None) -> Template:
    """The same template with every step of every segment as a node of its own (steps keep their streams).

    Where the kinds of groups are given whose collectives alone may be ``disturbed``, sections between these are nodes
    (:mod:`simpar.program.structure.sections`).

    The opening steps of a segment wait for all closing steps of the one before, which is what "starts with
    idle streams and ends joined" means; memory moves with the node's first and last step. Launches that outlast a
    segment's device work are counted from the segment's begin, because the host goes on while ranks wait for each
    other or for links.
    """
    nodes, ends = TemplateNodes(), list[int]()
    pieces = _Pieces(nodes, disturbed)
    for node in template.nodes:
        last = tuple(ends[position] for position in node.after)
        if not node.segments:
            ends.append(nodes.add(replace(node, after=last)))
            continue
        first, entered = len(nodes), 0
        for number, (layer, segment) in enumerate(node.segments):
            if waits_for_host(segment) and len(nodes) == first:
                arrival, awaits = _opening(node, number)
                begin = replace(node, kind="join", duration_ns=0, segments=(), memory=(), frees=(), layer=layer)
                last = (nodes.add(replace(begin, after=last, arrival=arrival, awaits=awaits)),)
            at = len(nodes)
            last = _append_steps(pieces, node, (number, layer, segment), last)
            if at < len(nodes):
                entered = _enter(nodes, at if entered else first, node, (entered, number))
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


def _opening(node: TemplateNode, number: int) -> tuple[bool, tuple[Await, ...]]:
    """What the first steps of segment ``number`` of a node wait for: only the first one is where the node arrives."""
    return (node.arrival, node.awaits) if number == 0 else (False, ())


def _append_steps(
    pieces: _Pieces, node: TemplateNode, one: tuple[int, int, Segment], last: tuple[int, ...]
) -> tuple[int, ...]:
    """Append the steps of ``one`` segment of a node: its number, layer and the segment; only the first one arrives."""
    number, layer, segment = one
    nodes, (arrival, awaits) = pieces.nodes, _opening(node, number)
    host: tuple[int, ...] = ()
    if waits_for_host(segment):
        took, busy = segment.duration_ns, varying_ns(segment)
        beside = Launches("host", LAUNCH, (), took, after=last, layer=layer, compute_ns=busy)
        host = (nodes.add(beside),)
    place = dict[int, int]()
    for section, part in pieces.sections_of(segment):
        opening = segment.steps[section[0]]
        after = tuple(dict.fromkeys(place[at] for at in opening.after))
        facts = _facts_of_step(node, segment, *section) if part is segment else _facts_of_section(node, part)
        place |= dict.fromkeys(section, len(nodes))
        nodes.append(
            TemplateNode(
                **facts,
                after=after or last,
                arrival=arrival and not after,
                awaits=() if after else awaits,
                layer=layer if opening.layer is None else opening.layer,
            )
        )
    return (*dict.fromkeys(place[at] for at in terminals(segment.steps)), *host) or last


def _facts_of_step(node: TemplateNode, segment: Segment, at: int) -> dict[str, Any]:
    """What one step of a segment is, as fields of its node."""
    step, took = segment.steps[at], int(segment.finish_ns[at] - segment.start_ns[at])
    return {
        "kind": node.kind if step.kind in ("forward", "input_gradient", "weight_gradient") else step.kind,
        "name": step.name,
        "streams": (step.stream,),
        "duration_ns": 0 if step.name == LAUNCH else took,
        "collective": step.collective,
    }


def _facts_of_section(node: TemplateNode, section: Segment) -> dict[str, Any]:
    """What steps of a segment as one op are, as fields of its node."""
    used = {step.stream for step in section.steps}
    return {
        "kind": node.kind,
        "name": node.name,
        "streams": tuple(stream for stream in BLOCK_STREAMS if stream in used),
        "duration_ns": section.duration_ns,
        "segments": ((node.layer, section),),
    }


def _close(nodes: TemplateNodes, node: TemplateNode, first: int, last: tuple[int, ...]) -> int:
    """Append the join of no duration that ends a flattened node: it frees memory, and the first step allocates it."""
    if first == len(nodes):  # nothing runs
        return nodes.add(replace(node, kind="join", duration_ns=0, segments=(), after=last))
    nodes[first] = replace(nodes[first], memory=tuple(c for c in node.memory if not c.at_finish))
    finishes = tuple(change for change in node.memory if change.at_finish)
    return nodes.add(TemplateNode("join", node.name, node.streams, after=last, memory=finishes, frees=node.frees))
