"""Microbatches between the first and the last of a rank without a pipeline, as a single op.

Where parameters are not gathered and gradients are not reduced for every microbatch, the passes of the microbatches in
the middle are single ops, one behind the other on the rank's streams, and no other rank waits for them. Their durations
are constants, so one op of the total duration stands for all of them exactly. The first and the last microbatch stay
apart, because data parallelism hooks into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simpar.plan.schedules.actions import B, F, Schedule, columns
from simpar.program.blocks.phases import BLOCK_STREAMS
from simpar.program.emission.shared_cores import are_shared
from simpar.program.structure.pass_memory import MemoryChange
from simpar.program.structure.templates import PassNode, Template, TemplateNode
from simpar.program.structure.undisturbed import predecessors, reached

if TYPE_CHECKING:
    from simpar.program.rank_class_builder import RankClassBuilder

MOST_APART = 128
"""Up to this number, every microbatch is timed, drawn and reported on its own where pictures are wanted."""
MIDDLE = 2
"""Position of the merged microbatches among the actions of a shortened schedule."""


def with_middle(maker: RankClassBuilder, *, apart: bool) -> RankClassBuilder:
    """The maker with all microbatches but the first and the last as one op; unchanged where that would not be exact.

    Where they are wanted ``apart``, up to MOST_APART microbatches are left as they are.
    """
    job, count = maker.job, maker.schedule.num_microbatches
    # under jitter every pass has a factor of its own
    jitters = maker.perturbation.jitter_sigma > 0 and not job.layout.replicas_are_independent
    if count <= max(MOST_APART if apart else 0, 3) or not maker.collapse or jitters or not _alternates(maker.schedule):
        return maker
    one_process = job.layout.kind == "single_process"
    if one_process or job.layout.slices or are_shared(maker.network.cluster):
        return maker
    for class_id in (int(classes[0]) for classes in maker.alike):
        quiet = maker.collapsible(class_id) or _is_alone(maker, class_id)
        if not quiet or middle(maker.passes(class_id), count - 2) is None:
            return maker
    # the first and the last microbatch with one forward between them in place of all others
    shortened = columns([F, B, F, F, B], 0, [0, 0, 1, count - 1, count - 1])
    return maker.shortened(replace(maker.schedule, ranks=(shortened,)), count - 2)


def _is_alone(maker: RankClassBuilder, class_id: int) -> bool:
    """Whether all ranks are alike and the microbatches in the middle communicate in at most one kind of groups.

    Their collectives then follow one another, and other users of the links have ended with the first microbatch.
    """
    staged = bool(maker.job.layout.stages)  # whose collectives along several axes may meet
    if staged or maker.network.quotient.num_classes > 1 or len(maker.network.block_kinds) > 1:
        return False
    passes = maker.passes(class_id)
    return _ends_joined(passes["F", True]) and _ends_joined(passes["B", False])


def _alternates(schedule: Schedule) -> bool:
    """Whether there is one stage whose forwards are each followed by their own backward, in order."""
    if schedule.num_ranks > 1 or schedule.num_stages > 1:
        return False
    actions, count = schedule.ranks[0], schedule.num_microbatches
    return (
        len(actions) == 2 * count
        and not actions.overlap.any()
        and bool((actions.code == np.tile([F, B], count)).all())
        and bool((actions.microbatch == np.repeat(np.arange(count), 2)).all())
    )


def middle(templates: Mapping[tuple[str, bool], Template], count: int) -> Template | None:
    """``count`` microbatches as one op; None where a pass is more than one op or leaves memory behind.

    ``templates`` have as keys (letter, whether the pass is one of the boundary microbatch). The op holds what a single
    microbatch holds at its peak, by category.
    """
    both = (templates["F", False], templates["B", False])
    if any(len(each.nodes) > 1 or each.nodes[0].collective for each in both):
        return None
    passes = tuple(each.nodes[0] for each in both)
    if any(node.awaits or node.frees or node.streams != BLOCK_STREAMS for node in passes):
        return None
    held = _at_peak(passes)
    if held is None:
        return None
    node = PassNode(
        kind="forward_backward",
        name=f"microbatches 1-{count}",
        streams=passes[0].streams,
        duration_ns=count * sum(each.duration_ns for each in passes),
        segments=passes[0].segments + passes[1].segments,
        memory=tuple(
            MemoryChange(at_finish, -size if at_finish else size, category)
            for at_finish in (False, True)
            for category, size in held.items()
            if size
        ),
        layer=passes[0].layer,
        passes=tuple(each for node in passes if isinstance(node, PassNode) for each in node.passes),
    )
    return Template((node,), 0)


def _at_peak(passes: Sequence[TemplateNode]) -> dict[str, int] | None:
    """Bytes by category at the highest total of some passes in turn; None where they leave memory behind."""
    held: dict[str, int] = {}
    peak: dict[str, int] = {}
    for node in passes:
        for at_finish in (False, True):
            changes = [(round(c.delta_bytes), c.category) for c in node.memory if c.at_finish == at_finish]
            for size, category in sorted(changes, key=lambda change: change[0] > 0):  # frees come first
                held[category] = held.get(category, 0) + size
                if sum(held.values()) > sum(peak.values()):
                    peak = dict(held)
    return None if any(held.values()) else peak


def _ends_joined(template: Template) -> bool:
    """Whether every node of a template has ended when its exit ends."""
    return len(reached(predecessors(template), (template.exit,))) == len(template.nodes)
