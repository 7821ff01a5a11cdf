"""Fit what Python needs to sort routed tokens, per piece and pass, where no fused kernel does (``experts.piece_s``).

Usage: python benchmarks/fit_sorting.py [TABLE ...]

Tried on every published run whose tokens are sorted so. One number for all: the seconds with the least sum of squared
logarithms of measured over predicted, where every source counts once. Its prior is what torch takes for a piece of
tensors on the host (torch.split and torch.cat of 128 pieces 1.7 us each, their gradients 2.1; one core, torch 2.13),
within a factor of e: a device's tensors take longer, and how much is not published.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
from intervals import NINE_IN_TEN
from normalise.tables import read_published
from pooled import NOISE
from tables import DATA

from simpar.units import US
from simpar.validation.cells import Row, text
from simpar.validation.open_settings import choose_open_settings
from simpar.validation.predict import ParameterOverrides, predict_time_s
from simpar.validation.rows import FUSED_SORT, case, read_measurements
from simpar.workers import Workers

SECONDS = np.arange(1.0, 17.1, 2.0) * US
ON_HOST_S = 1.9 * US
KEY = "experts.piece_s"


def errors_of(row: Row) -> tuple[str, str, list[float]] | None:
    """(Source, the run, log(measured / predicted) under every value); None for a run that sorts in a kernel."""
    entry, _ = choose_open_settings(case(row))
    measured_s = read_measurements(row).step_time_s
    if measured_s is None or entry.plan.get(FUSED_SORT) is not False:
        return None
    found = [predict_time_s(entry, ParameterOverrides(stacks={entry.stack: {KEY: each}})) for each in SECONDS.tolist()]
    name = f"{text(row, 'model_name')} on {text(row, 'n_gpus')} {text(row, 'gpu_type')}, {entry.stack}"
    return text(row, "source"), name, np.log(measured_s / np.array(found)).tolist()


def main() -> None:
    """Print the errors of every run at the value of all, and what a source's usual error leaves of it."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, default=[DATA / "measured_runs_dev.csv"])
    rows = [row for table in parser.parse_args().tables for row in read_published(table)]
    mixtures = [row for row in rows if "all-to-all" in text(row, "overlap_notes").lower() or text(row, FUSED_SORT)]
    told = [one for one in Workers(jobs=-1).map(errors_of, mixtures) if one]
    fine = np.linspace(SECONDS[0], SECONDS[-1], 1001)
    errors = np.array([np.interp(fine, SECONDS, some) for _, _, some in told])
    runs = Counter(source for source, _, _ in told)
    weights = np.array([1.0 / runs[source] for source, _, _ in told])
    loss = weights @ errors**2
    spread = max(NOISE**2, loss.min() / len(runs))  # sources differ by more than runs do
    doubt = loss / spread + np.log(fine / ON_HOST_S) ** 2
    best = int(doubt.argmin())
    for (source, name, _), some in zip(told, errors, strict=True):
        alone = fine[np.abs(some).argmin()] / US
        print(f"{source}: {name}: alone {alone:.1f} us; {some[best]:+.2f} at the best of all")
    inside = fine[doubt <= doubt[best] + NINE_IN_TEN**2]
    print(f"{len(told)} runs: {KEY} {fine[best] / US:.1f} us (90 %: {inside[0] / US:.1f} to {inside[-1] / US:.1f})")


if __name__ == "__main__":
    main()
