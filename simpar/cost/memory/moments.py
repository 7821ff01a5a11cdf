"""Moments of a pipeline rank at which much is in flight whatever passes last: what a bound of its peak looks at.

A schedule fixes how many forwards of each of its chunks a rank has run when its first backward begins, or at least how
many. Then all they saved is there beside the workspace of a forward or a backward. For orders that are fixed (GPipe,
1F1B, interleaved, breadth-first, ZB-V, DualPipeV) that is as much as there ever is, or one chunk less. Greedy schedules
depend on the durations of passes: counted is what any durations leave, forwards before the first gradient can be back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simpar.models.training import Training
from simpar.plan.check import schedule_of
from simpar.plan.plan import CUSTOM, Plan
from simpar.plan.schedules import EVEN_COSTS, make_schedule
from simpar.plan.schedules.actions import CHANGE_IN_FLIGHT, B, F, I, Schedule
from simpar.plan.schedules.patterns import INTERVAL, pattern_times
from simpar.units import Ints

V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipev")
"""Schedules whose ranks hold a stage on the way down the pipeline and one on the way up."""
SPLITTING = ("zb-h1", "zb-h2", "zb-v", "v-half", "v-min")
"""Schedules whose weight gradients are passes of their own."""
NONE = -1
SATURATED = 4
"""Microbatches a pipeline rank behind which peaks of a table do not grow."""


@dataclass(frozen=True)
class Moment:
    """Forwards in flight by chunk of a rank, int64[layouts, chunks].

    ``forward`` is the chunk of the last of them, ``backward`` that of the backward, -1 where it does not count;
    ``splits``: whether the backward's weight gradients are a pass of their own.
    """

    flying: Ints
    forward: Ints
    backward: int
    splits: bool = False


def moment(schedule: str, rank: int, num_ranks: int, microbatches: Ints, vpp: int) -> Moment:
    """The moment of a rank; ``microbatches`` int64[layouts]."""
    number = np.asarray(microbatches)
    if schedule == "interleaved":
        return _interleaved(rank, num_ranks, number, vpp)
    most, last = _MOST[schedule](rank, num_ranks, vpp)
    late = (number < most[-1]) & (schedule in V_SHAPED and last == 1)  # it may come behind the first gradient
    forward = np.where(late, NONE, last)
    backward = NONE if last == NONE else len(most) - 1
    return Moment(np.minimum(np.array(most), number[:, None]), forward, backward, schedule in SPLITTING)


def fullest_moment(table: Schedule, rank: int) -> Moment:
    """The moment of a rank at which most is in flight in the very table that it runs, of one layout.

    What a forward saved is there until a B or a W of its microbatch.
    """
    columns, stages = table.ranks[rank], held_stages(table, rank)
    chunk = np.searchsorted(stages, columns.stage)
    change = np.array(CHANGE_IN_FLIGHT)[columns.code]
    number = np.cumsum(change)
    back = np.isin(np.append(columns.code[1:], F), (B, I))  # behind a forward
    at = int(np.argmax(2 * number + (back & (columns.code == F))))
    assert columns.code[at] == F, "only a forward adds to what is in flight"
    flying = np.bincount(chunk[: at + 1], change[: at + 1], len(stages)).astype(np.int64)
    backward = int(chunk[at + 1]) if back[at] else NONE
    return Moment(flying[None, :], chunk[[at]], backward, table.name in SPLITTING)


def stages_of(schedule: str, rank: int, num_ranks: int, vpp: int) -> tuple[int, ...]:
    """Virtual stages of a rank by chunk: round the ranks, or down and up a V."""
    if schedule in V_SHAPED:
        return rank, 2 * num_ranks - 1 - rank
    return tuple(chunk * num_ranks + rank for chunk in range(vpp))


def held_stages(table: Schedule, rank: int) -> Ints:
    """Virtual stages of a rank by chunk in a table."""
    return np.flatnonzero(np.array(table.rank_of_stage) == rank)


def most_in_flight(plan: Plan, training: Training, rank: int) -> int:
    """Most (chunk, microbatch) forwards that wait for their backward on a pipeline rank."""
    if plan.schedule == CUSTOM or plan.pipeline.pass_costs:
        return short_schedule(plan, training).peak_in_flight(rank)
    microbatches = np.array([plan.num_microbatches(training.global_batch)])
    return int(moment(plan.schedule, rank, plan.mesh.pp, microbatches, plan.pipeline.vpp).flying.sum())


def short_schedule(plan: Plan, training: Training) -> Schedule:
    """The plan's table with no more microbatches than change its peak; an action table as it is given."""
    if plan.schedule == CUSTOM:
        return schedule_of(plan, training)
    microbatches = min(plan.num_microbatches(training.global_batch), SATURATED * plan.mesh.pp)
    costs = plan.pipeline.pass_costs or EVEN_COSTS
    return make_schedule(plan.schedule, plan.mesh.pp, microbatches, plan.pipeline.vpp, costs=costs)


def _interleaved(rank: int, num_ranks: int, microbatches: Ints, vpp: int) -> Moment:
    """Forwards go through the chunks in groups of as many microbatches as there are ranks."""
    warmup = 2 * (num_ranks - rank - 1) + (vpp - 1) * num_ranks if vpp > 1 else num_ranks - rank - 1
    total = np.minimum(warmup + 1, microbatches * vpp)
    groups, rest = np.divmod(total, num_ranks * vpp)
    chunks = np.arange(vpp) * num_ranks
    flying = groups[:, None] * num_ranks + np.clip(rest[:, None] - chunks, 0, num_ranks)
    return Moment(flying, (total - 1) // num_ranks % vpp, vpp - 1)


def _of_pattern(name: str, rank: int, num_ranks: int) -> tuple[list[int], int]:
    """Forwards down that the pattern has before the first one up, which no gradient precedes."""
    down, up = pattern_times(name, rank, num_ranks)
    return [-(-(up - down) // INTERVAL), 1], 1


_ALL = 2**62
_MOST: dict[str, Callable[[int, int, int], tuple[list[int], int]]] = {
    "naive": lambda _r, _p, _v: ([1], 0),
    "gpipe": lambda _r, _p, _v: ([_ALL], 0),
    # all that whole sequences save; the workspaces of their slices are smaller
    "terapipe": lambda _r, _p, _v: ([_ALL], NONE),
    "breadth-first": lambda _r, _p, v: ([_ALL] * v, v - 1),
    "1f1b": lambda r, p, _v: ([p - r], 0),
    "zb-h1": lambda r, p, _v: ([p - r], 0),
    "zb-h2": lambda r, p, _v: ([p - r], 0),
    # the first gradient of the way up comes after 2p - r - 1 forwards down and r + 1 up
    "zb-v": lambda r, p, _v: ([2 * p - r - 1, r + 1], 1),
    # the first pair: the forward down beside the backward up, with 2p chunks in flight before
    "dualpipev": lambda r, p, _v: ([2 * p - r, r + 1], 0),
    "v-half": lambda r, p, _v: _of_pattern("v-half", r, p),
    "v-min": lambda r, p, _v: _of_pattern("v-min", r, p),
}
"""Of (rank, ranks, chunks): most forwards in flight of every chunk, and the chunk of the last of them."""
