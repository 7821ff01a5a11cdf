"""Steps behind which the caching allocator gives its free blocks back to the device (``execution.empty_cache_steps``).

``torch.cuda.empty_cache`` frees every block that no tensor uses, which waits for the device, and the next passes ask
the driver for the same memory again. Both cost time by the byte, for every page of 2 MiB is unmapped and mapped. All
that comes and goes in a step changes hands once: states stay. Where a framework empties the cache within a microbatch
(Hugging Face's Trainer, between forward and backward), what is kept for backward stays too, but each microbatch pays
for its workspace; that is taken as once for all.
"""

from __future__ import annotations

from simpar.cost.memory.allocator import remap_s
from simpar.plan.schedules.actions import Schedule
from simpar.program.blocks.phases import COMPUTE
from simpar.program.structure.pass_memory import UnitPass
from simpar.program.structure.stages import PASSES, ActionBuilder
from simpar.program.structure.templates import GATHER, REDUCE, TemplateNode
from simpar.units import to_ns


def moving_bytes(builder: ActionBuilder, schedule: Schedule, pipeline_rank: int) -> float:
    """The most bytes of activations and workspaces at a time along a pipeline rank's passes."""
    kept, most = 0.0, 0.0
    letters, stages, _ = schedule.letters(pipeline_rank)
    known: dict[tuple[str, int], tuple[float, float]] = {}
    for key in zip(letters, stages.tolist(), strict=True):
        if key not in known:
            letter, stage = key
            units = tuple(builder.unit(piece) for piece in builder.pieces[stage])
            levels = UnitPass(PASSES[letter], units if letter == "F" else units[::-1]).levels.sum(axis=1)
            known[key] = float(levels.max()), float(levels[-1])
        highest, left = known[key]
        most, kept = max(most, kept + highest), kept + left
    return most


def emptied(builder: ActionBuilder, schedule: Schedule, pipeline_rank: int) -> tuple[TemplateNode, ...]:
    """The op at the end of a rank's step, which all its streams wait for: its share of one emptying, or nothing."""
    habits = builder.job.stack.memory.allocator
    if not habits.empty_cache_steps:
        return ()
    seconds = remap_s(moving_bytes(builder, schedule, pipeline_rank), habits)
    return (TemplateNode("host", "empty cache", (COMPUTE, GATHER, REDUCE), duration_ns=int(to_ns(seconds))),)
