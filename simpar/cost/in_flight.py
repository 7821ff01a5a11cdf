"""Which virtual stages a pipeline rank has, and how many forwards wait for their backward there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simpar.models.training import Training
from simpar.plan.check import schedule_of
from simpar.plan.plan import CUSTOM, Plan
from simpar.plan.schedules import EVEN_COSTS, make_schedule
from simpar.plan.schedules.actions import Schedule

Array = Any
SATURATED = 4
"""Microbatches a pipeline rank behind which peaks do not grow."""


def in_flight(schedule: str, rank: Array, num_ranks: Array, num_microbatches: Array, vpp: Array = 1) -> Array:
    """Most (chunk, microbatch) forwards in flight on a rank; arguments are ints or arrays that broadcast.

    1F1B: min(p - r, m). GPipe: m. Interleaved: min(2(p - r - 1) + (v - 1)p + 1, mv). Breadth-first: mv. Zero-bubble
    schedules: the cap that they are built for, which V-Min and the V shapes of few microbatches stay a little below
    on some ranks.
    """
    arrays = np.broadcast_arrays(rank, num_ranks, num_microbatches, vpp)
    r, p, m, v = (np.asarray(a, dtype=np.int64) for a in arrays)
    if schedule in _CLOSED:
        return _CLOSED[schedule](r, p, m, v)
    if schedule in _CAPS:
        return np.minimum(_CAPS[schedule](p), m * v)
    shapes = np.stack([p.ravel(), np.minimum(m, SATURATED * p).ravel(), v.ravel()], axis=1)
    unique, which = np.unique(shapes, axis=0, return_inverse=True)
    tables = [make_schedule(schedule, *(int(size) for size in shape)) for shape in unique]
    peaks = [tables[i].peak_in_flight(int(r_)) for i, r_ in zip(which.ravel(), r.ravel(), strict=True)]
    return np.array(peaks, dtype=np.int64).reshape(p.shape)


def short_schedule(plan: Plan, training: Training) -> Schedule:
    """The plan's table with no more microbatches than change its peak; an action table as it is given."""
    if plan.schedule == CUSTOM:
        return schedule_of(plan, training)
    microbatches = min(plan.num_microbatches(training.global_batch), SATURATED * plan.mesh.pp)
    costs = plan.pipeline.pass_costs or EVEN_COSTS
    return make_schedule(plan.schedule, plan.mesh.pp, microbatches, plan.pipeline.vpp, costs=costs)


def placement(plan: Plan, training: Training) -> tuple[int, ...]:
    """Pipeline rank of every virtual stage: round the ranks, or as the schedule's table has it."""
    if plan.schedule in _CLOSED:
        return tuple(virtual % plan.mesh.pp for virtual in range(plan.mesh.pp * plan.pipeline.vpp))
    return short_schedule(plan, training).rank_of_stage


def _interleaved(r: Array, p: Array, m: Array, v: Array) -> Array:
    several = np.minimum(2 * (p - r - 1) + (v - 1) * p + 1, m * v)
    return np.where(v > 1, several, np.minimum(p - r, m))


_CLOSED: dict[str, Callable[[Array, Array, Array, Array], Array]] = {
    "naive": lambda _r, _p, m, _v: np.minimum(m, 1),
    "gpipe": lambda _r, _p, m, _v: m,
    "terapipe": lambda _r, _p, m, _v: m,
    "1f1b": lambda r, p, m, _v: np.minimum(p - r, m),
    "interleaved": _interleaved,
    "breadth-first": lambda _r, _p, m, v: m * v,
}
_CAPS: dict[str, Callable[[Array], Array]] = {
    "zb-h1": lambda p: p,
    "zb-h2": lambda p: 2 * p - 1,
    "zb-v": lambda p: 2 * p,
    "v-half": lambda p: 2 * ((p + 2) // 2),
    "v-min": lambda p: 2 * ((p + 4) // 3),
    "dualpipev": lambda p: 2 * p + 1,
}
"""Most chunks in flight of schedules that are built under a memory cap; none has more."""
