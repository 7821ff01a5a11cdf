"""Measured runs with their predictions, and how much every fitted parameter moves these (calibrate_uncertainty.py)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fit_runs import NARROW, ONLY_HERE, STACK
from joblib import Parallel, delayed

from simpar.program.footprint import footprints
from simpar.report.certainty import traits_of
from simpar.uncertainty.memory import Parts
from simpar.uncertainty.support import Traits
from simpar.units import BITS
from simpar.validate.cells import Row, Unmodelled, text
from simpar.validate.predict import (
    Prediction,
    Tuning,
    changed_stack,
    cluster_of,
    named_profile,
    predict_time_s,
    result_of,
    timed,
)
from simpar.validate.rates import has_rate, with_rates
from simpar.validate.rows import Case, Measured, case, measured
from simpar.validate.summary import CELL
from simpar.validate.table import read_table, suspect
from simpar.validate.tuned import settled

Name = tuple[str, str, str]
"""Kind of profile, its name, the parameter's dotted key."""
THINNED = {"ultrascale-playbook": 4, "vTrain ground truth (A100)": 8}
"""Sources of which the parameters of only one run in so many are moved: grids of a thousand."""
EXPERTS = ("experts.overhead", "experts.sync_s", "experts.row_s", "experts.exchange_host_s")
STEPS = {
    "sustained_clock": 0.03, "launch.host_time_per_kernel_s": 4e-6, "launch.kernel_overhead": 0.04,
    "launch.step_overhead_s": 0.005, "overlap.compute_slowdown_while_comm": 0.03, "experts.overhead": 0.05,
    "experts.sync_s": 5e-5, "experts.row_s": 5e-10, "experts.exchange_host_s": 1e-4,
    "launch.host_time_per_collective_s": 2e-5, "launch.message_s": 3e-4, "fusion.attention_rate": 0.03,
    "jobs.in_training.far_hop_us": 8.0, "jobs.disturbed.collectives": 20.0,
}  # fmt: skip
"""How far a parameter is moved, by the beginning of its key."""
FAMILIES = (
    "deepseek",
    "mixtral",
    "qwen",
    "nemotron",
    "gpt.?oss",
    "gpt",
    "llama",
    "mpt",
    "grok",
    "kimi",
    "maxtext",
)


@dataclass(frozen=True)
class Run:
    """A measured run with its prediction: what of it counts for errors.

    ``error`` is log(measured / predicted) of the step time, None where no time or a disturbed one was measured;
    ``slopes`` the value of every parameter and by how much it moves the logarithm of the prediction.
    ``parts_bytes`` of the rank that needs the most; ``parts_s`` what the predicted step is made up of.
    """

    source: str
    family: str
    cell: tuple[str, ...]
    traits: Traits
    error: float | None
    slopes: Mapping[Name, tuple[float, float]]
    predicted_s: float
    measured_s: float | None
    fits: bool | None
    needed_bytes: float
    capacity_bytes: float
    parts_bytes: Parts
    peak_error: float | None
    parts_s: tuple[float, ...] = ()


def run_of(row: Row, *, move: bool) -> Run | None:
    """One row as a run, its parameters moved if asked for; None where it is not modelled."""
    try:
        found = measured(row)
        entry, predicted = settled(case(row))
        if not found.step_time_s and has_rate(row):
            found = with_rates(found, row, entry)
        cluster = cluster_of(entry)
        lowered, timing = timed(entry, cluster)
    except Unmodelled:
        return None
    fullest = max(footprints(lowered, timing, cluster), key=lambda one: one.needed_bytes)
    error = None
    if found.step_time_s and not suspect(row) and not text(row, "notes").startswith("tier C"):
        error = float(np.log(found.step_time_s / predicted.step_time_s))
    return Run(
        source=text(row, "source"),
        family=_family(text(row, "model_name")),
        cell=tuple(text(row, name) for name in CELL),
        traits=traits_of(lowered.job, cluster, cluster.device.name),
        error=error,
        slopes=_slopes(entry, cluster.device.name) if move and error is not None else {},
        predicted_s=predicted.step_time_s,
        measured_s=found.step_time_s,
        fits=None if suspect(row) else found.fits,
        needed_bytes=fullest.needed_bytes,
        capacity_bytes=fullest.capacity_bytes,
        parts_bytes=fullest.parts_bytes,
        peak_error=_peak_error(found, predicted),
        parts_s=tuple(dict(result_of(entry).time_breakdown_s).values()) if error is not None else (),
    )


def _peak_error(found: Measured, predicted: Prediction) -> float | None:
    if not found.peak_memory_bytes:
        return None
    return float(np.log(found.peak_memory_bytes / predicted.peak_bytes(found.peak_counts)))


def _family(model: str) -> str:
    """The family of a model by its name."""
    return next((name for name in FAMILIES if re.search(name, model.lower())), model.lower())


def _names(entry: Case, device: str) -> Iterator[Name]:
    """Parameters that a case may depend on."""
    yield "device", device, "sustained_clock"
    bits = BITS.get(str(entry.plan["precision"]), 16)
    for clock, *_ in NARROW[: (bits <= 8) + (bits <= 4)]:
        yield "device", device, clock
    for key in (*STACK, *(EXPERTS if entry.graph.is_mixture else ())):
        yield "stack", entry.stack, key
    for kind, name, key in ONLY_HERE:
        if name == {"stack": entry.stack, "cluster": entry.hardware}[kind] and key not in EXPERTS:
            yield kind, name, key


def _slopes(entry: Case, device: str) -> dict[Name, tuple[float, float]]:
    """Value and sensitivity of every parameter of a case."""
    base_s, found = predict_time_s(entry), {}
    for name in _names(entry, device):
        kind, part, key = name
        value = _value(entry, name)
        step = next(size for start, size in STEPS.items() if key.startswith(start))
        moved_s = predict_time_s(entry, Tuning(**{f"{kind}s": {part: {key: value + step}}}))
        found[name] = value, float(np.log(moved_s / base_s)) / step
    return found


def _value(entry: Case, name: Name) -> float:
    """A parameter as the profiles have it; clocks of fewer bits fall back on wider ones."""
    kind, _, key = name
    if kind == "device":
        kernels = cluster_of(entry).device.kernels
        keys = (key, "sustained_clock_fp8", "sustained_clock")
        return float(next(kernels[one] for one in keys if one in kernels)) if kernels else 1.0
    part: Any = changed_stack(entry.stack, {}) if kind == "stack" else named_profile(entry.hardware)
    for step in key.split("."):
        part = part.get(step) if isinstance(part, Mapping) else getattr(part, step)
    return float(part)


def runs_of(paths: Sequence[Path]) -> list[Run]:
    """All rows of tables that are modelled, on all cores."""
    tasks = []
    for path in paths:
        counts: Counter[str] = Counter()
        for row in read_table(path):
            source = text(row, "source")
            counts[source] += 1
            tasks.append((row, counts[source] % THINNED.get(source, 1) == 0))
    found = Parallel(n_jobs=-1, batch_size=8)(delayed(run_of)(row, move=move) for row, move in tasks)
    return [run for run in found if run is not None]
