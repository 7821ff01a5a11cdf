"""Fit what launches cost where exchanges of tokens run beside another microbatch (``experts.overlap_launches``).

Usage: python benchmarks/fit_overlap.py

Tried on every published run that overlaps them; only those that it moves (the host binds, the step is not captured)
tell anything. One number for all: the factor with the least sum of squared logarithms of measured over predicted.
"""

from __future__ import annotations

import argparse

import numpy as np
from intervals import NINE_IN_TEN
from normalise.tables import read_published
from pooled import NOISE
from tables import DATA

from simpar.validation.cells import Row, text
from simpar.validation.open_settings import choose_open_settings
from simpar.validation.predict import ParameterOverrides, predict_time_s
from simpar.validation.rows import case, read_measurements
from simpar.workers import Workers

TABLE = "measured_runs_dev.csv"
FACTORS = np.arange(1.0, 3.51, 0.25)
KEY = "experts.overlap_launches"


def errors_of(row: Row) -> tuple[str, list[float]] | None:
    """(The run, log(measured / predicted) under every factor); None for a run that no factor moves."""
    entry, _ = choose_open_settings(case(row))
    measured_s = read_measurements(row).step_time_s
    found = [predict_time_s(entry, ParameterOverrides(stacks={entry.stack: {KEY: each}})) for each in FACTORS.tolist()]
    if measured_s is None or found[-1] <= found[0]:
        return None
    name = f"{text(row, 'model_name')} on {text(row, 'n_gpus')} {text(row, 'gpu_type')}, {entry.stack}"
    return name, np.log(measured_s / np.array(found)).tolist()


def main() -> None:
    """Print the factor of every run and of all, and what a run's usual error leaves of it."""
    argparse.ArgumentParser(description=str(__doc__).splitlines()[0]).parse_args()
    rows = [row for row in read_published(DATA / TABLE) if text(row, "ep_overlap") == "true"]
    told = [one for one in Workers(jobs=-1).map(errors_of, rows) if one]
    fine = np.linspace(FACTORS[0], FACTORS[-1], 1001)
    errors = np.array([np.interp(fine, FACTORS, some) for _, some in told])
    for (name, _), some in zip(told, errors, strict=True):
        print(f"{name}: {fine[np.abs(some).argmin()]:.2f}")
    loss = (errors**2).sum(axis=0) / NOISE**2
    inside = fine[loss <= loss.min() + NINE_IN_TEN**2]
    print(f"{len(told)} runs: {KEY} {fine[loss.argmin()]:.2f} (90 %: {inside[0]:.2f} to {inside[-1]:.2f})")


if __name__ == "__main__":
    main()
