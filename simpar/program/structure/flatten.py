"""The long form of a template: every step of every segment as a node of its own."""

from dataclasses import field
from typing import Any

from simpar.dataclass import but, dataclass
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


@dataclass(frozen=True)
class _WrittenNode:
    """A node of the long form of a segment: a step as in ``node``, or the steps of a ``section`` as one op.

    ``after`` are earlier nodes of the segment; ``layer`` is that of a step of another layer than its segment.
    """

    node: TemplateNode
    section: Segment | None
    after: tuple[int, ...]
    layer: int | None


_LongForm = tuple[list[_WrittenNode], tuple[int, ...]]
"""Nodes of the long form of a segment, and those of them that end it."""


@dataclass
class _Pieces:
    """Nodes of the long form of a template, where collectives in ``disturbed`` groups are.

    Long forms of segments are ``known`` by segment and kind of pass: layers that are alike share theirs.
    """

    nodes: TemplateNodes
    disturbed: frozenset[str] | None
    known: dict[tuple[int, str], tuple[Segment, _LongForm]] = field(default_factory=dict)

    def of(self, segment: Segment, kind: str) -> _LongForm:
        """The long form of a segment in a pass of a kind."""
        key = id(segment), kind
        if key not in self.known:
            self.known[key] = segment, self._write(segment, kind)
        return self.known[key][1]

    def _sections(self, segment: Segment) -> list[list[int]]:
        """Positions of steps by section; every step alone where the host holds them up."""
        if self.disturbed is None or waits_for_host(segment):
            return [[at] for at in range(len(segment.steps))]
        return split_into_sections(segment.steps, self.disturbed)

    def _write(self, segment: Segment, kind: str) -> _LongForm:
        pieces, place = list[_WrittenNode](), dict[int, int]()
        for section in self._sections(segment):
            opening = segment.steps[section[0]]
            after = tuple(dict.fromkeys(place[at] for at in opening.after))
            part = take_section(segment, section) if len(section) > 1 else None
            node = _step(segment, section[0], kind) if part is None else _section(part, kind)
            place |= dict.fromkeys(section, len(pieces))
            pieces.append(_WrittenNode(node, part, after, opening.layer))
        return pieces, tuple(dict.fromkeys(place[at] for at in terminals(segment.steps)))


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
            ends.append(nodes.add(node.but(after=last)))
            continue
        first, entered = len(nodes), 0
        for number, (layer, segment) in enumerate(node.segments):
            if waits_for_host(segment) and len(nodes) == first:
                arrival, awaits = _opening(node, number)
                begin = node.but(kind="join", duration_ns=0, segments=(), memory=(), frees=(), layer=layer)
                last = (nodes.add(begin.but(after=last, arrival=arrival, awaits=awaits)),)
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
        nodes[at] = nodes[at].but(UnitsBegin, whole=whole, first=units[0], last=units[1])
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
    written, ends = pieces.of(segment, node.kind)
    first = len(nodes)
    opens: dict[str, Any] = {"after": last, "arrival": arrival, "awaits": awaits}
    for piece in written:
        facts = {"after": tuple([first + at for at in piece.after])} if piece.after else opens
        if piece.section is not None:
            facts = {**facts, "name": node.name, "segments": ((node.layer, piece.section),)}
        nodes.append(but(piece.node, layer=layer if piece.layer is None else piece.layer, **facts))
    return (*(first + at for at in ends), *host) or last


def _step(segment: Segment, at: int, kind: str) -> TemplateNode:
    """One step of a segment in a pass of a kind."""
    step, took = segment.steps[at], int(segment.finish_ns[at] - segment.start_ns[at])
    return TemplateNode(
        kind=kind if step.kind in ("forward", "input_gradient", "weight_gradient") else step.kind,
        name=step.name,
        streams=(step.stream,),
        duration_ns=0 if step.name == LAUNCH else took,
        collective=step.collective,
    )


def _section(section: Segment, kind: str) -> TemplateNode:
    """Steps of a segment as one op, in a pass of a kind."""
    used = {step.stream for step in section.steps}
    streams = tuple(stream for stream in BLOCK_STREAMS if stream in used)
    return TemplateNode(kind, "", streams, duration_ns=section.duration_ns)


def _close(nodes: TemplateNodes, node: TemplateNode, first: int, last: tuple[int, ...]) -> int:
    """Append the join of no duration that ends a flattened node: it frees memory, and the first step allocates it."""
    if first == len(nodes):  # nothing runs
        return nodes.add(node.but(kind="join", duration_ns=0, segments=(), after=last))
    nodes[first] = nodes[first].but(memory=tuple(c for c in node.memory if not c.at_finish))
    finishes = tuple(change for change in node.memory if change.at_finish)
    return nodes.add(TemplateNode("join", node.name, node.streams, after=last, memory=finishes, frees=node.frees))
