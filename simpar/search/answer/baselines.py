"""What stands beside the winner: other pipelines, choices made without a search, the front of time and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.errors import UserError
from simpar.report.result import Result
from simpar.search.answer.explanations import describe_need, facts, why_it_loses
from simpar.search.certify.branch_and_bound import Field
from simpar.search.certify.exact import Exact
from simpar.search.certify.frontier import STEP, Frontier
from simpar.search.problem import Problem
from simpar.search.space.axes import Rows, tensor_degrees
from simpar.search.space.rows import counted, fixed_values, memory_rows, refusals

Mask = NDArray[np.bool_]
FRONT_STEP, FRONT_POINTS, FRONT_TRIES = 0.93, 10, 2
MORE_RUNNERS_UP = 2
MOST_MISFITS = 8
"""Rows that may turn out not to fit, simulated, before nothing more is looked for."""

PURE = {"tp": (1,), "cp": (1,), "pp": (1,)}


def naive_layouts(problem: Problem) -> dict[str, dict[str, tuple[int, ...]]]:
    """Layouts that people choose without a search: the values of their axes, all others at their best."""
    node = {"tp": (problem.cluster.profile.devices_per_node,), "cp": (1,), "pp": (1,), "zero": (0, 1)}
    return {
        "pure DDP": {**PURE, "zero": (0,)},
        "pure ZeRO-3": {**PURE, "zero": (3,), "hsdp": (1,)},
        "TP = node": node,
    }


def _mask(rows: Rows, layout: Mapping[str, tuple[int, ...]]) -> Mask:
    found = np.ones(rows.count, dtype=bool)
    for axis, values in layout.items():
        found &= np.isin(rows[axis], values)
    return found


def naive_choices(field: Field, best: Result) -> list[dict[str, Any]]:
    """What the choices made without a search lose to the best, or why they cannot be."""
    layouts = naive_layouts(field.problem)
    return [{"name": name, **_naive(field, layout, best)} for name, layout in layouts.items()]


def _naive(field: Field, layout: Mapping[str, tuple[int, ...]], best: Result) -> dict[str, Any]:
    frontier, least = field.frontier, np.inf
    if frontier is not None:
        for row in islice(_quickest_of(frontier, _mask(frontier.rows, layout)), MOST_MISFITS):
            found = frontier.simulate(row)
            if found.fits:
                result = found.report()
                loses_s = result.step_time_s - best.step_time_s
                return facts(result) | {"loses_s": loses_s, "why": why_it_loses(result, best)}
            least = min(least, found.needed_bytes)
    if np.isfinite(least):
        return {"loses_s": None, "why": (describe_need(least, field.problem.memory_limit_bytes),)}
    return {"loses_s": None, "why": (_impossible(field, layout),)}


def _quickest_of(frontier: Frontier, chosen: Mask) -> Iterator[int]:
    """Rows with the lowest bounds of whole steps, as long as those before do not fit."""
    while chosen.any() and (row := frontier.shortest(chosen, STEP)) is not None:
        yield row
        chosen[row] = False


def _impossible(field: Field, layout: Mapping[str, tuple[int, ...]]) -> str:
    """What is in the way: memory, or the first rule that leaves no row."""
    problem = field.problem
    try:
        rows = memory_rows(problem)
    except UserError:
        return "not in the space"
    chosen = _mask(rows, layout)
    if not chosen.any():
        return f"not in the space: {_excluded(problem, rows, layout)}"
    needed = float(field.need.needed_bytes[chosen].min())
    if needed > problem.memory_limit_bytes:
        return describe_need(needed, problem.memory_limit_bytes)
    return f"not in the space: {_together(problem, layout)}"


def _excluded(problem: Problem, rows: Rows, layout: Mapping[str, tuple[int, ...]]) -> str:
    """Why no row has a layout, in words."""
    fixed = fixed_values(problem.constraints.fixed)
    for axis, values in layout.items():
        if axis in fixed and not set(values) & set(fixed[axis]):
            return f"--fix {axis}={','.join(map(str, fixed[axis]))}"
    replicas = problem.cluster.world_size // layout["tp"][0]
    batch = problem.training.global_batch
    if not set(layout["tp"]) & set(tensor_degrees(problem)):
        degree, devices = layout["tp"][0], problem.cluster.world_size
        return f"tp = {degree} does not divide {problem.graph.name} or the {devices} devices"
    if batch % replicas:
        return f"a batch of {batch} sequences does not divide over {replicas} replicas"
    for axis, values in layout.items():
        kept = np.isin(rows[axis], values)
        if not kept.any():
            return _no_such(problem, axis, values, np.unique(rows[axis]).tolist())
        rows = rows.some(kept)
    return _together(problem, layout)


def _no_such(problem: Problem, axis: str, values: tuple[int, ...], left: list[int]) -> str:
    """Why an axis has none of some values where the axes before it have theirs; ``left`` are those that it has."""
    given, others = ("|".join(map(str, each)) for each in (values, left))
    if problem.constraints.portable:
        return f"{problem.constraints.portable} cannot express {axis} = {given}"
    kind = problem.base.data_parallel.kind
    if axis == "zero" and kind:
        return f"plan.kind = {kind} has zero {others}, not {given}"
    return f"{axis} is {others} there, not {given}"


def _together(problem: Problem, layout: Mapping[str, tuple[int, ...]]) -> str:
    """What leaves no row where no single axis does."""
    if problem.constraints.portable:
        return f"{problem.constraints.portable} cannot express it"
    others = [axis for axis in problem.constraints.fixed if axis not in layout]
    return (
        f"excluded together with --fix {', '.join(others)}" if others else "excluded by the rest of the plan"
    )


def runners_up(field: Field, taken: list[int], count: int) -> list[Result]:
    """The best of other pipelines than those taken, one of each, simulated.

    In the order of the sweep, which leaves contention out; up to MORE_RUNNERS_UP beyond ``count`` are simulated, while
    one that loses no more to contention than the least of those found would come before the last of them.
    """
    frontier, found, run = field.frontier, list[tuple[float, int]](), dict[int, Exact]()
    assert frontier is not None, "a plan was simulated in its frontier"
    for row in islice(_others(frontier, taken), count + MORE_RUNNERS_UP if count else 0):
        least_loss = min((time_s / frontier.bound_s[known] for time_s, known in found), default=1.0)
        if len(found) >= count and frontier.bound_s[row] * least_loss >= found[count - 1][0]:
            break
        run[row] = frontier.simulated.get(row) or frontier.simulate(row)
        if run[row].fits:
            found = sorted([*found, (run[row].step_time_s, row)])
    return [run[row].report() for _, row in found[:count]]


def _others(frontier: Frontier, taken: list[int]) -> Iterator[int]:
    """Rows of other pipelines, shortest by the sweep first, one of each pipeline: the first that fits."""
    pipelines, misfits = frontier.bounds.pipelines, 0
    key, shape = pipelines.passes.key, pipelines.shapes.index
    mask = np.ones(frontier.rows.count, dtype=bool)
    for known in taken:
        mask &= (key != key[known]) | (shape != shape[known])
    while misfits <= MOST_MISFITS and (row := frontier.shortest(mask)) is not None:
        if refusals(frontier.rows, row):
            mask[row] = False
            continue
        if row not in frontier.simulated and not frontier.simulate(row).fits:
            misfits += 1
            continue
        yield row
        mask &= (key != key[row]) | (shape != shape[row])


def front(frontier: Frontier, first: int) -> list[dict[str, Any]]:
    """The front of time and memory, from a row down in memory: no point of it is beaten by one with less memory.

    At every step the rows with the lowest bounds are simulated, until one of them stays the lowest or FRONT_TRIES are.
    """
    best = frontier.simulated[first]
    points, below = [(first, best)], best.needed_bytes
    while len(points) < FRONT_POINTS:
        below *= FRONT_STEP
        mask = frontier.needed_bytes <= below
        if not mask.any():
            break
        if (found := _quickest(frontier, mask, below)) is not None:
            points.append(found)
            below = found[1].needed_bytes
    kept: list[tuple[int, Exact]] = []
    for row, one in reversed(points[1:]):
        beats_rest = not kept or one.step_time_s < kept[-1][1].step_time_s
        if beats_rest and one.step_time_s > best.step_time_s:  # not behind the first
            kept.append((row, one))
    return [
        {
            "needed_bytes": one.needed_bytes,
            "step_time_s": one.step_time_s,
            "plan": counted(frontier.rows, row).model_dump(mode="json"),
        }
        for row, one in [(first, best), *reversed(kept)]
    ]


def _quickest(frontier: Frontier, mask: Mask, limit_bytes: float) -> tuple[int, Exact] | None:
    """The quickest of the first FRONT_TRIES rows by their bounds that, simulated, hold no more than a limit."""
    tried: list[tuple[int, Exact]] = []
    for row in islice(_quickest_of(frontier, mask), MOST_MISFITS):
        try:
            found = frontier.simulated.get(row) or frontier.simulate(row).alone
        except (
            UserError
        ):  # a row of the space is lawful: its Program has more ops than are built, so it is no point
            continue
        if not found.fits or found.needed_bytes > limit_bytes:
            continue
        tried.append((row, found))
        if len(tried) == FRONT_TRIES:
            break
    return min(tried, key=lambda one: one[1].step_time_s, default=None)
