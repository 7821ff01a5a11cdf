"""What the allocator of a stack adds to its tensors, from measured peaks: a scan around every constant that was chosen.

    python benchmarks/fit_memory.py TABLE.csv... [--stacks nanotron megatron] [--rows ROWS.pkl]

Every run is simulated once (a minute for 300 on one core; ``--rows`` keeps what it held), then its peak is reckoned
anew under other gaps between blocks (``fragmentation``, ``churn``, ``settling``), other numbers of outputs that wait in
the queue of launches (``held_outputs``), and other limits of a host that is held up. For every constant and value: the
mean error of the peaks of runs that log what was reserved, the share of layouts whose fitting is told right, and
whether the shipped value is as good as the best one within three standard errors (paired, over runs; three,
because many values are tried). Exit code 1 where one is not.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
from normalise.tables import read_published

from simpar.cost.memory import allocator
from simpar.cost.memory.allocator import reserve
from simpar.errors import UserError
from simpar.program.footprint import footprints
from simpar.program.structure import stages
from simpar.stacks.stack import AllocatorHabits, load_stack
from simpar.units import Floats
from simpar.validation.cells import Row, Unmodelled
from simpar.validation.predict import cluster_of, time_ops
from simpar.validation.rows import case, read_measurements

HELD_UPS = (0.5, 0.75, 1.0)
FULL_QUEUES = (2.0, 3.0, 4.0)
GAPS = (-0.04, -0.02, 0.02, 0.04)
OUTPUTS = (-16.0, -8.0, 8.0, 16.0)
FEWEST = 20
"""Reserved peaks of a stack from which its constants can be told."""
Setting = tuple[AllocatorHabits, float, float]


@dataclass(frozen=True)
class Run:
    """What the classes of ranks of a run hold, and what was measured.

    ``classes`` has a row each: resident, moving, overhead, capacity bytes and whether it reports its peak;
    ``output_bytes`` are those of one output that waits, by (``HELD_UP``, ``FULL_QUEUE``), for every class.
    """

    stack: str
    classes: Floats
    output_bytes: dict[tuple[float, float], Floats]
    alternates: bool
    peak_bytes: float | None
    fits: bool

    def told(self, setting: Setting) -> tuple[float | None, bool]:
        """(log of the predicted over the measured peak, whether its fitting is told right) under a setting."""
        habits, held_up, queue = setting
        static, moving, overhead, capacity, reports = self.classes.T
        found = reserve(
            static,
            moving,
            habits,
            alternates=self.alternates,
            held_bytes=habits.held_outputs * self.output_bytes[held_up, queue],
            limit_bytes=capacity - overhead,
        )
        fits = bool(np.all(found.needed_bytes + overhead <= capacity))
        reserved = float(np.max(np.where(reports > 0, found.reserved_bytes, 0.0)))
        error = float(np.log(reserved / self.peak_bytes)) if self.peak_bytes and self.fits else None
        return error, fits == self.fits


def gathered(row: Row) -> Run:
    """One row, simulated. Raises Unmodelled or UserError."""
    one, actual = case(row), read_measurements(row)
    cluster = cluster_of(one)
    lowered, timing = time_ops(one, cluster)
    habits = lowered.job.stack.memory.allocator
    held = footprints(lowered, timing, cluster)
    outputs = {pair: np.zeros(len(held)) for pair in product(HELD_UPS, FULL_QUEUES)}
    for up, queue in outputs if habits.held_outputs else ():
        with patch.object(stages, "HELD_UP", up), patch.object(allocator, "FULL_QUEUE", queue):
            again = footprints(lowered, timing, cluster)
        outputs[up, queue] = np.array([own.held_outputs_bytes for own in again]) / habits.held_outputs
    first = int(np.argmin(lowered.quotient.representative_rank))
    classes = [
        (
            float(own.static.resident_bytes),
            float(own.moving_bytes),
            own.overhead_bytes,
            own.capacity_bytes,
            float(not one.first_rank_reports or index == first),
        )
        for index, own in enumerate(held)
    ]
    return Run(
        stack=one.stack,
        classes=np.array(classes),
        output_bytes=outputs,
        alternates=lowered.job.layout.num_microbatches(lowered.job.training.global_batch) > 1,
        peak_bytes=actual.peak_memory_bytes if actual.peak_counts == "reserved" else None,
        fits=actual.fits,
    )


def peaks(runs: list[Run]) -> int:
    """How many runs say what was reserved."""
    return sum(run.peak_bytes is not None for run in runs)


def shipped_limits() -> tuple[float, float]:
    """``HELD_UP`` and ``FULL_QUEUE`` as they are."""
    return stages.HELD_UP, allocator.FULL_QUEUE


def variations(shipped: Setting) -> Iterator[tuple[str, float, Setting]]:
    """(constant, value, setting) of every setting that differs from the shipped one in one constant."""
    habits, held_up, queue = shipped
    steps = {"fragmentation": GAPS, "churn": GAPS, "settling": GAPS}
    if habits.held_outputs:
        steps["held_outputs"] = OUTPUTS
    for name, differences in steps.items():
        for value in (getattr(habits, name) + step for step in differences):
            if value >= 0:
                yield name, value, (habits.model_copy(update={name: value}), held_up, queue)
    if habits.held_outputs:
        yield from (("HELD_UP", up, (habits, up, queue)) for up in HELD_UPS if up != held_up)
        yield from (("FULL_QUEUE", many, (habits, held_up, many)) for many in FULL_QUEUES if many != queue)


def losses(runs: list[Run], setting: Setting) -> Floats:
    """Shape (runs,): the error of a peak in log, and 1 where a layout's fitting is told wrong."""
    told = [run.told(setting) for run in runs]
    return np.array([abs(error or 0.0) + (not right) for error, right in told])


def report(stack: str, runs: list[Run]) -> list[str]:
    """Print a line a setting of one stack; returns the constants that another value would do better for."""
    shipped: Setting = (load_stack(stack).memory.allocator, *shipped_limits())
    base = losses(runs, shipped)
    worse = []
    print(f"\n{stack}: {len(runs)} layouts, {peaks(runs)} peaks")
    print(f"{'constant':16s} {'value':>7s}  error of peaks  fits right  better by (three standard errors)")
    for name, value, setting in (("as shipped", np.nan, shipped), *variations(shipped)):
        told = [run.told(setting) for run in runs]
        errors = [abs(error) for error, _ in told if error is not None]
        gain = base - losses(runs, setting)
        mean, doubt = float(gain.mean()), 3 * float(gain.std(ddof=1)) / np.sqrt(len(runs))
        if mean > doubt:
            worse.append(f"{stack}: {name} {value:g}")
        error = f"{np.mean(errors):13.2%}" if errors else f"{'-':>13s}"
        right = sum(right for _, right in told) / len(told)
        print(f"{name:16s} {value:7.3g}  {error}   {right:9.2%}  {mean:+.4f} ({doubt:.4f})")
    return worse


def read(paths: list[str], stacks: list[str] | None) -> Iterator[Run]:
    """All runs of tables that say something about memory and can be modelled."""
    for row in (row for path in paths for row in read_published(path)):
        if not row.get("peak_mem_gib") and str(row.get("status", "")).lower() != "oom":
            continue
        try:
            if stacks is None or case(row).stack in stacks:
                yield gathered(row)
        except (Unmodelled, UserError):
            continue


def main() -> None:
    """Gather (or read what was gathered), print all stacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE.csv", help="columns as docs/measured.md has them")
    parser.add_argument("--stacks", nargs="+", help="only these (default: all)")
    parser.add_argument("--rows", type=Path, help="what runs held: written after gathering, read without a table")
    args = parser.parse_args()
    if args.tables:
        runs = list(read(args.tables, args.stacks))
        if args.rows:
            args.rows.write_bytes(pickle.dumps(runs))
    else:
        runs = pickle.loads(args.rows.read_bytes())
    by_stack = defaultdict(list)
    for run in runs:
        by_stack[run.stack].append(run)
    many = {stack: own for stack, own in sorted(by_stack.items()) if peaks(own) >= FEWEST}
    worse = [name for stack, own in many.items() for name in report(stack, own)]
    sys.exit("\nbetter than shipped: " + ", ".join(worse) if worse else 0)


if __name__ == "__main__":
    main()
