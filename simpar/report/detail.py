"""The steps inside merged ops, so that a trace can open every block.

Lowering merges the steps of a block into one op whose inner times are constant offsets (see
:mod:`simpar.program.blocks.segments`); adding the offsets back is exact.
"""

import numpy as np

from simpar.program.emission.emit import model_layer
from simpar.program.ir.program import Label
from simpar.program.lower import Lowered
from simpar.program.structure.templates import TemplateNode
from simpar.report.timeline import InnerSteps
from simpar.units import Ints


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
                opened = [_open(node, first_layer) for node in template.nodes if _opens(node)]
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


def _open(node: TemplateNode, first_layer: int) -> InnerSteps:
    """The segments of a node in sequence, without steps of zero length."""
    streams: list[str] = []
    labels: list[Label] = []
    starts: list[int] = []
    finishes: list[int] = []
    begin = 0
    for layer, segment in node.segments:
        times = zip(segment.steps, segment.start_ns.tolist(), segment.finish_ns.tolist(), strict=True)
        for step, start, finish in times:
            if finish > start:
                streams.append(step.stream)
                named = layer if step.layer is None else step.layer
                labels.append(Label(step.kind, step.name, model_layer(named, first_layer)))
                starts.append(begin + start)
                finishes.append(begin + finish)
        begin += segment.duration_ns
    return InnerSteps(
        tuple(streams), tuple(labels), np.array(starts, dtype=np.int64), np.array(finishes, dtype=np.int64)
    )
