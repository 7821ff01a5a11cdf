"""Fit the clocks of devices that few runs tell: at most the boost clock, and as sure as they can be.

Usage: python benchmarks/fit_devices.py [--write]

Before any run a device has the clock of its power and kind (general values of fit_runs.py, clocks.json), at most 1,
and kernels that nobody has timed; both may be off. Runs of one source err together. The most probable clock weighs
them; all else stays as other devices show it, so what is slow for another reason moves a clock by a part only.
Deterministic. With --write values, intervals and where they come from go into the profiles, and what attention is
expected to reach where PyTorch's is a Triton kernel.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from clocks import general_clock
from fit_runs import update_profile
from intervals import NINE_IN_TEN, write_intervals
from normalise.tables import read_published
from numpy.typing import NDArray
from pooled import EXPECTED, FAR, FEW_RUNS, GENERAL, NOISE, PASSES, effects_of, power_of
from scipy.special import ndtr, ndtri
from tables import DATA, ROOT

from simpar.cost.kernels import KernelModel
from simpar.hardware.device import load_device
from simpar.learning.parameters import ATTENTION, CLOCKS, bounds_of, tuning_of
from simpar.validation.cells import Row, Unmodelled, text
from simpar.validation.open_settings import choose_open_settings
from simpar.validation.predict import cluster_of, has_rate, predict_time_s, with_rates
from simpar.validation.rows import Case, case, read_measurements
from simpar.validation.table import suspect

Floats = NDArray[np.float64]
TABLES = ("measured_runs_dev.csv", "measured_ordinary_dev.csv")
ALIKE = {"v100-sxm2-16gb": "v100-sxm2-32gb"}  # one board with less memory
UNSEEN = (
    "t4", "mi455x", "vr200", "gaudi-2", "gaudi-3", "ascend-910b", "ascend-910b3", "ascend-910c", "tpu-v7x",
)  # fmt: skip
"""Devices of which no kernel and no run is known, nor of their kin: their data sheets alone."""
KIN = {"l4": "l40s", "rtx-6000-ada": "l40s", "gb10": "rtx-pro-6000", "mi350x": "mi355x"}
"""Boards with the shares of peak of another one, at whose power those were timed, or whose runs tell its clock."""
TRITON_ONLY = ("mi250x", "mi300x", "mi355x")
"""Boards on which PyTorch's scaled dot product is a Triton kernel, AOTriton, which nobody timed here; those like them
have theirs."""
KERNELS = 0.15
"""How far shares of peak of kernels that nobody timed may be off, as a logarithm: 0.65 to 0.96 were measured."""
TIMED = float(np.hypot(EXPECTED["architecture"], EXPECTED["sustained_clock"]))
"""How far the clock of a device that no run tells may be off, as a logarithm, where its kernels were timed."""
SPREAD = float(np.hypot(TIMED, KERNELS))
"""The same where they were not."""
SOURCE = {"A": 0.08, "B": 0.1, "C": 0.2, "": 0.08}
"""What runs of a source share beyond the device, by how much of their settings is published."""
STEP = 0.03


@dataclass(frozen=True)
class Measured:
    """A run of one of the devices."""

    device: str
    source: str
    grade: str
    entry: Case
    time_s: float


def clock_of_power(device: str) -> float:
    """The clock of a device by its power alone, at most what is possible."""
    name, known = ("device", device, CLOCKS[0]), general_clock()
    effects = sum(known.get(effect, 0.0) * factor for _, effect, factor in effects_of(name))
    return min(top_of(device), float(np.exp(effects)))


def clock_before_runs(device: str) -> float:
    """What the clock of a device without runs is above as likely as below: its power's, off by SPREAD, if possible."""
    return middle_below(clock_of_power(device), SPREAD, top_of(device))


def clock_of_kin(device: str, other: str, clock: float) -> float:
    """A clock of a board like another one, by their powers: at most what that one's is a share of."""
    exponent = general_clock()["sustained_clock power"]
    return middle_below(min(1.0, clock * (power_of(device) / power_of(other)) ** exponent), SPREAD, 1.0)


def top_of(device: str) -> float:
    """The highest clock that is possible."""
    return bounds_of(("device", device, CLOCKS[0])).high


def middle_below(center: float, spread: float, top: float) -> float:
    """The median of a lognormal distribution with a median of its own and a spread, cut off above ``top``.

    Half of what is left of it [Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 1, section 13.10.1].
    """
    below = ndtr(np.log(top / center) / spread)
    return float(center * np.exp(spread * ndtri(below / 2)))


def write_unseen() -> None:
    """Clocks of devices without runs into their profiles, with intervals of what other devices differ by."""
    width, exponent = float(np.exp(NINE_IN_TEN * SPREAD)), general_clock()["sustained_clock power"]
    for device in (*UNSEEN, *KIN):
        values, note = {CLOCKS[0]: clock_before_runs(device)}, "by its power alone; no run stands behind it"
        if other := KIN.get(device):
            known = load_device(other).kernels
            clocks = {name: known.get(name, 1.0) for name in CLOCKS if name in known or name == CLOCKS[0]}
            values = {name: clock_of_kin(device, other, clock) for name, clock in clocks.items()}
            note = f"that of {other}, of whose products it is a share, by their powers (W a TFLOP/s to {exponent:g})"
        update_profile(ROOT / "hardware_profiles" / "devices" / f"{device}.yaml", "device", values, note)
        top = top_of(device)
        ends = {f"kernels.{name}": (clock / width, min(clock * width, top)) for name, clock in values.items()}
        write_intervals("devices", {device: ends})


def measured_runs() -> list[Measured]:
    """Runs of the devices with a step time, undisturbed, that fit as their rows say."""
    found = []
    for table in TABLES:
        for row in read_published(DATA / table):
            try:
                run = _measured(row)
            except Unmodelled:
                continue
            if run is not None:
                found.append(run)
    return found


def _measured(row: Row) -> Measured | None:
    if not re.search(r"v100|mi250|v5e|v6e", text(row, "gpu_type").lower()) or suspect(row):
        return None
    if re.search("slow:|tier C", text(row, "notes")):  # by its authors
        return None
    measured = read_measurements(row)
    entry, _ = choose_open_settings(case(row))
    if not measured.step_time_s and has_rate(row):
        measured = with_rates(measured, row, entry)
    device = cluster_of(entry).device.name
    if measured.step_time_s is None or device not in FEW_RUNS:
        return None
    return Measured(device, text(row, "source"), text(row, "grade"), entry, measured.step_time_s)


def fit(device: str, runs: Sequence[Measured]) -> tuple[float, float]:
    """The most probable clock of a device under its runs, and the standard deviation of its logarithm."""
    before, top = float(np.log(clock_of_power(device))), float(np.log(top_of(device)))
    by_source: dict[str, list[int]] = defaultdict(list)
    for at, run in enumerate(runs):
        by_source[run.source].append(at)
    at = before
    for _ in range(PASSES):
        left, slope = np.array([_error(run, at) for run in runs]).T
        told, pull = 1 / SPREAD**2, (before - at) / SPREAD**2
        for places in by_source.values():
            off = left[places] / slope[places]  # by how much the clock would have to move
            middle = float(np.median(off))
            noise = NOISE / np.sqrt(len(places)) * max(1.0, abs(middle) / FAR) ** 0.5
            weight = 1 / (noise**2 + SOURCE[runs[places[0]].grade] ** 2)
            told, pull = told + weight, pull + weight * middle
        at = min(top, at + pull / told)
        if abs(pull / told) < 2e-3:
            break
    deviation = float(1 / np.sqrt(told))
    return middle_below(float(np.exp(at)), deviation, top_of(device)), deviation


def _error(run: Measured, clock: float) -> tuple[float, float]:
    """(log(measured / predicted) at a clock (logarithm), how its prediction moves with that logarithm)."""
    times = [
        predict_time_s(run.entry, tuning_of({("device", run.device, CLOCKS[0]): float(np.exp(each))}))
        for each in (clock, clock - STEP)
    ]
    return float(np.log(run.time_s / times[0])), float(np.log(times[0] / times[1])) / STEP


def triton_shares(device: str) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Shares of peak of a Triton kernel of attention on a device, and their intervals, before any run."""
    expected, known = GENERAL[ATTENTION], KernelModel(load_device(device)).parameters
    width = float(np.exp(NINE_IN_TEN * expected.off_by))
    values, ends = {}, {}
    for way in ("forward", "backward"):
        share = expected.usual * known[f"attention_{way}_efficiency"]
        values[f"flash2_{way}_efficiency"] = share
        ends[f"kernels.flash2_{way}_efficiency"] = (share / width, share * width)
    return values, ends


def main() -> None:
    """Fit, print, and write on request."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for device in TRITON_ONLY if arguments.write else ():
        values, ends = triton_shares(device)
        update_profile(ROOT / "hardware_profiles" / "devices" / f"{device}.yaml", "device", values)
        write_intervals("devices", {device: ends})
    if arguments.write:
        write_unseen()
    runs = measured_runs()
    for device in FEW_RUNS:
        mine = [run for run in runs if run.device == device]
        clock, deviation = fit(device, mine)
        errors = np.expm1([-_error(run, float(np.log(clock)))[0] for run in mine])
        sources = sorted({run.source for run in mine})
        middle = np.median(np.abs(errors))
        print(
            f"{device:16s} before {clock_before_runs(device):.3f} after {clock:.3f} +- {deviation:.3f}, "
            f"{len(mine)} runs: median {middle:.1%}, bias {np.median(errors):+.1%}"
        )
        if not arguments.write:
            continue
        note = (
            f"by its power, and {len(mine)} runs ({'; '.join(sources)}) that weigh in part "
            f"(benchmarks/fit_devices.py); median absolute error of step time {middle:.1%}"
        )
        for name in (device, *(name for name, other in ALIKE.items() if other == device)):
            path = ROOT / "hardware_profiles" / "devices" / f"{name}.yaml"
            update_profile(path, "device", {CLOCKS[0]: clock}, note)
        width = float(np.exp(NINE_IN_TEN * deviation))
        ends = {f"kernels.{CLOCKS[0]}": (clock / width, min(clock * width, top_of(device)))}
        write_intervals("devices", {device: ends})


if __name__ == "__main__":
    main()
