"""A whole table: read it, predict every row (in parallel), and aggregate."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from simpar.calls import refuses_unknown_keywords
from simpar.errors import UserError
from simpar.files import read_text, suggest
from simpar.plan.choices.mesh import LABELLED
from simpar.units import GIB, MIB
from simpar.validation import collectives, kernels
from simpar.validation.cells import Row, Unmodelled, format_cell, text
from simpar.validation.columns import find_unread_columns
from simpar.validation.open_settings import choose_open_settings
from simpar.validation.predict import Prediction, cluster_of, has_rate, with_rates
from simpar.validation.profile_overrides import AS_NAMED, ProfileOverrides, resolve_paths
from simpar.validation.rows import Case, Measurements, read_measurements
from simpar.validation.summary import CELL, RowOutcome, summary
from simpar.workers import Workers


# Tables of single kernels or collectives: every row predicted by the cost model alone.
def is_single(rows: Sequence[Row]) -> bool:
    """Whether rows have the columns of kernels or of collectives."""
    names = set(rows[0]) if rows else set()
    return names.issuperset(kernels.COLUMNS) or names.issuperset(collectives.COLUMNS)


def single_outcomes(rows: Sequence[Row]) -> list[RowOutcome]:
    """Prediction and measurement of every row in order, or the reason why it is not modelled."""
    of_kernels = set(rows[0]).issuperset(kernels.COLUMNS)
    parsed: list[Any] = [_parsed(row, of_kernels=of_kernels) for row in rows]
    known = [at for at, one in enumerate(parsed) if not isinstance(one, str)]
    predict: Any = kernels.predict if of_kernels else collectives.predict
    times = dict(zip(known, predict([parsed[at] for at in known]), strict=True))
    return [
        _outcome(line, row, one, times.get(line - 2))
        for line, (row, one) in enumerate(zip(rows, parsed, strict=True), start=2)
    ]


def _parsed(row: Row, *, of_kernels: bool) -> kernels.Kernel | collectives.MeasuredCall | str:
    try:
        return kernels.kernel(row) if of_kernels else collectives.call(row)
    except Unmodelled as reason:
        return str(reason)


def _label(row: Row) -> str:
    """The name of an operation in a report: its kind, its shape, and where it ran."""
    sizes = [format_cell(row, name) for name in ("m", "n", "k") if text(row, name)]
    named = {"batch": "b", "seq_len": "s", "n_heads": "h", "head_dim": "d", "message_bytes": "bytes "}
    shape = [f"{mark}{format_cell(row, name)}" for name, mark in named.items() if text(row, name)]
    words = [text(row, "op"), text(row, "direction"), " x ".join(sizes), *shape, text(row, "gpu_type")]
    where = f"on {format_cell(row, 'n_gpus')}" if text(row, "n_gpus") else ""
    return " ".join(word for word in (*words, where) if word)


def _outcome(line: int, row: Row, parsed: Any, predicted: float | str | None) -> RowOutcome:
    words = {"row": line, "source": text(row, "source"), "label": _label(row), "cell": (str(line),)}
    if not isinstance(predicted, float):
        reason = parsed if isinstance(parsed, str) else str(predicted)
        return RowOutcome(**words, measured=None, prediction=None, reason=reason)  # type: ignore[arg-type]
    measured = Measurements(parsed.time_s, None, None, None, None, fits=None)
    prediction = Prediction(predicted, 0.0, 0.0, 0.0, fits=True)
    return RowOutcome(**words, measured=measured, prediction=prediction)  # type: ignore[arg-type]


NEEDED = ("source", "n_gpus", "seq_len")
CHUNK = 16
DELIMITERS = (",", ";", "\t")
MOST_BYTES, MOST_ROWS = 64 * MIB, 20_000
"""Of a table: every row is simulated."""
CERTAINTY = {
    "step_time_interval_s", "reserved_memory_interval_bytes", "fit_probability", "support", "unsupported", "own_runs",
}  # fmt: skip
"""What a report says of how sure the prediction of a row is."""
RowPredictor = Callable[[Row, ProfileOverrides], tuple[Case, Measurements, Prediction]]
"""What a row is predicted by: see :func:`predict_row`."""


@refuses_unknown_keywords
def validate(path: str | Path, *, using: str | Path | ProfileOverrides | None = None, jobs: int = -1) -> dict[str, Any]:
    """Predicted against measured for every row of a CSV table: the JSON of ``simpar validate``.

    Rows are training runs, single kernels or collectives, told apart by their columns. Runs are predicted with the
    profiles that the rows name, or those of a file that :func:`simpar.learn` wrote (``using``). Rows are
    predicted by ``jobs`` processes (-1: all cores). Raises UserError if the file is not such a table.

    >>> row = {"source": "own", "model_name": "gpt2", "seq_len": 1024, "gpu_type": "H100 SXM 80GB", "n_gpus": 8}
    >>> row |= {"micro_batch": 8, "global_batch_seqs": 64, "precision": "bf16", "iteration_time_s": 0.05}
    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile("w+", suffix=".csv") as table:
    ...     print(*row, sep=",", file=table)
    ...     print(*row.values(), sep=",", file=table, flush=True)
    ...     summary_of_runs = validate(table.name, jobs=1)
    >>> summary_of_runs["modelled"], summary_of_runs["rows_detail"][0]["label"][:4]
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
    """Rows of a CSV. Raises UserError for an unreadable file, more than MOST_BYTES or MOST_ROWS, or missing columns."""
    content = read_text(path, most=MOST_BYTES)
    delimiter = max(DELIMITERS, key=content.partition("\n")[0].count)
    reader = csv.DictReader(io.StringIO(content, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        rows: list[Row] = [resolve_paths(row, path) for row in islice(reader, MOST_ROWS + 1)]
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num + 1}: is not a CSV table ({error})") from None
    if len(rows) > MOST_ROWS:
        raise UserError(f"{path}:{reader.line_num}: more than {MOST_ROWS:,} rows; allowed: tables of fewer")
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


def outcomes_of(
    rows: Sequence[Row], *, jobs: int = -1, chosen: ProfileOverrides = AS_NAMED, predicted: RowPredictor | None = None
) -> list[RowOutcome]:
    """Predict rows on ``jobs`` processes (-1: all cores); the results are in order."""
    numbered = list(enumerate(rows, start=2))
    chunks = [numbered[i : i + CHUNK] for i in range(0, len(numbered), CHUNK)]
    parts = Workers(jobs).map(partial(_outcomes, chosen, predicted or predict_row), chunks)
    return [outcome for part in parts for outcome in part]


def _outcomes(chosen: ProfileOverrides, predicted: RowPredictor, chunk: Sequence[tuple[int, Row]]) -> list[RowOutcome]:
    return [outcome(line, row, chosen, predicted) for line, row in chunk]


def predict_row(row: Row, chosen: ProfileOverrides = AS_NAMED) -> tuple[Case, Measurements, Prediction]:
    """What a row was read as, what was measured, and the prediction. Raises Unmodelled or UserError with the reason."""
    actual = read_measurements(row)
    known = actual.step_time_s is not None or actual.peak_memory_bytes is not None or not actual.fits
    if not known and not has_rate(row):
        raise Unmodelled("nothing measured (no step time, no memory)")
    entry, prediction = choose_open_settings(chosen.case(row))
    return entry, actual if known else with_rates(actual, row, entry), prediction


def outcome(
    line: int, row: Row, chosen: ProfileOverrides = AS_NAMED, predicted: RowPredictor = predict_row
) -> RowOutcome:
    """Prediction and measurement of one row, or the reason why it is not modelled."""
    blank = RowOutcome(line, text(row, "source"), label(row), tuple(text(row, name) for name in CELL), None, None)
    try:
        entry, actual, prediction = predicted(row, chosen)
    except (Unmodelled, UserError) as reason:
        return replace(blank, reason=str(reason).partition("\n")[0])
    return replace(
        blank,
        measured=actual,
        prediction=prediction,
        suspect=suspect(row),
        read_as=entry.read_as,
        device=cluster_of(entry).device.name,
        stack=entry.stack,
    )


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
    about: dict[str, Any] = {"row": outcome.row, "source": outcome.source, "label": outcome.label}
    prediction, actual = outcome.prediction, outcome.measured
    if prediction is None or actual is None:
        return {**about, "reason": outcome.reason}
    about["read_as"] = outcome.read_as
    if actual.fits is None:  # a single kernel or collective
        return {
            **about,
            "predicted_time_s": prediction.step_time_s,
            "measured_time_s": actual.step_time_s,
            "time_error_percent": _percent(outcome.time_error),
        }
    certainty = prediction.certainty.model_dump(mode="json", include=CERTAINTY) if prediction.certainty else {}
    return {
        **about,
        "suspect": outcome.suspect,
        "predicted_step_time_s": prediction.step_time_s,
        "measured_step_time_s": actual.step_time_s,
        "time_error_percent": _percent(outcome.time_error),
        **certainty,
        "predicted_peak_gib": prediction.peak_reserved_bytes / GIB,
        "measured_peak_gib": _gib(actual.peak_memory_bytes),
        "memory_error_percent": _percent(outcome.memory_error),
        "predicted_static_gib": prediction.static_memory_bytes / GIB,
        "measured_static_gib": _gib(actual.static_memory_bytes),
        "static_error_percent": _percent(outcome.static_error),
        "predicted_fits": prediction.fits,
        "measured_fits": actual.fits,
    }


def _percent(error: float | None) -> float | None:
    return None if error is None else round(100 * error, 3)


def _gib(size: float | None) -> float | None:
    return None if size is None else size / GIB
