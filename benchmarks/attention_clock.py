"""Whether attention runs at another clock than products in training steps: what runs with much and little of it say.

Usage: python benchmarks/attention_clock.py --rows FILE

FILE is what calibrate_uncertainty_rows.py wrote. Were attention predicted too slow by a factor, runs of one source
would be faster than predicted the more of their step it takes. Errors of a source are compared with its median,
robustly; the interval draws whole sources anew.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from calibrate_uncertainty_rows import Run, errors_under, kept_runs
from numpy.typing import NDArray

from simpar import files
from simpar.learning.parameters import ATTENTION, tuning_of
from simpar.stacks.stack import load_stack

Floats = NDArray[np.float64]
BOARDS = {"A100": "a100|a800", "Hopper": r"h[128]00|h20", "Blackwell": "b[23]00", "all": "."}
FASTER = 1.1  # how much faster attention is made to find its share of a step
FAR = 0.06  # from where on a run counts less
LEAST, LEAST_RUNS = 0.005, 3  # share of a step below which a run has no attention, and runs of a source that compare
MOST_RUNS = 24  # of a source, evenly taken
DRAWS = 400


def shares_of(runs: Sequence[Run]) -> Floats:
    """The share of attention in every predicted step."""
    tunings = []
    for run in runs:
        stack = run.traits.stack
        rates = {"others": 1.0, **load_stack(stack).fusion.attention_rate}
        tunings.append(
            [
                tuning_of({("stack", stack, f"{ATTENTION}.{board}"): rate * by for board, rate in rates.items()})
                for by in (1.0, FASTER)
            ]
        )
    usual, faster = errors_under(runs, tunings).T
    return np.asarray((faster - usual) / np.log(FASTER))


def taken(runs: Sequence[Run]) -> list[Run]:
    """Runs with a step time on stacks that ship, evenly taken from each source."""
    by_source: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.error is not None and run.traits.stack in files.bundled("stacks"):
            by_source[run.source].append(run)
    return [run for some in by_source.values() for run in some[:: -(-len(some) // MOST_RUNS)]]


def slope(table: Sequence[tuple[Floats, Floats]]) -> float:
    """By how much the error grows with the share: the logarithm of attention's measured over its predicted time."""
    share, error = (np.concatenate(column) for column in zip(*table, strict=True))
    found = 0.0
    for _ in range(30):
        weight = 1.0 / np.maximum(1.0, np.abs(error - found * share) / FAR)
        found = float((weight * share * error).sum() / (weight * share**2).sum())
    return found


def main() -> None:
    """Print the factor on attention's time by generation of devices."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=Path, required=True)
    arguments = parser.parse_args()
    runs = taken(kept_runs(arguments.rows))
    shares = shares_of(runs)
    for name, pattern in BOARDS.items():
        by_source: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for run, share in zip(runs, shares.tolist(), strict=True):
            if share > LEAST and run.error is not None and re.match(pattern, run.traits.device.removeprefix("g")):
                by_source[run.source].append((share, run.error))
        table = [np.array(some).T for some in by_source.values() if len(some) >= LEAST_RUNS]
        centred = [(share - np.median(share), error - np.median(error)) for share, error in table]
        drawn = np.random.default_rng(0).integers(len(centred), size=(DRAWS, len(centred)))
        low, high = np.exp(np.percentile([slope([centred[at] for at in some]) for some in drawn], (5, 95)))
        number, factor = sum(len(share) for share, _ in centred), np.exp(slope(centred))
        print(
            f"{name:10s} {number:5d} runs of {len(centred):2d} sources: attention takes {factor:.2f} of its predicted "
            f"time (90 %: {low:.2f} to {high:.2f})"
        )


if __name__ == "__main__":
    main()
