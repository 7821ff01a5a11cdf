"""A whole table: read it, predict every row (in parallel), and aggregate."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simpar.calls import refuses_unknown_keywords
from simpar.errors import UserError
from simpar.files import suggest
from simpar.plan.choices.mesh import LABELLED
from simpar.units import GIB
from simpar.validation.cells import Row, Unmodelled, format_cell, text
from simpar.validation.chosen import AS_NAMED, ProfileOverrides
from simpar.validation.columns import find_unread_columns
from simpar.validation.layers import layer_time_s, predict_layer
from simpar.validation.planned import resolve_paths
from simpar.validation.rates import has_rate, with_rates
from simpar.validation.rows import read_measurements
from simpar.validation.single import is_single, single_outcomes
from simpar.validation.summary import CELL, RowOutcome, summary
from simpar.validation.tight import recompute_to_fit
from simpar.validation.tuned import choose_open_settings

NEEDED = ("source", "n_gpus", "seq_len")
CHUNK = 16
DELIMITERS = (",", ";", "\t")


@refuses_unknown_keywords
def validate(path: str | Path, *, using: str | Path | ProfileOverrides | None = None, jobs: int = -1) -> dict[str, Any]:
    """Predicted against measured for every row of a CSV table: the JSON of ``simpar validate``.

    Rows are training runs, single kernels or collectives, told apart by their columns. Runs are predicted with the
    profiles that the rows name, or those of a file that :func:`simpar.learn` wrote (``using``). Rows are
    predicted by ``jobs`` processes (-1: all cores). Raises UserError if the file is not such a table.

    >>> row = {"source": "own", "model_name": "gpt2", "seq_len": 1024, "gpu_type": "H100 SXM 80GB", "n_gpus": 8}
    >>> row |= {"micro_batch": 8, "global_batch_seqs": 64, "precision": "bf16", "iteration_time_s": 0.05}
    >>> _ = Path("runs.csv").write_text(",".join(row) + chr(10) + ",".join(map(str, row.values())))
    >>> found = validate("runs.csv", jobs=1)
    >>> found["modelled"], found["rows_detail"][0]["label"][:4]
    (1, 'gpt2')
    """
    chosen = (
        using if isinstance(using, ProfileOverrides) else ProfileOverrides.learned(str(using)) if using else AS_NAMED
    )
    rows = read_table(path)
    single = is_single(rows)
    if single and chosen != AS_NAMED:
        raise UserError(f"{path}: single kernels or collectives; profiles are chosen for training runs")
    outcomes = single_outcomes(rows) if single else outcomes_of(rows, jobs=jobs, chosen=chosen)
    return {
        **summary(outcomes),
        "columns_not_read": {} if single else find_unread_columns(rows),
        "rows_detail": [_detail(outcome) for outcome in outcomes],
    }


def read_table(path: str | Path) -> list[Row]:
    """Rows of a CSV. Raises UserError for an unreadable file or missing columns."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as stream:
            head = stream.readline()
            stream.seek(0)
            reader = csv.DictReader(stream, delimiter=max(DELIMITERS, key=head.count), skipinitialspace=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            rows: list[Row] = [resolve_paths(row, path) for row in reader]
            names = reader.fieldnames
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: is not a CSV table ({error})") from None
    if not names:
        raise UserError(f"{path}: is empty; a measured table needs {', '.join(NEEDED)}")
    missing = [name for name in NEEDED if name not in names]
    if missing and not is_single(rows):
        meant = "".join(suggest(name, names) for name in missing[:1])
        raise UserError(
            f"{path}: column {', '.join(missing)} missing{meant}; a measured table needs {', '.join(NEEDED)}"
        )
    if not rows:
        raise UserError(f"{path}: has no rows below its names of columns")
    return rows


def outcomes_of(rows: Sequence[Row], *, jobs: int = -1, chosen: ProfileOverrides = AS_NAMED) -> list[RowOutcome]:
    """Predict rows on ``jobs`` processes (-1: all cores); the results are in order."""
    from joblib import Parallel, delayed

    numbered = list(enumerate(rows, start=2))
    chunks = [numbered[i : i + CHUNK] for i in range(0, len(numbered), CHUNK)]
    if jobs == 1 or len(chunks) == 1:
        return [outcome for chunk in chunks for outcome in _outcomes(chunk, chosen)]
    parts = Parallel(n_jobs=jobs)(delayed(_outcomes)(chunk, chosen) for chunk in chunks)
    return [outcome for part in parts for outcome in part]


def _outcomes(chunk: Sequence[tuple[int, Row]], chosen: ProfileOverrides) -> list[RowOutcome]:
    return [outcome(line, row, chosen) for line, row in chunk]


def outcome(line: int, row: Row, chosen: ProfileOverrides = AS_NAMED) -> RowOutcome:
    """Prediction and measurement of one row, or the reason why it is not modelled."""
    words = {"row": line, "source": text(row, "source"), "label": label(row)}
    cell = tuple(text(row, name) for name in CELL)
    try:
        actual = read_measurements(row)
        if (of_layer_s := layer_time_s(row)) is not None:
            entry = chosen.case(row)
            actual = replace(actual, step_time_s=of_layer_s, fits=None)
            read_as = f"{entry.read_as}, one layer"
            found = predict_layer(entry)
            return RowOutcome(**words, cell=cell, measured=actual, prediction=found, read_as=read_as)  # type: ignore[arg-type]
        known = actual.step_time_s is not None or actual.peak_memory_bytes is not None or not actual.fits
        if not known and not has_rate(row):
            raise Unmodelled("nothing measured (no step time, no memory)")
        entry, prediction = choose_open_settings(chosen.case(row))
        if not known:
            actual = with_rates(actual, row, entry)
        entry, ran = recompute_to_fit(entry, prediction, actual)
        prediction = replace(ran, fits=prediction.fits)  # whether the printed settings fit
    except (Unmodelled, UserError) as reason:
        why = str(reason).partition("\n")[0]
        return RowOutcome(**words, cell=cell, measured=None, prediction=None, reason=why)  # type: ignore[arg-type]
    known_as = {"suspect": suspect(row), "read_as": entry.read_as}
    return RowOutcome(**words, **known_as, cell=cell, measured=actual, prediction=prediction)  # type: ignore[arg-type]


def label(row: Row) -> str:
    """The name of a row: model, devices and layout."""
    layout = " ".join(f"{axis}{format_cell(row, axis)}" for axis in LABELLED if text(row, axis))
    return f"{text(row, 'model_name')} on {format_cell(row, 'n_gpus')} {layout}".strip()


def suspect(row: Row) -> str:
    """Why a row's source calls it disturbed, "" if not; such rows are included, and counted separately."""
    if text(row, "slow_pipeline_bug").lower() == "true":
        return "slow pipeline bug of the trainer"
    return text(row, "disturbed")


def _detail(outcome: RowOutcome) -> dict[str, Any]:
    detail: dict[str, Any] = {"row": outcome.row, "source": outcome.source, "label": outcome.label}
    if outcome.prediction is None or outcome.measured is None:
        return {**detail, "reason": outcome.reason}
    detail["read_as"] = outcome.read_as
    if outcome.measured.fits is None:  # a single kernel or collective
        return {
            **detail,
            "predicted_time_s": outcome.prediction.step_time_s,
            "measured_time_s": outcome.measured.step_time_s,
            "time_error_percent": _percent(outcome.time_error),
        }
    return {
        **detail,
        "suspect": outcome.suspect,
        "predicted_step_time_s": outcome.prediction.step_time_s,
        "measured_step_time_s": outcome.measured.step_time_s,
        "time_error_percent": _percent(outcome.time_error),
        **_certainty(outcome),
        "predicted_peak_gib": outcome.prediction.peak_reserved_bytes / GIB,
        "measured_peak_gib": _gib(outcome.measured.peak_memory_bytes),
        "memory_error_percent": _percent(outcome.memory_error),
        "predicted_static_gib": outcome.prediction.static_memory_bytes / GIB,
        "measured_static_gib": _gib(outcome.measured.static_memory_bytes),
        "static_error_percent": _percent(outcome.static_error),
        "predicted_fits": outcome.prediction.fits,
        "measured_fits": outcome.measured.fits,
    }


def _certainty(outcome: RowOutcome) -> dict[str, Any]:
    """How sure the prediction of a row is."""
    known = outcome.prediction.certainty if outcome.prediction else None
    if known is None:
        return {}
    names = (
        "step_time_interval_s",
        "reserved_memory_interval_bytes",
        "fit_probability",
        "support",
        "unsupported",
        "own_runs",
    )
    return {name: value for name, value in known.model_dump(mode="json").items() if name in names}


def _percent(error: float | None) -> float | None:
    return None if error is None else round(100 * error, 3)


def _gib(size: float | None) -> float | None:
    return None if size is None else size / GIB
