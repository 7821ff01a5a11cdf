"""Aggregate errors: per source and overall, rank correlation, fits, and the regret of trusting predictions."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY
from simpar.validation.predict import Prediction
from simpar.validation.rows import Measurements

CELL = ("model_name", "n_layers", "hidden", "gpu_type", "n_gpus", "seq_len", "global_batch_seqs", "source")


@dataclass(frozen=True)
class RowOutcome:
    """One row of a table: its cell (the rows that are compared for regret), measurement, and prediction or reason.

    ``read_as`` says what its columns of cluster and software were read as; ``device`` and ``stack`` are their names.
    """

    row: int
    source: str
    label: str
    cell: tuple[str, ...]
    measured: Measurements | None
    prediction: Prediction | None
    reason: str = ""
    suspect: str = ""
    read_as: str = ""
    device: str = ""
    stack: str = ""

    @property
    def time_error(self) -> float | None:
        """Signed relative error of step time."""
        return self._error("step_time_s", lambda prediction: prediction.step_time_s)

    @property
    def memory_error(self) -> float | None:
        """Signed relative error of the peak of tensors, reserved memory or the device, whichever was measured."""
        counts = self.measured.peak_counts if self.measured else "reserved"
        return self._error("peak_memory_bytes", lambda prediction: prediction.peak_bytes(counts))

    @property
    def static_error(self) -> float | None:
        """Signed relative error of static memory."""
        return self._error("static_memory_bytes", lambda prediction: prediction.static_memory_bytes)

    def _error(self, name: str, predicted: Callable[[Prediction], float]) -> float | None:
        value = getattr(self.measured, name, None)
        return predicted(self.prediction) / value - 1 if self.prediction and value else None

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The 90 % interval of the step, in s; None if it is not known."""
        known = self.prediction.certainty if self.prediction else None
        return None if known is None else known.step_time_interval_s


def summary(outcomes: Sequence[RowOutcome]) -> dict[str, Any]:
    """The JSON of ``simpar validate`` without its rows: overall figures, and ``by_source``, device and stack.

    Rows that are not modelled have neither device nor stack, nor have single kernels a stack.
    """
    return {**figures(outcomes), **{f"by_{name}": figures_by(name, outcomes) for name in ("source", "device", "stack")}}


def figures_by(name: str, outcomes: Sequence[RowOutcome]) -> dict[str, dict[str, Any]]:
    """Figures of the rows of every source, device or stack, as ``name`` says."""
    groups: dict[str, list[RowOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if name == "source" or getattr(outcome, name):
            groups[getattr(outcome, name)].append(outcome)
    return {each: figures(rows) for each, rows in sorted(groups.items())}


def figures(outcomes: Sequence[RowOutcome]) -> dict[str, Any]:
    """Figures of one set of rows; None where nothing was measured."""
    modelled = [o for o in outcomes if o.prediction is not None]
    times = [abs(o.time_error) for o in modelled if o.time_error is not None]
    clean = [abs(o.time_error) for o in modelled if o.time_error is not None and not o.suspect]
    memories = [abs(o.memory_error) for o in modelled if o.memory_error is not None]
    statics = [abs(o.static_error) for o in modelled if o.static_error is not None]
    regrets = [r for r in regret_by_cell(modelled).values() if r is not None]
    return {
        "rows": len(outcomes),
        "modelled": len(modelled),
        "unmodelled_reasons": dict(Counter(o.reason for o in outcomes if o.prediction is None).most_common()),
        "read_as": dict(Counter(o.read_as for o in modelled if o.read_as).most_common()),
        "suspect_rows": dict(Counter(o.suspect for o in modelled if o.suspect)),
        "time_rows": len(times),
        "time_ape_median": _percent(times, median),
        "time_ape_mean": _percent(times, fmean),
        "time_ape_p90": _percent(times, _p90),
        "clean_time_ape_median": _percent(clean, median),
        "clean_time_ape_p90": _percent(clean, _p90),
        "time_bias_median": _percent([o.time_error for o in modelled if o.time_error is not None], median),
        **_intervals(modelled),
        "memory_rows": len(memories),
        "memory_ape_median": _percent(memories, median),
        "memory_ape_p90": _percent(memories, _p90),
        "static_memory_ape_median": _percent(statics, median),
        "kendall_tau": kendall_tau(modelled),
        "fit_accuracy": _fit_accuracy(modelled),
        "fit_confusion": dict(_confusion(modelled)),
        **fit_errors(modelled),
        "regret_mean": _percent(regrets, fmean),
        "regret_max": _percent(regrets, max),
        **_peers(modelled),
    }


def _intervals(outcomes: Sequence[RowOutcome]) -> dict[str, float | None]:
    """The share of measured steps in their intervals, and the median half width relative to the prediction.

    Suspect rows do not count.
    """
    inside, widths = [], []
    for one in outcomes:
        if one.interval_s and one.measured and one.measured.step_time_s and one.prediction and not one.suspect:
            low_s, high_s = one.interval_s
            inside.append(low_s <= one.measured.step_time_s <= high_s)
            widths.append((high_s - low_s) / (2 * one.prediction.step_time_s))
    return {
        "interval_coverage": round(fmean(inside), 4) if inside else None,
        "interval_width_median": round(median(widths), 4) if widths else None,
    }


def _percent(values: Iterable[float], reduce: Any) -> float | None:
    numbers = list(values)
    return round(100 * float(reduce(numbers)), 3) if numbers else None


def _p90(values: Sequence[float]) -> float:
    return float(np.percentile(values, 90))


def _cells(outcomes: Sequence[RowOutcome]) -> dict[tuple[str, ...], list[RowOutcome]]:
    """Rows with a measured time, grouped by cell, for cells of at least two; without suspect rows."""
    cells: dict[tuple[str, ...], list[RowOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.time_error is not None and not outcome.suspect:
            cells[outcome.cell].append(outcome)
    return {cell: rows for cell, rows in cells.items() if len(rows) > 1}


def regret_by_cell(outcomes: Sequence[RowOutcome]) -> dict[tuple[str, ...], float]:
    """By what share the measured time of the row with the best prediction exceeds the best measured time."""
    result = {}
    for cell, rows in _cells(outcomes).items():
        pick = min(rows, key=lambda o: o.prediction.step_time_s if o.prediction else float("inf"))
        best = min(o.measured.step_time_s for o in rows if o.measured and o.measured.step_time_s)
        taken = pick.measured.step_time_s if pick.measured else None
        assert taken, "cells hold measured rows only"
        result[cell] = taken / best - 1
    return result


def kendall_tau(outcomes: Sequence[RowOutcome]) -> float | None:
    """The mean of Kendall's tau-b between predicted and measured times, over cells of at least three rows.

    Cells are weighted by their rows; None if there are none.
    """
    from scipy.stats import kendalltau

    taus, weights = [], []
    for rows in _cells(outcomes).values():
        predicted = [o.prediction.step_time_s for o in rows if o.prediction]
        actual = [o.measured.step_time_s or 0.0 for o in rows if o.measured]
        if len(rows) > 2 and len(set(predicted)) > 1 and len(set(actual)) > 1:
            taus.append(float(kendalltau(predicted, actual).statistic))
            weights.append(len(rows))
    return round(float(np.average(taus, weights=weights)), 4) if taus else None


def _confusion(outcomes: Sequence[RowOutcome]) -> Counter[str]:
    """Counts of (measured, predicted) fits: "fits_fits", "fits_oom", "oom_fits", "oom_oom"."""
    words = {True: "fits", False: "oom"}
    return Counter(
        f"{words[o.measured.fits]}_{words[o.prediction.fits]}"
        for o in outcomes
        if o.measured and o.prediction and o.measured.fits is not None
    )


def fit_errors(outcomes: Sequence[RowOutcome]) -> dict[str, float | None]:
    """Percent of runs that ran but are said not to fit, and of those out of memory that are said to fit.

    Each as predicted, and where the answer must be sure with DEFAULT_FIT_PROBABILITY ("sure"). None without such runs.
    """
    said: dict[bool, tuple[list[bool], list[bool]]] = {ran: ([], []) for ran in (True, False)}
    """By whether it ran: whether it fits as predicted, and surely."""
    for one in outcomes:
        certainty = one.prediction.certainty if one.prediction else None
        if one.measured and one.measured.fits is not None and one.prediction and certainty:
            predicted, sure = said[one.measured.fits]
            predicted.append(one.prediction.fits)
            sure.append(certainty.fit_probability >= DEFAULT_FIT_PROBABILITY)
    (ran, surely_ran), (refused, surely_refused) = said[True], said[False]
    return {
        "ran_said_not_to_fit": _percent([not fits for fits in ran], fmean),
        "ran_said_not_to_fit_sure": _percent([not fits for fits in surely_ran], fmean),
        "oom_said_to_fit": _percent(refused, fmean),
        "oom_said_to_fit_sure": _percent(surely_refused, fmean),
    }


def _fit_accuracy(outcomes: Sequence[RowOutcome]) -> float | None:
    counts = _confusion(outcomes)
    total = sum(counts.values())
    return round((counts["fits_fits"] + counts["oom_oom"]) / total, 4) if total else None


def _peers(outcomes: Sequence[RowOutcome]) -> Mapping[str, float | None]:
    """Errors of simpar and of the peer, on rows whose source publishes another tool's prediction."""
    result: dict[str, float | None] = {}
    for what, name, peer in (
        ("time", "step_time_s", "peer_step_time_s"),
        ("memory", "peak_memory_bytes", "peer_memory_bytes"),
    ):
        rows = [o for o in outcomes if getattr(o.measured, peer, None) and getattr(o, f"{what}_error") is not None]
        theirs = [abs(getattr(o.measured, peer) / getattr(o.measured, name) - 1) for o in rows]
        if what == "time":
            result["peer_rows"] = float(len(rows))
        result[f"peer_{what}_ape_mean"] = _percent(theirs, fmean)
        result[f"ours_on_peer_{what}_ape_mean"] = _percent([abs(getattr(o, f"{what}_error")) for o in rows], fmean)
    return result
