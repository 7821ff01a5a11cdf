"""Host time of tensor-parallel modules as DTensors that nothing compiles: by runs, and what torch takes on this CPU.

Usage: python benchmarks/fit_dtensors.py

Low-rank adapters of NeMo Automodel's documentation under tensor parallelism, whose steps are those of their host where
microbatches are small: the value of ``launch.host_time_per_dtensor_s`` that meets them best, to 0.05 ms. Beside it, the
processor time of torch for modules so small that nothing else takes any: a module as a DTensor over a plain one,
forward and backward, with trained and with frozen weights, in a group whose collectives take nothing, and a loop of
Python by which processors are compared. How much longer a backward takes than a forward holds for other processors.
"""

from __future__ import annotations

import argparse
import time
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from normalise.tables import read_published
from tables import DATA

from simpar.learning.parameters import tuning_of
from simpar.units import MS, US
from simpar.validation.predict import predict
from simpar.validation.rows import Case, case, read_measurements

STACK, KEY = "automodel", "launch.host_time_per_dtensor_s"
ROUNDS, TRIES = 50, 5
RANKS = 2, 4
COLUMN, ROW = 5, 2  # products of a layer of Llama by the way they are split
LOOP = 20_000_000


class Form(NamedTuple):
    """Ranks, features and tokens of a layer, whether its weights are trained, whether its stream is split by tokens."""

    ranks: int
    width: int
    tokens: int
    trains: bool
    in_sequence: bool


def forms(*, trains: bool) -> list[Form]:
    """Layers of several sizes, all so small that kernels take little of what is measured."""
    return [
        Form(ranks, width, tokens, trains, in_sequence)
        for ranks in RANKS
        for width, tokens in ((64, 8), (64, 32), (256, 8))
        for in_sequence in (False, True)
    ]


def main() -> None:
    """Print both."""
    argparse.ArgumentParser(description=str(__doc__).splitlines()[0]).parse_args()
    cases = told_runs()
    errors = {value: np.array(errors_at(cases, value * MS)) for value in np.arange(0.0, 1.2, 0.05)}
    best = min(errors, key=lambda value: float(np.square(errors[value]).sum()))
    for value in (0.0, best):
        typical = float(np.sqrt(np.square(errors[value]).mean()))
        print(f"{len(cases)} runs of {STACK} at {value:.2f} ms: root mean square of errors {typical:.3f}")
    for trains, what in ((True, "trained"), (False, "frozen")):
        ratio_of = {form: ratios(form) for form in forms(trains=trains)}
        for form, (forward_s, ratio) in ratio_of.items():
            print(f"{what}: {form}: {forward_s / US:.0f} us forward, {ratio:.2f} times that backward")
        least, middle, most = np.quantile([ratio for _, ratio in ratio_of.values()], (0.0, 0.5, 1.0))
        print(f"torch on this CPU, {what} weights: backward over forward {middle:.2f} ({least:.2f} to {most:.2f})")
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


def ratios(form: Form) -> tuple[float, float]:
    """Host seconds that a DTensor adds to a module's forward, and how many times that to its backward."""
    plain, split = (measured_s(form, is_split=is_split) for is_split in (False, True))
    forward, backward = ((after - before) / (COLUMN + ROW) for before, after in zip(plain, split, strict=True))
    return forward, backward / forward


def measured_s(form: Form, *, is_split: bool) -> tuple[float, float]:
    """Processor seconds of a layer's products, forward and backward; ``is_split``: over tensor-parallel ranks.

    As within a model: the gradient of the layer's input is computed, too, and its sum over the ranks with it.
    """
    import torch
    import torch.distributed
    from torch import nn
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    columns = [nn.Linear(form.width, form.width, bias=False) for _ in range(COLUMN)]
    rows = [nn.Linear(form.width, form.width, bias=False) for _ in range(ROW)]
    for module in (*columns, *rows):
        module.requires_grad_(form.trains)
    tokens = form.tokens
    if is_split:
        stream = {"input_layouts": Shard(1)} if form.in_sequence else {}
        left = {"output_layouts": Shard(1)} if form.in_sequence else {}
        ways: list[tuple[list[nn.Linear], ParallelStyle]] = [
            (columns, ColwiseParallel(**stream)),
            (rows, RowwiseParallel(**left)),
        ]
        for modules, way in ways:
            for module in modules:
                parallelize_module(module, mesh_of(form.ranks), way)
        tokens //= form.ranks if form.in_sequence else 1

    def layer(x: torch.Tensor) -> torch.Tensor:
        query, key, value, gate, up = (column(x) for column in columns)
        mixed: torch.Tensor = rows[0](query + key + value) + rows[1](gate * up)
        return mixed

    best = [np.inf, np.inf]
    inputs = [torch.randn(1, tokens, form.width, requires_grad=True) for _ in range(ROUNDS)]
    for _ in range(TRIES):
        begin = time.process_time()
        outputs = [layer(x) for x in inputs]
        middle = time.process_time()
        for output in outputs:
            output.backward(torch.ones_like(output))
        end = time.process_time()
        best = [min(best[0], (middle - begin) / ROUNDS), min(best[1], (end - middle) / ROUNDS)]
        for parameter in (parameter for module in (*columns, *rows) for parameter in module.parameters()):
            parameter.grad = None
    return best[0], best[1]


@cache
def mesh_of(ranks: int) -> Any:
    """A mesh of so many ranks, whose collectives take nothing."""
    import torch.distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("fake", rank=0, world_size=max(RANKS), store=FakeStore())
    return init_device_mesh("cpu", (max(RANKS) // ranks, ranks), mesh_dim_names=("dp", "tp"))["tp"]


def loop_s() -> float:
    """Processor seconds of a plain loop."""
    begin, total = time.process_time(), 0
    for number in range(LOOP):
        total += number
    return time.process_time() - begin


if __name__ == "__main__":
    main()
