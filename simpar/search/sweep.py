"""Searches side by side: one for every model and cluster of a grid, on the processes of a joblib backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from simpar.errors import Infeasible, UserError
from simpar.files import choose
from simpar.search.api import find_space
from simpar.search.problem import Problem
from simpar.search.watch import Watch

LOKY = "loky"
BACKENDS = (LOKY, "dask", "ray")
Done = Callable[[int], None]


@dataclass(frozen=True)
class Cell:
    """One problem of a grid, and where it stands: a value for every axis."""

    at: Mapping[str, Any]
    problem: Problem


def sweep(
    cells: Sequence[Cell],
    *,
    space: str | None = None,
    jobs: int = 1,
    backend: str = LOKY,
    done: Done | None = None,
) -> list[dict[str, Any]]:
    """Search every cell on ``jobs`` processes (-1: all cores) and tell ``done`` how many are; in order.

    Found are the best plan of each cell and its figures, or the reason why there is none. Ctrl-C keeps what is
    done. ``backend`` "dask" uses the scheduler that DASK_SCHEDULER_ADDRESS names, else a cluster on this machine;
    "ray" the cluster that ray finds. Raises UserError for another backend, and what a cell's input raises.
    """
    from joblib import Parallel, delayed

    found: list[dict[str, Any]] = []
    if jobs == 1:
        answers: Iterator[dict[str, Any]] = (search_cell(cell, space) for cell in cells)
        return _collected(answers, found, done)
    with backend_of(backend):
        tasks = (delayed(search_cell)(cell, space) for cell in cells)
        lazily = "generator" if backend == LOKY else "list"
        return _collected(iter(Parallel(n_jobs=jobs, return_as=lazily, batch_size=1)(tasks)), found, done)


def _collected(
    answers: Iterator[dict[str, Any]], found: list[dict[str, Any]], done: Done | None
) -> list[dict[str, Any]]:
    try:
        for answer in answers:
            found.append(answer)
            if done:
                done(len(found))
    except KeyboardInterrupt:
        return found
    return found


@contextmanager
def backend_of(name: str) -> Iterator[None]:
    """The joblib backend of a name. Raises UserError for an unknown one, or one that is not installed."""
    from joblib import parallel_config

    choose(name, BACKENDS, "backend")
    if name == LOKY:
        with parallel_config(backend=LOKY):
            yield
        return
    try:
        if name == "dask":
            from distributed import Client

            with Client(set_as_default=True), parallel_config(backend="dask"):
                yield
            return
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise UserError(f"backend {name}: not installed ({error}); pip install {name}") from None
    register_ray()
    with parallel_config(backend="ray"):
        yield


def search_cell(cell: Cell, space: str | None) -> dict[str, Any]:
    """The best plan of one cell as plain data, or why there is none."""
    problem = cell.problem
    facts = {
        **cell.at,
        "parameters": problem.graph.num_parameters(),
        "devices": problem.cluster.world_size,
        "memory_bytes": problem.cluster.device.memory_bytes,
    }
    try:
        found = find_space(space, problem.cluster)(problem, Watch(top=1, brief=True))
    except Infeasible as reason:
        return {**facts, "best": None, "reason": str(reason)}
    answer = found.to_dict()
    kept = ("space_size", "feasible", "simulated", "certified_optimal", "search_seconds")
    return {**facts, **{name: answer[name] for name in kept}, "best": answer["candidates"][0], "reason": ""}
