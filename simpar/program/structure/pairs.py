"""A forward and a backward that run together (DualPipe): the kernels of one hide the communication of the other.

Kernels of both take turns on the device, collectives of both take turns on their streams, each pass keeps its own
order. Blocks are paired in the order in which the two passes reach them; where one stage has more blocks, the rest run
alone at the end [DeepSeek-V3, arXiv 2412.19437, section 3.2.1].

Where tokens are exchanged, attention, dispatch, experts and combine of a pass still wait for each other: an exchange
is hidden by kernels of the other pass, and by weight gradients, for which nothing waits (the order is that of figure 4
there).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from simpar.dataclass import dataclass
from simpar.program.blocks.phases import BLOCK_STREAMS, COMPUTE, EXPERT, BlockStep, Phase
from simpar.program.blocks.segments import Priced, Segment, in_order
from simpar.program.structure.hooks import BlockBytes
from simpar.program.structure.pass_memory import backward_memory, forward_memory
from simpar.program.structure.templates import Template, TemplateNode
from simpar.units import NS_PER_S

PAIR = "forward_backward"
AHEAD = -2  # as layer of a merged step: that of the forward
Durations = Callable[[BlockStep], float]


@dataclass(frozen=True)
class Pass:
    """One pass over a stage, block by block in its order: the units, and their segments when run alone."""

    kind: str
    units: tuple[BlockBytes, ...]
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Strands:
    """Two passes that run together: steps as (which pass, place) in the order that they keep, strand by strand.

    ``by_turns`` tells passes that exchange tokens; their last strand fills in.
    """

    phases: tuple[Phase, Phase]
    strands: tuple[tuple[tuple[int, int], ...], ...]
    by_turns: bool


def merge(forward: Phase, backward: Phase, duration: Durations) -> Phase:
    """Both phases as one: of the two passes' next steps, the one that can start first comes first.

    ``duration`` (seconds of a step) only decides the order, which must be the same on all ranks of a group. Steps of
    the forward get AHEAD as their layer. Where either pass exchanges tokens, one pass goes on until it waits for an
    exchange of its own, the backward first, and weight gradients fill in where both wait.
    """
    taken = strands_of(forward, backward)
    phases, strands = taken.phases, [list(each) for each in taken.strands]
    # List scheduling [Graham 1969]: of the steps whose predecessors are done, the one that can start first,
    #   start(step) = max(free(stream of step), max over predecessors p of finish(p)),  finish = start + duration,
    # ties going to the strand whose turn it is. The order is a step's place; times are forgotten.
    turn = -1
    merged: list[tuple[float, int, int, BlockStep]] = []
    free: dict[str, float] = {}
    finishes: dict[tuple[int, int], float] = {}
    while any(strands):
        waiting = []
        for strand, ((which, at), *_) in ((number, rest) for number, rest in enumerate(strands) if rest):
            step = phases[which].steps[at]
            if all((which, before) in finishes for before in step.after):
                ends = (finishes[which, before] for before in step.after)
                waiting.append((max([free.get(step.stream, 0.0), *ends]), strand != turn, strand))
        start, _, strand = min(waiting)
        which, at = strands[strand].pop(0)
        step = phases[which].steps[at]
        merged.append((start, which, at, step))
        finishes[which, at] = free[step.stream] = start + duration(step)
        if taken.by_turns and not _fills(step):
            turn = strand
    ordered = sorted(merged, key=lambda entry: entry[0])
    position = {(which, index): at for at, (_, which, index, _) in enumerate(ordered)}
    steps = [
        replace(
            step,
            after=tuple(position[which, before] for before in step.after),
            layer=AHEAD if which == 0 else step.layer,
        )
        for _, which, _, step in ordered
    ]
    return replace(forward.launched_with(backward, tuple(steps)), shared=True)


def strands_of(forward: Phase, backward: Phase) -> Strands:
    """What two passes that run together keep of their order."""
    phases = (forward, backward)
    by_turns = exchanges(forward) or exchanges(backward)
    if by_turns:
        phases = (in_turn(forward), in_turn(backward))
    strands = [[(which, at) for at in range(len(phase.steps))] for which, phase in enumerate(phases)]
    if by_turns:
        ahead, back = strands
        filling = [(1, at) for at, step in enumerate(backward.steps) if _fills(step)]
        strands = [[each for each in back if each not in filling], ahead, filling]
    return Strands(phases, tuple(map(tuple, strands)), by_turns)


def exchanges(phase: Phase) -> bool:
    """Whether tokens travel to experts in a pass."""
    return any(step.stream == EXPERT for step in phase.steps)


def in_turn(phase: Phase) -> Phase:
    """A pass in which exchanges wait for the data they send, kernels for arrivals, and nothing for weight gradients.

    In a pass alone, ``ep_overlap`` lets exchanges run beside any compute; here the other pass is that compute.
    """
    steps: list[BlockStep] = []
    running: tuple[int, ...] = ()
    for at, step in enumerate(phase.steps):
        waits = (steps[before].after if _fills(steps[before]) else (before,) for before in step.after)
        after = {before for some in waits for before in some}
        if step.stream == EXPERT:
            running = (*running, at)
        elif running and not _fills(step):
            for each in running:
                sent = {*steps[each].after, *(before for before in after if before < each)}
                steps[each] = steps[each].behind(tuple(sorted(sent)))
            after, running = {*after, *running}, ()
        steps.append(step.behind(tuple(sorted(after))))
    return replace(phase, steps=tuple(steps))


def _fills(step: BlockStep) -> bool:
    """Whether a step fills in where both passes wait: weight gradients, for which no later step waits."""
    return step.kind == "weight_gradient"


def merge_phases(forward: Phase, backward: Phase, price: Priced) -> tuple[Phase, float]:
    """(Both phases as one, share of its kernels' time beside which collectives run, at most 1).

    Collectives are priced alone on their links. Exchanges are left out of the share: they slow kernels by the
    multiprocessors that they hold.
    """

    def duration(step: BlockStep) -> float:
        return price(step.collective) / NS_PER_S if step.collective else float(step.duration_s)

    steps = (*forward.steps, *backward.steps)
    kernels = in_order(duration(step) for step in steps if step.stream == COMPUTE)
    hidden = in_order(duration(step) for step in steps if step.stream != COMPUTE and not step.sms)
    return merge(forward, backward, duration), min(1.0, hidden / kernels)


def pair_template(forward: Pass, backward: Pass, together: Sequence[Segment]) -> Template:
    """One op for both passes; ``together`` are the segments of blocks that are paired."""
    rest = forward if len(forward.units) > len(together) else backward
    alone = zip(rest.units[len(together) :], rest.segments[len(together) :], strict=True)
    segments = [(unit.layer, each) for unit, each in zip(backward.units, together, strict=False)]
    segments += [(unit.layer, each) for unit, each in alone]
    node = TemplateNode(
        kind=PAIR,
        name="forward and backward",
        streams=BLOCK_STREAMS,
        duration_ns=sum(segment.duration_ns for _, segment in segments),
        segments=tuple(segments),
        arrival=True,
        memory=(*forward_memory(forward.units), *backward_memory(backward.kind, backward.units)),
    )
    return Template((node,), 0)


HANDOVER = Template((TemplateNode(kind="join", name="backward", streams=(COMPUTE,)),), 0)
"""Template in the place of a pair's backward: an op of no duration that hands the gradient on."""
