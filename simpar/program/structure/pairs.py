"""A forward and a backward that run together (DualPipe): the kernels of one hide the communication of the other.

Kernels of both take turns on the device, collectives of both take turns on their streams, each pass keeps its own
order. Blocks meet in the order in which the two passes reach them; where one stage has more blocks, the rest run
alone behind [DeepSeek-V3, arXiv 2412.19437, section 3.2.1].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simpar.program.blocks.phases import BLOCK_STREAMS, COMPUTE, Phase, Step
from simpar.program.blocks.segments import Priced, Segment
from simpar.program.structure.hooks import Unit
from simpar.program.structure.templates import Node, Template, backward_memory, forward_memory
from simpar.units import NS_PER_S

PAIR = "forward_backward"
AHEAD = -2  # as layer of a merged step: that of the forward
Durations = Callable[[Step], float]


@dataclass(frozen=True)
class Pass:
    """One pass over a stage in the order of its blocks: what they hold, and their segments alone."""

    kind: str
    units: tuple[Unit, ...]
    segments: tuple[Segment, ...]


def merge(forward: Phase, backward: Phase, duration: Durations) -> Phase:
    """Both phases as one: of the next step of either, the one that can start first comes first.

    ``duration`` decides the order only, which has to be the same on all ranks of a group. Steps of the forward
    get AHEAD as their layer.
    """
    merged: list[tuple[float, int, int, Step]] = []
    free: dict[str, float] = {}
    finishes: tuple[list[float], list[float]] = ([], [])
    phases = (forward.steps, backward.steps)
    while any(len(done) < len(steps) for done, steps in zip(finishes, phases, strict=True)):
        waiting = [
            (max([free.get(step.stream, 0.0), *(finishes[which][i] for i in step.after)]), which)
            for which, steps in enumerate(phases)
            for step in steps[len(finishes[which]) : len(finishes[which]) + 1]
        ]
        start, which = min(waiting)
        step = phases[which][len(finishes[which])]
        merged.append((start, which, len(finishes[which]), step))
        finishes[which].append(start + duration(step))
        free[step.stream] = finishes[which][-1]
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
    return Phase(tuple(steps), forward.issue_s + backward.issue_s, shared=True)


def merged(forward: Phase, backward: Phase, price: Priced) -> tuple[Phase, float]:
    """Both phases as one, and the share of its kernels' time beside which collectives run, at most 1.

    Collectives have their links to themselves. Those that hold multiprocessors of their own slow kernels by that.
    """

    def duration(step: Step) -> float:
        return price(step.collective) / NS_PER_S if step.collective else float(step.duration_s)

    steps = (*forward.steps, *backward.steps)
    kernels = sum(duration(step) for step in steps if step.stream == COMPUTE)
    hidden = sum(duration(step) for step in steps if step.stream != COMPUTE and not step.sms)
    return merge(forward, backward, duration), min(1.0, hidden / kernels)


def pair_template(forward: Pass, backward: Pass, together: Sequence[Segment]) -> Template:
    """One op for both passes; ``together`` are the segments of blocks that meet."""
    rest = forward if len(forward.units) > len(together) else backward
    alone = zip(rest.units[len(together) :], rest.segments[len(together) :], strict=True)
    segments = [(unit.layer, each) for unit, each in zip(backward.units, together, strict=False)]
    segments += [(unit.layer, each) for unit, each in alone]
    node = Node(
        kind=PAIR,
        name="forward and backward",
        streams=BLOCK_STREAMS,
        duration_ns=sum(segment.duration_ns for _, segment in segments),
        segments=tuple(segments),
        arrival=True,
        memory=(*forward_memory(forward.units), *backward_memory(backward.kind, backward.units)),
    )
    return Template((node,), 0)


HANDOVER = Template((Node(kind="join", name="backward", streams=(COMPUTE,)),), 0)
"""What stands for the backward of a pair behind it: an op of no duration that hands its gradient on."""
