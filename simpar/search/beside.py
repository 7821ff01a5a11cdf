"""What stands beside the winner: other pipelines, choices made without a search, the front of time and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.errors import UserError
from simpar.report.result import Result
from simpar.search.arena import STEP, Arena
from simpar.search.axes import Rows
from simpar.search.exact import exact
from simpar.search.hunt import Field
from simpar.search.space import counted, memory_rows, plan_of, refusals
from simpar.search.words import describe_need, facts, why_it_loses

Mask = NDArray[np.bool_]
FRONT_STEP, FRONT_POINTS = 0.93, 10

NAIVE: dict[str, Callable[[Rows], Mask]] = {
    "pure DDP": lambda rows: _pure(rows) & (rows["zero"] == 0),
    "pure ZeRO-3": lambda rows: _pure(rows) & (rows["zero"] == 3) & (rows["hsdp"] == 1),
    "TP = node": lambda rows: (
        (rows["tp"] == rows.problem.cluster.profile.devices_per_node)
        & (rows["pp"] == 1)
        & (rows["cp"] == 1)
        & (rows["zero"] <= 1)
    ),
}
"""Layouts that people choose without a search, each at its best micro-batch, recompute and overlap."""


def _pure(rows: Rows) -> Mask:
    return np.asarray((rows["tp"] == 1) & (rows["pp"] == 1) & (rows["cp"] == 1))


def naive_choices(field: Field, best: Result) -> list[dict[str, Any]]:
    """What the choices made without a search lose to the best, or why they cannot be."""
    return [{"name": name, **_naive(field, mask, best)} for name, mask in NAIVE.items()]


def _naive(field: Field, mask: Callable[[Rows], Mask], best: Result) -> dict[str, Any]:
    arena = field.arena
    chosen = mask(arena.rows) if arena else np.zeros(0, dtype=bool)
    if arena and chosen.any():
        row = arena.shortest(chosen, STEP)
        assert row is not None, "some row is chosen"
        result = exact(field.problem, plan_of(arena.rows, row))
        return facts(result) | {
            "loses_s": result.step_time_s - best.step_time_s,
            "why": why_it_loses(result, best),
        }
    return {"loses_s": None, "why": (_impossible(field, mask),)}


def _impossible(field: Field, mask: Callable[[Rows], Mask]) -> str:
    """What is in the way: memory, or a rule."""
    try:
        rows = memory_rows(field.problem)
    except UserError:
        return "not in the space"
    chosen = mask(rows)
    if not chosen.any():
        return "not in the space: excluded by the constraints, or the batch does not divide"
    return describe_need(float(field.need.needed_bytes[chosen].min()), field.problem.memory_limit_bytes)


def runners_up(arena: Arena, taken: list[int], count: int) -> list[int]:
    """Rows of other pipelines than those taken, shortest first: their best by the sweep, one of each pipeline."""
    pipes = arena.bounds.pipes
    found: list[int] = []
    key, shape = pipes.passes.key, pipes.shapes.index
    mask = np.ones(arena.rows.count, dtype=bool)
    for known in taken:
        mask &= (key != key[known]) | (shape != shape[known])
    while len(found) < count:
        row = arena.shortest(mask)
        if row is None:
            break
        if refusals(arena.rows, row):
            mask[row] = False
            continue
        found.append(row)
        mask &= (key != key[row]) | (shape != shape[row])
    return found


def front(arena: Arena, first: int) -> list[dict[str, Any]]:
    """The front of time and memory: from a row down in memory, step by step, to what has the lowest bound.

    Its steps are swept.
    """
    points: list[dict[str, Any]] = []
    row: int = first
    while len(points) < FRONT_POINTS:
        needed = float(arena.needed_bytes[row])
        arena.sweep(row)
        points.append(
            {
                "needed_bytes": needed,
                "step_time_s": float(arena.bound_s[row]),
                "plan": counted(arena.rows, row).model_dump(mode="json"),
            }
        )
        mask = arena.needed_bytes <= FRONT_STEP * needed
        following = arena.shortest(mask, STEP)
        if following is None:
            break
        row = following
    return points
