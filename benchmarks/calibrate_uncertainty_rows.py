"""Measured runs with their predictions, and how much every fitted parameter moves these.

Usage: python benchmarks/calibrate_uncertainty_rows.py FILE [--slopes OLDER]

Writes what fit_runs.py, calibrate_uncertainty.py and validation_report.py read (--rows FILE). With --slopes runs are
predicted anew and sensitivities are those of an older file, where parameters have moved a little.
"""

from __future__ import annotations

import argparse
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from as_published import recompute_to_fit
from normalise.tables import read_published
from numpy.typing import NDArray
from tables import DATA

from simpar.learning.parameters import (
    ARRAYS,
    ATTENTION,
    EXPERTS,
    SHARDS,
    Name,
    names_of,
    parameter,
    tuning_of,
    value_of,
)
from simpar.precisions import narrower
from simpar.program.footprint import footprints
from simpar.program.perturbation import Perturbation
from simpar.report.certainty import traits_of
from simpar.report.context import SummaryInputs
from simpar.report.summarise import summarise
from simpar.uncertainty.memory import Parts
from simpar.uncertainty.support import Traits
from simpar.validation.cells import Row, Unmodelled, text
from simpar.validation.devices import load_named_profile
from simpar.validation.open_settings import choose_open_settings
from simpar.validation.predict import (
    NO_TUNING,
    ParameterOverrides,
    Prediction,
    change_stack,
    cluster_of,
    has_rate,
    predict_time_s,
    time_ops,
    with_rates,
)
from simpar.validation.rows import Case, Measurements, case, read_measurements
from simpar.validation.summary import CELL
from simpar.validation.table import suspect
from simpar.workers import Workers

TABLES = ("measured_runs_dev.csv", "measured_playbook_dev.csv")
ALSO = "measured_mlperf_dev.csv"  # nothing is fitted to its runs
ORDINARY = "measured_ordinary_dev.csv"  # runs as most people do them, beside vendors' tuned ones
THINNED = {"ultrascale-playbook": 4, "vTrain ground truth (A100)": 8}
"""Sources of which the parameters of only one run in so many are moved: grids of a thousand."""
NEVER = re.compile(r"MLPerf|Megatron-FSDP GB200|Llama 3 405B")
"""Sources that nothing is fitted to: to compare with, and one whose exchange of tokens is not Megatron-Core's."""
JOBS: dict[str, dict[str, float]] = {
    "aws-p5": {
        "jobs.in_training.far_hop_us": 8.0,
        "jobs.disturbed.collectives.member_us": 20.0,
        "jobs.disturbed.collectives.far_member_us": 20.0,
    }
}
"""Latencies of clusters that only runs show, and how far they are moved."""
FITTED = frozenset(
    ["launch.host_time_per_kernel_s", "launch.kernel_overhead", "launch.step_overhead_s", "launch.message_s",
     "launch.host_time_per_collective_s", *SHARDS, *ARRAYS, *EXPERTS]
)  # fmt: skip
"""Parameters of stacks that whole runs tell: those of which a profile says that they are nothing stay nothing."""
FAMILIES = ("deepseek", "mixtral", "qwen", "nemotron", "gpt.?oss", "gpt", "llama", "mpt", "grok", "kimi", "maxtext")


@dataclass(frozen=True)
class Run:
    """A measured run with its prediction: what of it counts for errors.

    ``error`` is log(measured / predicted) of the step time, None where no time or a disturbed one was measured;
    ``slopes`` the value of every parameter and by how much it moves the logarithm of the prediction.
    ``parts_bytes`` of the rank that needs the most; ``parts_s`` what the predicted step is made up of. ``fitted`` says
    whether parameters are fitted to it, ``row`` its table and its place there.
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
    fitted: bool = False
    row: tuple[str, int] = ("", 0)

    @property
    def population(self) -> str:
        """Whether a vendor or a framework tuned it for a publication, or it is as most people run."""
        return "ordinary" if self.row[0] == ORDINARY else "tuned"


def run_of(row: Row, place: tuple[str, int], older: Run | None, *, move: bool) -> Run | None:
    """One row as a run, its parameters moved if asked for, or as an older one knows them; None if not modelled."""
    try:
        found = read_measurements(row)
        asked = case(row)
        entry, predicted = choose_open_settings(asked)
        if not found.step_time_s and has_rate(row):
            found = with_rates(found, row, entry)
        ran, as_run = recompute_to_fit(entry, predicted, found)
        cluster = cluster_of(entry)
        lowered, timing = time_ops(entry, cluster)
    except Unmodelled:
        return None
    shown = summarise(SummaryInputs(lowered, timing, cluster, "sweep", "full", Perturbation()), with_timeline=False)
    fullest = max(footprints(lowered, timing, cluster), key=lambda one: one.needed_bytes)
    said = not asked.open and not text(row, "configured_by")  # its whole plan
    error = None
    doubtful = text(row, "notes").startswith("tier C") or text(row, "grade") == "C"
    if found.step_time_s and not suspect(row) and not doubtful:
        error = float(np.log(found.step_time_s / as_run.step_time_s))
    return Run(
        source=text(row, "source"),
        family=_family(text(row, "model_name")),
        cell=tuple(text(row, name) for name in CELL),
        traits=traits_of(lowered.job, cluster, cluster.device.name),
        error=error,
        slopes=_slopes(ran, as_run.step_time_s, older) if move and error is not None else {},
        fitted=error is not None and said and is_fitted(text(row, "source"), entry, predicted),
        row=place,
        predicted_s=as_run.step_time_s,
        measured_s=found.step_time_s,
        fits=None if suspect(row) else found.fits,
        needed_bytes=fullest.needed_bytes,
        capacity_bytes=fullest.capacity_bytes,
        parts_bytes=fullest.parts_bytes,
        peak_error=_peak_error(found, predicted),
        parts_s=tuple(dict(shown.time_breakdown_s).values()) if error is not None else (),
    )


def _peak_error(found: Measurements, predicted: Prediction) -> float | None:
    if not found.peak_memory_bytes:
        return None
    return float(np.log(found.peak_memory_bytes / predicted.peak_bytes(found.peak_counts)))


def _family(model: str) -> str:
    """The family of a model by its name."""
    return next((name for name in FAMILIES if re.search(name, model.lower())), model.lower())


def names(entry: Case) -> Iterator[Name]:
    """Parameters that a case may depend on and that runs tell."""
    for kind, part, key in names_of(entry, NO_TUNING):
        fitted = kind == "stack" and key in FITTED
        if kind == "device" or (fitted and value_of((kind, part, key), entry, NO_TUNING) > 0):
            yield kind, part, key
    if rates := change_stack(entry.stack, {}).fusion.attention_rate:
        device = cluster_of(entry).device.name
        yield "stack", entry.stack, f"{ATTENTION}.{device if device in rates else 'others'}"
    for key in JOBS.get(entry.hardware, {}):
        yield "cluster", entry.hardware, key


def _slopes(entry: Case, base_s: float, older: Run | None) -> dict[Name, tuple[float, float]]:
    """Value and sensitivity of every parameter of a case."""
    found = {}
    for name in names(entry):
        known = value(entry, name)
        if older and name in older.slopes:
            found[name] = known, older.slopes[name][1]
            continue
        if name[2] == "launch.step_overhead_s":  # it is added to the step
            found[name] = known, 1 / base_s
            continue
        step = JOBS[name[1]][name[2]] if name[0] == "cluster" else parameter(name[2]).step
        moved_s = predict_time_s(entry, tuning_of({name: known + step}))
        found[name] = known, float(np.log(moved_s / base_s)) / step
    return found


def value(entry: Case, name: Name) -> float:
    """A parameter as the profiles have it."""
    if name[0] != "cluster":
        return value_of(name, entry, NO_TUNING)
    part: Any = load_named_profile(entry.hardware)
    for step in name[2].split("."):
        part = part.get(step) if isinstance(part, Mapping) else getattr(part, step)
    return float(part)


def is_fitted(source: str, entry: Case, predicted: Prediction) -> bool:
    """Whether parameters are fitted to a run.

    Not where it offloads, or recomputes some layers only (rare: they check what is fitted to others); nor where
    products of 4 bits belong to another stack than NeMo's, which are not modelled; nor where it needs more memory than
    there was while it could recompute more: it did, and its row does not say so.
    """
    plan = entry.plan
    partial = "offload_activations" in plan or "layers:" in str(plan["recompute"])
    narrow = plan["precision"] in narrower(8) and not entry.stack.startswith("nemo")
    fits = predicted.fits or plan["recompute"] == "full"
    return bool(not NEVER.match(source) and not (partial or narrow) and fits)


def runs_of(paths: Sequence[Path], older: Sequence[Run] = ()) -> list[Run]:
    """All rows of tables that are modelled, on all cores, with the sensitivities of older ones where there are any."""
    known, tasks = {run.row: run for run in older}, []
    for path in paths:
        counts: Counter[str] = Counter()
        for at, row in enumerate(read_published(path)):
            place, source = (path.name, at), text(row, "source")
            counts[source] += 1
            tasks.append((row, place, known.get(place), counts[source] % THINNED.get(source, 1) == 0))
    found = Workers(jobs=-1).map(_run_of_task, tasks)
    return [run for run in found if run is not None]


def _run_of_task(task: tuple[Row, tuple[str, int], Run | None, bool]) -> Run | None:
    row, place, older, move = task
    return run_of(row, place, older, move=move)


def errors_under(runs: Sequence[Run], tunings: Sequence[Sequence[ParameterOverrides]]) -> NDArray[np.float64]:
    """log(measured / predicted), float64[runs, k], each run predicted anew under k values of parameters of its own."""
    rows = {path: read_published(DATA / path) for path in {run.row[0] for run in runs}}
    tasks = [(rows[run.row[0]][run.row[1]], run, some) for run, some in zip(runs, tunings, strict=True)]
    found = Workers(jobs=-1).map(_errors_under, tasks)
    return np.array(found, dtype=np.float64)


def _errors_under(task: tuple[Row, Run, Sequence[ParameterOverrides]]) -> list[float]:
    """What a row leaves open is what it is under the profiles, and it recomputes what it must to fit there."""
    row, run, tunings = task
    entry, predicted = choose_open_settings(case(row))
    entry, _ = recompute_to_fit(entry, predicted, read_measurements(row))
    return [float(np.log((run.measured_s or np.nan) / predict_time_s(entry, tuning))) for tuning in tunings]


def kept_runs(kept: Path | None, slopes: Path | None = None) -> list[Run]:
    """All runs of the development tables: those of a file where there is one, which is else written."""
    if kept and kept.exists():
        return list(pickle.loads(kept.read_bytes()))
    older = kept_runs(slopes) if slopes else ()
    runs = runs_of([DATA / name for name in (*TABLES, ALSO, ORDINARY)], older)
    if kept:
        kept.write_bytes(pickle.dumps(runs))
    return runs


def main() -> None:
    """Write a file of runs."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--slopes", type=Path, help="an older file, whose sensitivities are taken")
    arguments = parser.parse_args()
    arguments.file.unlink(missing_ok=True)
    print(f"{len(kept_runs(arguments.file, arguments.slopes))} runs")


if __name__ == "__main__":
    import calibrate_uncertainty_rows  # runs are kept under the name that others read them by

    calibrate_uncertainty_rows.main()
