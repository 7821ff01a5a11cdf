"""Grids of searches: one search per model and cluster, in parallel."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import Infeasible
from simpar.planner.api import find_space
from simpar.planner.problem import Problem
from simpar.planner.progress import SearchProgress
from simpar.workers import Workers

Done = Callable[[int], None]


@dataclass(frozen=True)
class Cell:
    """One problem of a grid, and its position: a value for every axis of the grid."""

    at: Mapping[str, Any]
    problem: Problem


def sweep(
    cells: Sequence[Cell],
    *,
    space: str | None = None,
    workers: Workers | None = None,
    time_limit_s: float | None = None,
    done: Done | None = None,
) -> list[dict[str, Any]]:
    """Search every cell, in parallel with workers, and call ``done`` with the number of finished cells.

    Returns, in order, the best plan of each cell with its figures, or the reason why there is none. Ctrl-C keeps what
    is done; cells that were not searched to the end say ``interrupted``. After ``time_limit_s`` seconds a cell returns
    its best so far, with its gap. Errors in a cell's input are raised.
    """
    rows: list[dict[str, Any]] = []
    search_one = partial(search_cell, space=space, time_limit_s=time_limit_s)
    with suppress(KeyboardInterrupt):
        for answer in (workers or Workers()).stream(search_one, cells):
            rows.append(answer)
            if done:
                done(len(rows))
            if answer.get("interrupted"):
                break
    return rows + [
        _facts(cell) | {"best": None, "reason": "interrupted", "interrupted": True} for cell in cells[len(rows) :]
    ]


def search_cell(cell: Cell, space: str | None, time_limit_s: float | None) -> dict[str, Any]:
    """The best plan of one cell as plain data, or the reason why there is none."""
    facts, progress = _facts(cell), SearchProgress(top=1, brief=True, time_limit_s=time_limit_s)
    try:
        result = find_space(space, cell.problem.cluster)(cell.problem, progress)
    except Infeasible as reason:
        return {**facts, "best": None, "reason": str(reason), **_ended(progress)}
    answer = result.to_dict()
    kept = ("space_size", "feasible", "simulated", "certified_optimal", "gap", "search_seconds")
    figures = {name: answer[name] for name in kept} | {"tie": answer.get("tie")}
    return {**facts, **figures, "best": answer["candidates"][0], "reason": "", **_ended(progress)}


def _facts(cell: Cell) -> dict[str, Any]:
    problem = cell.problem
    return {
        **cell.at,
        "parameters": problem.graph.num_parameters(),
        "devices": problem.cluster.world_size,
        "memory_bytes": problem.cluster.device.memory_bytes,
    }


def _ended(progress: SearchProgress) -> dict[str, bool]:
    return {"interrupted": True} if progress.is_user_stop else {}
