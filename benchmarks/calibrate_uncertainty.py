"""Measure how far predictions are from runs that nothing was fitted to, and write the table that travels with simpar.

Usage: python benchmarks/calibrate_uncertainty.py [--write] [--rows FILE]

Every source of the development tables is left out in turn, then every family of models: the pooled parameters of
devices and stacks are fitted again without it, and its runs are predicted. Each parameter is moved once for each run
(its sensitivity), and a fit is a penalised robust least squares of what the sensitivities say: seconds instead of
hours; predictions are exact. Parameters that nothing is left to tell of return to what others of their kind are like.
--rows keeps the sensitivities, which take most of the time, for another run, and the errors of runs left out beside
them: validation_report.py reads these.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from calibrate_memory import (
    ALIKE,
    allocator,
    fit_probability,
    memory_errors,
    memory_runs,
    mistakes,
    percentile,
    refused_stacks,
)
from calibrate_uncertainty_rows import Run, errors_under, kept_runs
from fit_devices import SPREAD, TIMED, clock_before_runs
from numpy.typing import NDArray
from pooled import FEW_RUNS, ORDINARY_STACKS, Fitted, Pool, highest, told_by
from scipy.optimize import minimize
from tables import ROOT

from simpar.cost.collectives.parameters import PARAMETERS, parameters
from simpar.files import write_atomic
from simpar.hardware.catalogue import load_cluster
from simpar.learning.parameters import CLOCKS, Name, tuning_of
from simpar.uncertainty.step_time import NINE_IN_TEN, StepTimeError, lacks
from simpar.uncertainty.support import Evidence, Support, Traits, support_of
from simpar.uncertainty.table import PATH, ErrorTable, TimeErrors, load_error_table
from simpar.validation.predict import ParameterOverrides

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
KINDS = ("source", "family", "population")
"""What is left out of a fit in turn."""
NOT_SUPPORT = ("Megatron-FSDP GB200",)  # its exchange is another than Megatron-Core's
PLAYBOOK = ("ultrascale-playbook",)  # prints layouts that ran out of memory beside those that ran
TOLD_NETWORKS = ("hgx-h100", "hgx-a100-80gb", "mi300x-8", "aws-p5", "aws-p4d", "gcp-a3-mega", "tpu-v5e-pod")
"""Clusters of whose network between nodes measured collectives or runs tell the part that collectives reach."""
GROUP = 30  # runs that are enough to say how often intervals hold
SEEN = 4  # runs of a stack on a device that are enough to say how far they lie at least
LEAST_LACK = 0.005  # what multiplies a spread by less is left out of the table
LEAST_LAYOUTS = 2  # of a cell that says what a choice comes to
ROUNDING = 1e-12  # of shares of weights that are added up
PENALTY = 1.0
"""Of the square of what a lack multiplies spreads by, as a logarithm: a lack that few runs show counts little."""


@dataclass(frozen=True)
class Fold:
    """Runs that were left out of a fit: positions, their errors under it, and what is left as evidence."""

    name: str
    left_out: NDArray[np.int64]
    errors: Floats
    evidence: tuple[Evidence, ...]


def folds(runs: Sequence[Run]) -> Iterator[Fold]:
    """Every source left out in turn, every family, and every population; spreads are those under all fitted runs.

    The two populations are vendors' tuned runs and runs as most people do them: each predicts the other. As in the
    fits that ship, ordinary runs tell of their own stacks, all else being as it is.

    Refits are linearised, the runs left out are predicted with what they find: where a host is slower than its device
    or not, lines do not hold.
    """
    fitted, tuned = (
        np.array(flags) for flags in zip(*((run.fitted, run.population == "tuned") for run in runs), strict=True)
    )
    every, theirs = Pool(runs), Pool(runs, ORDINARY_STACKS)
    spreads = every.fit(fitted).spreads
    left_out: list[tuple[str, Bools]] = []
    tunings: list[list[ParameterOverrides]] = [[] for _ in runs]
    for kind in KINDS:
        names = np.array([str(getattr(run, kind)) for run in runs])
        for name in sorted(set(names)):
            left_out.append((f"{kind} {name}", names == name))
            pool = every if tuned[names == name].any() else theirs
            found = pool.fit(fitted & (names != name), spreads)
            tuning = tuning_of(left_out_values(pool, names != name, found))
            for at in np.flatnonzero(names == name):
                tunings[at].append(tuning)
    by_kind = dict(zip(KINDS, errors_under(runs, tunings).T, strict=True))
    for name, mine in left_out:
        kept = [run for run, use in zip(runs, fitted & ~mine, strict=True) if use]
        errors = by_kind[name.partition(" ")[0]]
        yield Fold(name, np.flatnonzero(mine), errors[mine], evidence_of(kept))


def left_out_values(pool: Pool, used: Bools, found: Fitted) -> dict[Name, float]:
    """What a fit to some of the runs finds of what the others tell; all else is as profiles have it.

    A device of few runs (fit_devices.py) of which none is left has the clock of its power.
    """
    left, others = (
        [run for run, use in zip(pool.runs, used, strict=True) if bool(use) is keep] for keep in (True, False)
    )
    moved = told_by(others)
    values = {name: value for name, value in zip(pool.names, found.values.tolist(), strict=True) if name in moved}
    shown = {name for run in left for name in run.slopes}
    gone = {name for run in others for name in run.slopes if name[1] in FEW_RUNS} - shown
    clocks = {name: clock_before_runs(name[1]) for name in gone if name[2] == CLOCKS[0]}
    return {name: min(value, highest(name)) for name, value in (values | clocks).items()}


def evidence_of(runs: Sequence[Run]) -> tuple[Evidence, ...]:
    """Runs counted by source, family and traits."""
    counts = Counter((run.source, run.family, run.traits, run.population == "ordinary") for run in runs)
    order = sorted(counts, key=lambda one: (one[0], one[1], str(one[2])))
    return tuple(Evidence(*key[:2], counts[key], *key[2:]) for key in order)


@dataclass(frozen=True)
class Errors:
    """Errors of runs left out: one row for each run and fold it was left out of, with what it lacked."""

    error: Floats
    lacked: Floats
    run: NDArray[np.int64]
    fold: NDArray[np.int64]
    source: NDArray[np.str_]
    weight: Floats

    def some(self, mask: Bools) -> Errors:
        """Some rows."""
        return Errors(*(getattr(self, name)[mask] for name in self.__annotations__))


def errors_of(runs: Sequence[Run], folds: Sequence[Fold], conditions: Sequence[str]) -> Errors:
    """Errors of all folds in one table, but for vendors' runs under a fit to ordinary ones alone.

    No prediction rests on ordinary runs alone: simpar ships what vendors' runs tell.
    """
    rows, lacked = [], []
    for number, fold in enumerate(fold for fold in folds if fold.name != "population tuned"):
        known: dict[Traits, Support] = {}
        for at, error in zip(fold.left_out.tolist(), fold.errors.tolist(), strict=True):
            traits = runs[at].traits
            known[traits] = known.get(traits) or support_of(traits, fold.evidence)
            missing = lacks(known[traits], runs[at].predicted_s)
            rows.append((error, at, number))
            lacked.append([missing[name] for name in conditions])
    error, run, fold_of = (np.array(column) for column in zip(*rows, strict=True))
    source = np.array([runs[at].source for at in run])
    counts = Counter(source.tolist())
    weight = np.array([min(1.0, ALIKE / counts[name]) for name in source.tolist()])
    ordinary = np.array([runs[at].population == "ordinary" for at in run])
    if ordinary.any():  # a user's run is as likely of one population as of the other
        weight[ordinary] *= weight[~ordinary].sum() / weight[ordinary].sum()
    return Errors(error, np.array(lacked, dtype=np.float64), run, fold_of, source, weight)


def widths(errors: Errors) -> tuple[Floats, float, float]:
    """Logarithms of spreads by what is lacking (the first for nothing), and the ends of intervals in spreads.

    The most likely ones for a Laplace distribution, whose tails are long; a lack is never narrower than its absence.
    The interval is the shortest of errors in such spreads that holds nine in ten, sources of many runs counted as few.
    """
    table = np.column_stack([np.ones(len(errors.error)), errors.lacked])
    size = np.abs(errors.error)

    def loss(logs: Floats) -> float:
        spread = table @ logs
        fit = errors.weight * (spread + size * np.exp(-spread))
        return float(fit.sum() + PENALTY * np.sum(logs[1:] ** 2))

    start = np.concatenate([[np.log(0.08)], np.full(table.shape[1] - 1, 0.1)])
    bounds = [(-5.0, 1.0), *[(0.0, 2.0)] * (table.shape[1] - 1)]
    logs = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    scaled = errors.error * np.exp(-table @ logs)
    return logs, *shortest(scaled, errors.weight, 0.9)


def shortest(values: Floats, weight: Floats, share: float) -> tuple[float, float]:
    """The ends of the shortest interval, between two of the values, in which a share of the weight lies."""
    order = np.argsort(values)
    ends, sums = values[order], np.concatenate([[0.0], np.cumsum(weight[order]) / weight.sum()])
    last = np.searchsorted(sums[1:], sums[:-1] + share - ROUNDING)
    first = np.flatnonzero(last < len(ends))
    best = first[np.argmin(ends[last[first]] - ends[first])]
    return float(ends[best]), float(ends[last[best]])


def layout_share(runs: Sequence[Run], errors: Errors, spread: Floats) -> float:
    """The part of spreads in which layouts of one cell differ: of errors around the middle of their cell and fold."""
    cells: dict[tuple[int, tuple[str, ...]], list[int]] = defaultdict(list)
    for row, (run, fold) in enumerate(zip(errors.run.tolist(), errors.fold.tolist(), strict=True)):
        cells[fold, runs[run].cell].append(row)
    within, weight = [], []
    for rows in cells.values():
        if len(rows) > 2:
            scaled = errors.error[rows] / spread[rows]
            # a median of n takes part of the spread with it
            within.append(np.abs(scaled - np.median(scaled)) * np.sqrt(len(rows) / (len(rows) - 1)))
            weight.append(errors.weight[rows])
    whole = percentile(np.abs(errors.error / spread), errors.weight, 0.9)
    return min(1.0, percentile(np.concatenate(within), np.concatenate(weight), 0.9) / whole)


def decisions(runs: Sequence[Run], table: ErrorTable, probability: float) -> str:
    """What choosing the best predicted layout of every cell that fits so probably comes to, in words.

    Of cells of a source that prints failures, in which several layouts were measured: winners that ran out of
    memory, and how much slower than the best measured one the others are.
    """
    cells: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if run.fits is not None and run.source in PLAYBOOK:
            cells[run.cell].append(run)
    failed, regrets = 0, []
    for cell in cells.values():
        ran = [run.measured_s for run in cell if run.fits and run.measured_s]
        if len(cell) < LEAST_LAYOUTS or not ran:
            continue
        sure = [run for run in cell if fit_probability(run, table) >= probability]
        if not sure:
            continue
        pick = min(sure, key=lambda run: run.predicted_s)
        failed += not pick.fits
        if pick.fits and pick.measured_s:
            regrets.append(pick.measured_s / min(ran) - 1)
    mean = float(np.mean(regrets)) if regrets else 0.0
    return f"{failed} of {failed + len(regrets)} winners out of memory, regret {mean:.1%} in the mean"


def calibrated(runs: Sequence[Run], kept: Path | None = None) -> tuple[ErrorTable, Errors, Floats]:
    """The table, errors of runs left out, and their spreads; ``kept`` is the file of runs, if there is one."""
    moved = moved_runs(runs)
    evidence = evidence_of([run for run in runs if run.error is not None and run.source not in NOT_SUPPORT])
    conditions = list(lacks(support_of(Traits("", ""), evidence)))
    folds = kept_folds(moved, kept)
    errors = errors_of(moved, folds, conditions)
    logs, low, high = widths(errors)
    spread = np.exp(np.column_stack([np.ones(len(errors.error)), errors.lacked]) @ logs)
    lacking = {n: round(float(v), 3) for n, v in zip(conditions, logs[1:], strict=True) if v >= LEAST_LACK}
    tuned = np.array([moved[at].population == "tuned" for at in errors.run])  # tables of many layouts of one job
    layout = layout_share(moved, errors.some(tuned), spread[tuned])
    base = float(np.exp(logs[0]))
    seen = seen_spreads(runs, (low, high), base)
    count = len({run.source for run in moved})
    table = ErrorTable(
        provenance=f"errors of {len(errors.error)} predictions of runs of {count} sources, each left out of its fit",
        time=TimeErrors(
            base=base,
            lacking=lacking,
            seen=seen,
            sorted=sorted_spread(runs, (low, high)),
            low=low,
            high=high,
            layout=layout,
            network=network_errors(),
            kernels=(NINE_IN_TEN / 2 * TIMED, NINE_IN_TEN / 2 * SPREAD),
        ),
        learned=load_error_table().learned,
        memory=memory_errors(runs),
        evidence=evidence,
        memory_runs=memory_runs(runs),
        refused=refused_stacks(runs),
    )
    return table, errors, spread


def network_errors() -> tuple[float, float]:
    """Ends of nine in ten logarithms of the time of a network that nothing tells, over that of the default parameters.

    From the parts of their cards that the networks of TOLD_NETWORKS reach.
    """
    default = PARAMETERS["nic_efficiency"][0]
    times = [np.log(default / parameters(load_cluster(name, 2))["nic_efficiency"]) for name in TOLD_NETWORKS]
    half = NINE_IN_TEN / 2 * np.std(times, ddof=1)
    return float(np.mean(times) - half), float(np.mean(times) + half)


def seen_spreads(runs: Sequence[Run], ends: tuple[float, float], base: float) -> dict[str, dict[str, float]]:
    """By stack and device the spread in which nine in ten of its own runs lie, where that is above ``base``.

    Of SEEN runs or more. Parameters were fitted to most of them: nothing is surer than what was seen already.
    """
    low, high = ends
    by_kind = defaultdict(list)
    for run in runs:
        if run.error is not None and run.source not in NOT_SUPPORT:
            by_kind[run.traits.stack, run.traits.device].append(max(run.error / high, run.error / low))
    found: dict[str, dict[str, float]] = {}
    for (stack, device), sizes in sorted(by_kind.items()):
        spread = float(np.percentile(sizes, 90))
        if len(sizes) >= SEEN and spread > base:
            found.setdefault(stack, {})[device] = spread
    return found


def sorted_spread(runs: Sequence[Run], ends: tuple[float, float]) -> float:
    """The spread in which nine in ten of the runs lie in which Python sorts routed tokens; 0 without any.

    All of them, whatever their exchange: what they share is the speed of the host's cores, which is nowhere published.
    """
    low, high = ends
    own = [run.error for run in runs if run.error is not None and run.traits.sorted]
    return round(float(np.percentile([max(one / high, one / low) for one in own], 90)), 4) if own else 0.0


def fitted_coverage(runs: Sequence[Run], table: ErrorTable) -> Iterator[tuple[str, int, float]]:
    """(Stack and device, runs, share inside the interval) of runs that parameters were fitted to, and all together."""
    inside = defaultdict(list)
    for run in runs:
        if run.error is not None:
            known = StepTimeError.of(support_of(run.traits, table.evidence), table.time, run.predicted_s)
            for name in ("all", f"{run.traits.stack}, {run.traits.device}"):
                inside[name].append(known.low <= run.error <= known.high)
    for name, one in inside.items():
        if len(one) >= GROUP:
            yield name, len(one), float(np.mean(one))


def folds_of(moved: Sequence[Run]) -> Iterator[Fold]:
    """Every source of some runs left out in turn, then every family, of the parameters that are fitted."""
    return folds(moved)


def kept_folds(moved: Sequence[Run], kept: Path | None) -> list[Fold]:
    """The same as a list: those that lie beside the file of runs, if they were made of it; else they are put there."""
    if kept is None:
        return list(folds_of(moved))
    beside, made_of = kept.with_suffix(".folds.pkl"), hashlib.sha256(kept.read_bytes()).hexdigest()
    known = pickle.loads(beside.read_bytes()) if beside.exists() else ("", [])
    if known[0] == made_of:
        return [Fold(*each) for each in known[1]]
    result = list(folds_of(moved))
    parts = [(each.name, each.left_out, each.errors, each.evidence) for each in result]
    beside.write_bytes(pickle.dumps((made_of, parts)))
    return result


def moved_runs(runs: Sequence[Run]) -> list[Run]:
    """Runs with a measured time whose parameters were moved."""
    return [run for run in runs if run.error is not None and run.slopes]


def coverage(
    runs: Sequence[Run], errors: Errors, spread: Floats, table: ErrorTable
) -> list[tuple[str, int, float, float]]:
    """(Group, runs, share of predictions inside the interval, half an interval in the median): all, then groups."""
    scaled = errors.error / spread
    inside = (scaled >= table.time.low) & (scaled <= table.time.high)
    half = (np.exp(table.time.high * spread) - np.exp(table.time.low * spread)) / 2
    found = [("all", len(set(errors.run.tolist())), float(inside.mean()), float(np.median(half)))]
    moved = moved_runs(runs)
    groups: dict[str, Callable[[Run], Any]] = {
        "population": lambda run: run.population, "source": lambda run: run.source,
        "family": lambda run: run.family, "stack": lambda run: run.traits.stack,
        "device": lambda run: run.traits.device, "bits": lambda run: run.traits.bits,
        "mixture": lambda run: run.traits.mixture,
    }  # fmt: skip
    for kind, key in groups.items():
        names = np.array([str(key(moved[at])) for at in errors.run.tolist()])
        for name in sorted(set(names)):
            mine = names == name
            if len(set(errors.run[mine].tolist())) >= GROUP:
                share, width = float(inside[mine].mean()), float(np.median(half[mine]))
                found.append((f"{kind} {name}", len(set(errors.run[mine].tolist())), share, width))
    return found


def main() -> None:
    """Calibrate, print, and write on request."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the table that travels with the package")
    parser.add_argument("--rows", type=Path, help="file that keeps sensitivities between runs")
    arguments = parser.parse_args()
    runs = kept_runs(arguments.rows)
    table, errors, spread = calibrated(runs, arguments.rows)
    print(table.time, table.memory, table.memory_runs, sep="\n")
    print(allocator(runs), *mistakes(runs, table), sep="\n")
    groups = coverage(runs, errors, spread, table)
    for group, count, inside, half in groups:
        print(f"{group:60s} {count:5d} {inside:6.1%} +-{half:.0%}")
    for name, count, inside in fitted_coverage(runs, table):
        print(f"fitted: {name:52s} {count:5d} {inside:6.1%}")
    for probability in (0.5, 0.8, 0.95):
        print(f"{probability:.0%} sure: {decisions(runs, table, probability)}")
    if arguments.write:
        write(table)
        draw(groups, ROOT / "docs" / "images" / "interval_coverage.png")


def write(table: ErrorTable) -> None:
    """The table as it travels with the package, a line for each source, family and traits."""
    dumped = table.model_dump(mode="json")
    evidence = dumped.pop("evidence")
    for part in ("time", "memory"):
        dumped[part] = _rounded(dumped[part])
    lines = ",\n".join(f"  {json.dumps(one)}" for one in evidence)
    head = ",\n".join(f" {json.dumps(name)}: {json.dumps(part)}" for name, part in dumped.items())
    write_atomic(PATH, f'{{\n{head},\n "evidence": [\n{lines}\n ]\n}}\n')


def draw(groups: Sequence[tuple[str, int, float, float]], path: Path) -> None:
    """How often intervals held, and how wide they are, by group of runs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [f"{group} ({count} runs)" for group, count, *_ in groups]
    at = np.arange(len(groups))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 0.22 * len(groups) + 1.2), sharey=True, width_ratios=[3, 2])
    left.axvspan(87, 93, color="0.9", lw=0)
    left.plot([100 * inside for *_, inside, _ in groups], at, "o", color="tab:blue")
    left.set(xlim=(50, 101), xlabel="measured steps inside the 90 % interval, %", yticks=at, ylim=(len(groups), -1))
    left.set_yticklabels(names, fontsize=7)
    right.barh(at, [100 * half for *_, half in groups], color="0.6", height=0.6)
    right.set_xlabel("half an interval in the median, %")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _rounded(part: dict[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(one) for one in value]
        if isinstance(value, dict):
            return {name: short(one) for name, one in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    return {name: short(value) for name, value in part.items()}


if __name__ == "__main__":
    main()
