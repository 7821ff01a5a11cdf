"""Recomputation ahead of its backward: a stage runs layers again while it waits for the gradient.

A backward of a stage that recomputes has two parts: the forward of its layers once more, which needs only what the
stage kept, and the backward proper, which needs the gradient of the stage behind. The first part starts at its turn in
the rank's order as soon as the rank is idle, so it hides in the bubble where there is one; all activations of the
microbatch are then live until its backward is over [Sun et al. 2024 (AdaPipe), ASPLOS; Liu et al. 2025 (Mario), PPoPP].
Under 1F1B with m microbatches, p stages of equal times, and f, r, b for forward, recomputation and backward, the step
is m (f + r + b) + (p - 1)(f + b) instead of (m + p - 1)(f + r + b): every stage but the last hides one recomputation.
"""

from collections.abc import Sequence
from dataclasses import replace

from simpar.program.blocks.segments import Segment
from simpar.program.structure.hooks import BlockBytes
from simpar.program.structure.pass_memory import MemoryChange, forward_memory
from simpar.program.structure.templates import Template, compute_node


def live(units: Sequence[BlockBytes]) -> list[BlockBytes]:
    """Units as seen by their backward: recomputed tensors are there already, and are released with the saved ones."""
    return [replace(unit, saved_bytes=unit.saved_bytes + unit.recomputed_bytes, recomputed_bytes=0.0) for unit in units]


def with_early_recompute(
    kind: str, template: Template, units: Sequence[BlockBytes], again: Sequence[Segment]
) -> Template:
    """A backward template (of :func:`live` units) with the recomputation ``again`` of its units, in model order, ahead.

    An input-gradient pass releases the recomputed tensors itself; a full backward does so with the saved ones.
    """
    redone = [
        (replace(unit, saved_bytes=unit.recomputed_bytes), segment)
        for unit, segment in zip(units, again, strict=True)
        if segment.duration_ns
    ]
    if not redone:
        return template
    some, segments = zip(*redone, strict=True)
    first = compute_node("recompute", some, segments, memory=forward_memory(some))
    nodes = [replace(node, after=tuple(position + 1 for position in node.after)) for node in template.nodes]
    if kind == "input_gradient":
        gone = MemoryChange(True, -sum(unit.recomputed_bytes for unit in units), "activations")
        last = template.exit
        nodes[last] = replace(nodes[last], memory=(*nodes[last].memory, gone))
    return Template((first, *nodes), template.exit + 1)
