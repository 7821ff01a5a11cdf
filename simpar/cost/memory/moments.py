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
from numpy.typing import NDArray

from simpar.models.training import Training
from simpar.plan.check import schedule_of
from simpar.plan.plan import CUSTOM, Plan
from simpar.plan.schedules import EVEN_COSTS, make_schedule
from simpar.plan.schedules.actions import Schedule
from simpar.plan.schedules.patterns import INTERVAL, pattern_times

Ints = NDArray[np.int64]
V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipev")
"""Schedules whose ranks hold a stage on the way down the pipeline and one on the way up."""
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
    return _MOMENTS[schedule](rank, num_ranks, np.asarray(microbatches), vpp)


def stages_of(schedule: str, rank: int, num_ranks: int, vpp: int) -> tuple[int, ...]:
    """Virtual stages of a rank by chunk: round the ranks, or down and up a V."""
    if schedule in V_SHAPED:
        return rank, 2 * num_ranks - 1 - rank
    return tuple(chunk * num_ranks + rank for chunk in range(vpp))


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


def _single(count: Callable[[int, int, Ints], Ints], *, splits: bool = False) -> Callable[..., Moment]:
    def found(rank: int, num_ranks: int, microbatches: Ints, _vpp: int) -> Moment:
        flying = np.minimum(count(rank, num_ranks, microbatches), microbatches)[:, None]
        return Moment(flying, np.zeros(len(microbatches), dtype=np.int64), 0, splits)

    return found


def _slices(_rank: int, _num_ranks: int, microbatches: Ints, _vpp: int) -> Moment:
    """All that whole sequences save; the workspaces of their slices are smaller."""
    return Moment(microbatches[:, None], np.full(len(microbatches), -1), -1)


def _interleaved(rank: int, num_ranks: int, microbatches: Ints, vpp: int) -> Moment:
    """Forwards go through the chunks in groups of as many microbatches as there are ranks."""
    warmup = 2 * (num_ranks - rank - 1) + (vpp - 1) * num_ranks if vpp > 1 else num_ranks - rank - 1
    total = np.minimum(warmup + 1, microbatches * vpp)
    groups, rest = np.divmod(total, num_ranks * vpp)
    chunks = np.arange(vpp) * num_ranks
    flying = groups[:, None] * num_ranks + np.clip(rest[:, None] - chunks, 0, num_ranks)
    return Moment(flying, (total - 1) // num_ranks % vpp, vpp - 1)


def _breadth_first(_rank: int, _num_ranks: int, microbatches: Ints, vpp: int) -> Moment:
    flying = np.repeat(microbatches[:, None], vpp, axis=1)
    return Moment(flying, np.full(len(microbatches), vpp - 1), vpp - 1)


def _zb_v(rank: int, num_ranks: int, microbatches: Ints, _vpp: int) -> Moment:
    """The first gradient of the way up comes after 2p - r - 1 forwards down and r + 1 up."""
    flying = np.stack(
        [np.minimum(2 * num_ranks - rank - 1, microbatches), np.minimum(rank + 1, microbatches)], axis=1
    )
    return Moment(flying, np.where(microbatches > rank, 1, -1), 1, splits=True)


def _dualpipe_v(rank: int, num_ranks: int, microbatches: Ints, _vpp: int) -> Moment:
    """The first pair: the forward down beside the backward up, with 2p chunks in flight before."""
    flying = np.array([[2 * num_ranks - rank, rank + 1]])
    return Moment(
        np.repeat(flying, len(microbatches), axis=0), np.zeros(len(microbatches), dtype=np.int64), 1
    )


def _pattern(name: str) -> Callable[..., Moment]:
    def found(rank: int, num_ranks: int, microbatches: Ints, _vpp: int) -> Moment:
        """Forwards down that the pattern has before the first one up, which no gradient precedes."""
        down, up = pattern_times(name, rank, num_ranks)
        count = np.minimum(-(-(up - down) // INTERVAL), microbatches)
        return Moment(np.stack([count, np.ones_like(count)], axis=1), np.ones_like(count), 1, splits=True)

    return found


_MOMENTS: dict[str, Callable[..., Moment]] = {
    "naive": _single(lambda _r, _p, m: np.ones_like(m)),
    "gpipe": _single(lambda _r, _p, m: m),
    "terapipe": _slices,
    "1f1b": _single(lambda r, p, m: np.full_like(m, p - r)),
    "zb-h1": _single(lambda r, p, m: np.full_like(m, p - r), splits=True),
    "zb-h2": _single(lambda r, p, m: np.full_like(m, p - r), splits=True),
    "interleaved": _interleaved,
    "breadth-first": _breadth_first,
    "zb-v": _zb_v,
    "dualpipev": _dualpipe_v,
    "v-half": _pattern("v-half"),
    "v-min": _pattern("v-min"),
}
