"""The action table of a layout."""

from simpar.architectures.training import Training
from simpar.layout.layout import Layout
from simpar.plan.choices.pipeline import CUSTOM
from simpar.plan.encoder_in_bubbles import put_encoder_in_bubbles
from simpar.plan.schedules import EVEN_COSTS, make_schedule
from simpar.plan.schedules.actions import Schedule, from_csv
from simpar.plan.schedules.terapipe import slice_schedule


def schedule_of(layout: Layout, training: Training) -> Schedule:
    """The layout's action table: its own CSV, or that of its named schedule for its durations of F, I and W.

    An encoder in the bubbles is in it once its costs are known.

    Raises UserError for a table that cannot run or a shape the schedule does not allow.
    """
    table = _whole_table(layout, training)
    if layout.encoder_costs:
        return put_encoder_in_bubbles(table, layout.encoder_costs)
    return slice_schedule(table, len(layout.slices)) if layout.slices else table


def _whole_table(layout: Layout, training: Training) -> Schedule:
    """The action table of whole microbatches."""
    if layout.actions:
        return from_csv(layout.actions, name=CUSTOM)
    microbatches, ranks, chunks = layout.num_microbatches(training.global_batch), int(layout.pp), int(layout.vpp)
    return make_schedule(layout.schedule, ranks, microbatches, chunks, costs=layout.pass_costs or EVEN_COSTS)
