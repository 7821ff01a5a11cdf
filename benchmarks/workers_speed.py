"""How much faster a grid of searches is with each worker: forks of this process, and workers of a dask cluster.

Usage: python benchmarks/workers_speed.py [--most N] [--cells 12]

Every line is the same grid with the same answers (checked), under 1 to N processes (default: the cores of this
machine). Speed-ups are ratios within this run: by the clock, and, because processes take turns on a machine that is
busy with other things, by the processor seconds of the busiest process: what the clock would show with a core for each.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import simpar
from simpar.planner import make_problem
from simpar.planner.sweep import Cell, search_cell
from simpar.workers import DASK, LOCAL, Workers, num_cores

LENGTHS = (1024, 2048, 4096)
BATCHES = (64, 96, 128, 192)
WORTHLESS = ("search_seconds",)
"""Figures of an answer that differ from run to run."""


def grid(cells: int) -> list[Cell]:
    """Searches of GPT-3 1.3B on 16 A100, by length and batch."""
    model, cluster = simpar.Model("gpt3-1.3b", seq_len=max(LENGTHS)), simpar.Cluster("dgx-a100-80gb", nodes=2)
    choices = [(length, batch) for length in LENGTHS for batch in BATCHES][:cells]
    return [
        Cell(
            {"seq_len": length, "global_batch": batch},
            make_problem(model, cluster, simpar.Training(seq_len=length, global_batch=batch)),
        )
        for length, batch in choices
    ]


@contextmanager
def dask_cluster(workers: int) -> Iterator[Any]:
    """A cluster of processes on this machine that searches find by its address."""
    import dask
    from distributed import LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        os.environ["DASK_SCHEDULER_ADDRESS"] = cluster.scheduler_address
        dask.config.refresh()
        yield cluster
        del os.environ["DASK_SCHEDULER_ADDRESS"]
        dask.config.refresh()


def timed(cell: Cell) -> tuple[int, float, dict[str, Any]]:
    """The process that searched a cell, its processor seconds, and the answer without what differs from run to run."""
    begun = time.process_time()
    row = search_cell(cell, None, None)
    return os.getpid(), time.process_time() - begun, {key: row[key] for key in row if key not in WORTHLESS}


@dataclass(frozen=True)
class Grid:
    """A grid that was searched: seconds of the clock, processor seconds of the busiest process, and the answers."""

    clock_s: float
    busiest_s: float
    rows: list[dict[str, Any]]


def measure(cells: list[Cell], workers: Workers) -> Grid:
    """Search a grid."""
    begun, spent_s, rows = time.perf_counter(), Counter[int](), []
    for process, took_s, row in workers.stream(timed, cells):
        spent_s[process] += took_s
        rows.append(row)
    return Grid(time.perf_counter() - begun, max(spent_s.values()), rows)


def main() -> int:
    """Print the table; exit code 1 where answers differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=num_cores())
    parser.add_argument("--cells", type=int, default=len(LENGTHS) * len(BATCHES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cells, same = grid(options.cells), True
    measure(cells[:1], Workers())  # what is loaded once
    alone = measure(cells, Workers())
    print("| processes | clock s | speed-up | busiest process s | speed-up with a core each | same answers |")
    print(
        f"|---|---|---|---|---|---|\n| this one | {alone.clock_s:.1f} | 1 | {alone.busiest_s:.1f} | 1 | |", flush=True
    )
    for count in range(1, options.most + 1):
        for backend in (DASK, LOCAL) if count > 1 else (DASK,):
            with dask_cluster(count) if backend == DASK else nullcontext():
                measure(cells[:count], Workers(count, backend))  # what a worker loads once
                found = measure(cells, Workers(count, backend))
            same &= found.rows == alone.rows
            name = "forks" if backend == LOCAL else "dask workers"
            ratios = alone.clock_s / found.clock_s, alone.busiest_s / found.busiest_s
            print(
                f"| {count} {name} | {found.clock_s:.1f} | {ratios[0]:.2f} | {found.busiest_s:.1f} | {ratios[1]:.2f} | "
                f"{found.rows == alone.rows} |",
                flush=True,
            )
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
