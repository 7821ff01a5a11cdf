"""The steps inside merged ops, so that a trace can open every block.

Lowering merges the steps of a block into one op whose inner times are constant offsets (see
:mod:`simpar.program.blocks.segments`); adding the offsets back is exact.
"""

from functools import cached_property

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.blocks.segments import Segment
from simpar.program.emission.emit import model_layer
from simpar.program.ir.program import Label
from simpar.program.lower import Lowered
from simpar.program.structure.templates import TemplateNode
from simpar.units import Ints


@dataclass(frozen=True)
class InnerSteps:
    """The steps inside a merged op: its segments in sequence, each with a layer counted from ``first_layer``.

    They are put together when a trace opens the op: stream, label and times (ns after the op's start) of each step,
    without those of zero length.
    """

    segments: tuple[tuple[int, Segment], ...]
    first_layer: int

    @cached_property
    def _steps(self) -> list[tuple[str, Label, int, int]]:
        result, begin = list[tuple[str, Label, int, int]](), 0
        for layer, segment in self.segments:
            times = zip(segment.steps, segment.start_ns.tolist(), segment.finish_ns.tolist(), strict=True)
            for step, start, finish in times:
                if finish > start:
                    named = layer if step.layer is None else step.layer
                    label = Label(step.kind, step.name, model_layer(named, self.first_layer))
                    result.append((step.stream, label, begin + start, begin + finish))
            begin += segment.duration_ns
        return result

    @property
    def streams(self) -> tuple[str, ...]:
        """The stream of every step."""
        return tuple(step[0] for step in self._steps)

    @property
    def labels(self) -> tuple[Label, ...]:
        """What every step is."""
        return tuple(step[1] for step in self._steps)

    @property
    def start_ns(self) -> Ints:
        """When every step starts."""
        return np.array([step[2] for step in self._steps], dtype=np.int64)

    @property
    def finish_ns(self) -> Ints:
        """When every step finishes."""
        return np.array([step[3] for step in self._steps], dtype=np.int64)


def inner_steps(lowered: Lowered) -> tuple[Ints, tuple[InnerSteps, ...]]:
    """The index of every op's inner steps, int64[num_ops] (-1: none), and the distinct sequences of inner steps."""
    slots = lowered.slots
    inner_of_op = np.full(len(lowered.program), -1, dtype=np.int64)
    insides: list[InnerSteps] = []
    known: dict[tuple[int, int], list[int]] = {}  # classes share templates
    for class_id, actions in enumerate(lowered.actions):
        mine = np.flatnonzero(slots.class_id == class_id)
        pairs, which = np.unique(np.stack([actions.template, actions.first_layer]), axis=1, return_inverse=True)
        table: list[int] = []
        bases: list[int] = []
        for number, first_layer in pairs.T.tolist():
            template = actions.templates[number]
            bases.append(len(table))
            key = id(template), first_layer
            if key not in known:
                opened = [InnerSteps(node.segments, first_layer) for node in template.nodes if _opens(node)]
                index = iter(range(len(insides), len(insides) + len(opened)))
                known[key] = [next(index) if _opens(node) else -1 for node in template.nodes]
                insides += opened
            table += known[key]
        first = np.array(bases, dtype=np.int64)[which.ravel()[slots.action[mine]]]
        inner_of_op[lowered.op_of_slot[mine]] = np.array(table, dtype=np.int64)[first + slots.node[mine]]
    return inner_of_op, tuple(insides)


def _opens(node: TemplateNode) -> bool:
    """Whether a node is opened; a node of several microbatches stays closed."""
    return bool(node.segments) and node.repeats == 1
