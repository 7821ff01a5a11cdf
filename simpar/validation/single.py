"""Tables of single kernels or collectives: every row predicted by the cost model alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simpar.validation import collectives, kernels
from simpar.validation.cells import Row, Unmodelled, format_cell, text
from simpar.validation.predict import Prediction
from simpar.validation.rows import Measurements
from simpar.validation.summary import RowOutcome


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
    found = Prediction(predicted, 0.0, 0.0, 0.0, fits=True)
    return RowOutcome(**words, measured=measured, prediction=found)  # type: ignore[arg-type]
