"""Moments of a pipeline rank at which much is in flight however long passes take; memory bounds look at these moments.

A schedule fixes how many forwards of each of its chunks a rank has run when its first backward begins, or at least a
minimum of them. All that these forwards saved is then there, beside the workspace of a forward or a backward. Under
fixed orders (GPipe, 1F1B, interleaved, breadth-first, ZB-V, DualPipeV) that is as much as there ever is, or one chunk
less. Greedy schedules depend on the durations of passes: only those forwards are counted that run under any durations,
because no gradient can be back before them.
"""

from dataclasses import replace

import numpy as np

from simpar.architectures.training import Training
from simpar.layout.action_table import schedule_of
from simpar.layout.layout import Layout
from simpar.plan.choices.pipeline import CUSTOM
from simpar.plan.schedules import EVEN_COSTS, SCHEDULES, make_schedule, producer_of, producer_on_ranks
from simpar.plan.schedules.actions import CHANGE_IN_FLIGHT, B, F, I, Schedule
from simpar.plan.schedules.producer import NONE, Moment
from simpar.units import Ints

SATURATED = 4
"""Microbatches per pipeline rank beyond which the peaks of a table do not grow."""


def moment(schedule: str, rank: int, num_ranks: int, microbatches: Ints, vpp: int) -> Moment:
    """The moment of a rank at its first backward; ``microbatches`` int64[layouts]."""
    producer = producer_on_ranks(schedule, num_ranks)
    result = producer.first_backward(rank, num_ranks, vpp, np.asarray(microbatches))
    return replace(result, splits=producer.splits_all)


def find_fullest_moment(table: Schedule, rank: int) -> Moment:
    """The moment at which most is in flight on a rank, in the action table of a single layout.

    What a forward saved is held until the B or W of its microbatch.
    """
    columns, stages = table.ranks[rank], stages_of_rank(table, rank)
    chunk = np.searchsorted(stages, columns.stage)
    change = np.array(CHANGE_IN_FLIGHT)[columns.code]
    number = np.cumsum(change)
    back = np.isin(np.append(columns.code[1:], F), (B, I))  # behind a forward
    # the most in flight; of several such forwards one that a backward follows, whose workspace comes on top
    at = int(np.argmax(2 * number + (back & (columns.code == F))))
    assert columns.code[at] == F, "only a forward adds to what is in flight"
    flying = np.bincount(chunk[: at + 1], change[: at + 1], len(stages)).astype(np.int64)
    backward = int(chunk[at + 1]) if back[at] else NONE
    splits = table.name in SCHEDULES and producer_of(table.name).splits_all
    return Moment(flying[None, :], chunk[[at]], backward, splits)


def stages_of(schedule: str, rank: int, num_ranks: int, vpp: int) -> tuple[int, ...]:
    """Virtual stages of a rank by chunk: every ``num_ranks``-th one, or the two of a V."""
    if producer_of(schedule).v_shaped:
        return rank, 2 * num_ranks - 1 - rank
    return tuple(chunk * num_ranks + rank for chunk in range(vpp))


def stages_of_rank(table: Schedule, rank: int) -> Ints:
    """Virtual stages of a rank by chunk in a table."""
    return np.flatnonzero(np.array(table.rank_of_stage) == rank)


def most_in_flight(layout: Layout, training: Training, rank: int) -> int:
    """Most (chunk, microbatch) forwards that wait for their backward on a pipeline rank."""
    if layout.schedule == CUSTOM or layout.pass_costs:
        return shorten_schedule(layout, training).peak_in_flight(rank)
    microbatches = np.array([layout.num_microbatches(training.global_batch)])
    return int(moment(layout.schedule, rank, layout.mesh.pp, microbatches, int(layout.vpp)).flying.sum())


def shorten_schedule(layout: Layout, training: Training) -> Schedule:
    """The plan's table with only as many microbatches as can change its peak; a custom action table stays as it is."""
    if layout.schedule == CUSTOM:
        return schedule_of(layout, training)
    microbatches = min(layout.num_microbatches(training.global_batch), SATURATED * layout.mesh.pp)
    costs = layout.pass_costs or EVEN_COSTS
    return make_schedule(layout.schedule, layout.mesh.pp, microbatches, int(layout.vpp), costs=costs)
