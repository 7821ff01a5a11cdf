"""Host time of tensor-parallel modules as DTensors that nothing compiles: by runs, and what torch takes on this CPU.

Usage: python benchmarks/fit_dtensors.py

Low-rank adapters of NeMo Automodel's documentation under tensor parallelism, whose steps are those of their host where
microbatches are small: the value of ``launch.host_time_per_dtensor_s`` that meets them best, to 0.05 ms. Beside it, the
processor time of torch for modules so small that nothing else takes any: a module as a DTensor over a plain one,
forward and backward, in a group whose collectives take nothing, and a loop of Python by which processors are compared.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from normalise.tables import read_published
from tables import DATA

from simpar.learning.parameters import tuning_of
from simpar.units import MS, US
from simpar.validation.predict import predict
from simpar.validation.rows import Case, case, read_measurements

STACK, KEY = "automodel", "launch.host_time_per_dtensor_s"
RANKS, WIDTH, ROUNDS, TRIES = 4, 64, 100, 7
COLUMN, ROW = 5, 2  # products of a layer of Llama by the way they are split
LOOP = 20_000_000


def main() -> None:
    """Print both."""
    argparse.ArgumentParser(description=str(__doc__).splitlines()[0]).parse_args()
    cases = told_runs()
    errors = {value: np.array(errors_at(cases, value * MS)) for value in np.arange(0.0, 1.2, 0.05)}
    best = min(errors, key=lambda value: float(np.square(errors[value]).sum()))
    for value in (0.0, best):
        typical = float(np.sqrt(np.square(errors[value]).mean()))
        print(f"{len(cases)} runs of {STACK} at {value:.2f} ms: root mean square of errors {typical:.3f}")
    plain, split = (measured_s(is_split=is_split) for is_split in (False, True))
    forward, backward = ((after - before) / (COLUMN + ROW) for before, after in zip(plain, split, strict=True))
    print(
        f"torch on this CPU: a DTensor adds {forward / US:.0f} us forward, {backward / forward:.1f} times that backward"
    )
    print(f"where a loop of {LOOP:,} additions takes {loop_s():.2f} s")


def told_runs() -> list[tuple[Case, float]]:
    """Runs of the stack under tensor parallelism, with their seconds a step."""
    rows = [row for row in read_published(DATA / "measured_runs_dev.csv") if "Automodel" in row["source"]]
    known = [(case(row), read_measurements(row).step_time_s) for row in rows]
    return [(entry, seconds) for entry, seconds in known if seconds and int(str(entry.plan["tp"])) > 1]


def errors_at(cases: list[tuple[Case, float]], host_s: float) -> list[float]:
    """log(measured / predicted) of runs under a value of the parameter."""
    tuning = tuning_of({("stack", STACK, KEY): host_s})
    return [float(np.log(seconds / predict(entry, tuning).step_time_s)) for entry, seconds in cases]


def measured_s(*, is_split: bool) -> tuple[float, float]:
    """Processor seconds of a layer's products, forward and backward; ``is_split``: over tensor-parallel ranks."""
    import torch
    import torch.distributed
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    columns = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(COLUMN)]
    rows = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(ROW)]
    if is_split:
        ways: list[tuple[list[nn.Linear], ParallelStyle]] = [(columns, ColwiseParallel()), (rows, RowwiseParallel())]
        mesh = init_device_mesh("cpu", (RANKS,))
        for modules, way in ways:
            for module in modules:
                parallelize_module(module, mesh, way)

    def layer(x: torch.Tensor) -> torch.Tensor:
        query, key, value, gate, up = (column(x) for column in columns)
        mixed: torch.Tensor = rows[0](query + key + value) + rows[1](gate * up)
        return mixed

    x, best = torch.randn(4, WIDTH), [np.inf, np.inf]
    for _ in range(TRIES):
        begin = time.process_time()
        outputs = [layer(x) for _ in range(ROUNDS)]
        middle = time.process_time()
        for output in outputs:
            output.sum().backward()
        end = time.process_time()
        best = [min(best[0], (middle - begin) / ROUNDS), min(best[1], (end - middle) / ROUNDS)]
    return best[0], best[1]


def loop_s() -> float:
    """Processor seconds of a plain loop."""
    begin, total = time.process_time(), 0
    for number in range(LOOP):
        total += number
    return time.process_time() - begin


if __name__ == "__main__":
    main()
