"""Recomputation ahead of its backward: what a stage runs again while it waits for the gradient.

A backward of a stage that recomputes is two parts: the forward of its layers once more, which needs nothing but what
the stage kept, and the backward proper, which needs the gradient of the stage behind. In turn with the others of its
rank, the first part starts as soon as the rank is idle, so it hides in the bubble where there is one; all activations
of the microbatch are then live until its backward is over [Sun et al. 2024 (AdaPipe), ASPLOS; Liu et al. 2025 (Mario),
PPoPP]. Under 1F1B with stages of equal times the step is m (f + r + b) + (p - 1)(f + b) instead of
(m + p - 1)(f + r + b): the recomputation of p - 1 microbatches is hidden, that of the last stage never is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simpar.program.blocks.segments import Segment
from simpar.program.structure.hooks import StageBlock
from simpar.program.structure.templates import MemoryChange, Template, compute_node, forward_memory


def live(units: Sequence[StageBlock]) -> list[StageBlock]:
    """Units as their backward finds them: what was recomputed is there, and is released with what was saved."""
    return [
        replace(unit, saved_bytes=unit.saved_bytes + unit.recomputed_bytes, recomputed_bytes=0.0)
        for unit in units
    ]


def with_early_recompute(
    kind: str, template: Template, units: Sequence[StageBlock], again: Sequence[Segment]
) -> Template:
    """A backward template (of :func:`live` units) behind the forward that its units run ``again``, in model order.

    An input-gradient pass releases what was recomputed; a whole backward does so with what was saved.
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
