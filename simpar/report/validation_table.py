"""Errors of predictions against measurements as terminal output of ``simpar validate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simpar.report.table import ReportTable, print_lines, text
from simpar.report.words import format_significant

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 40
"""Tables up to this many rows are listed row by row."""
MIN_NAME_WIDTH = 20
"""Characters down to which names of runs and sources wrap."""
MOST_READ = 4
"""How many kinds of clusters and software are named per source."""


def print_validation(answer: Mapping[str, Any], console: Console) -> None:
    """Print errors of predictions against measurements: per source, overall, and rows not modelled.

    ``answer`` is the JSON of ``simpar validate``; a short table is also listed row by row.
    """
    rows = answer["rows_detail"]
    if len(rows) <= MAX_ROWS:
        console.print(_validation_rows(rows))
        console.print()
    console.print(_validation_sources(answer))
    for name, figures in answer["by_source"].items():
        if read := figures.get("read_as"):
            console.print(f"read as, {name}: {_read(read)}", soft_wrap=True)
    for name, meant in answer.get("columns_not_read", {}).items():
        console.print(f"column {name} is not read{'; ' if meant else ''}{meant}", soft_wrap=True)
    for title, counts in (("Not modelled", answer["unmodelled_reasons"]), ("Suspect", answer["suspect_rows"])):
        print_lines(console, (f"{count} rows: {reason}" for reason, count in counts.items()), title, mark="- ")


_OF_RUNS = {
    "predicted s": "predicted_step_time_s", "measured s": "measured_step_time_s", "error %": "time_error_percent",
    "predicted GiB": "predicted_peak_gib", "measured GiB": "measured_peak_gib", "memory %": "memory_error_percent",
}  # fmt: skip
_OF_OPERATIONS = {"predicted s": "predicted_time_s", "measured s": "measured_time_s", "error %": "time_error_percent"}


def _validation_rows(rows: Sequence[Mapping[str, Any]]) -> ReportTable:
    single = any("predicted_time_s" in row for row in rows)
    columns = _OF_OPERATIONS if single else _OF_RUNS
    table = ReportTable([text("operation" if single else "run", least=MIN_NAME_WIDTH), *columns])
    for row in rows:
        if "reason" in row:
            table.add(f"{row['label']}: not modelled: {row['reason']}")
        else:
            table.add(row["label"], *(_blank_or_three(row[key]) for key in columns.values()))
    return table


def _validation_sources(answer: Mapping[str, Any]) -> ReportTable:
    columns = {
        "rows": "rows", "modelled": "modelled", "time %": "time_ape_median", "p90 %": "time_ape_p90",
        "in interval": "interval_coverage", "half interval": "interval_width_median",
        "memory %": "memory_ape_median", "static %": "static_memory_ape_median", "tau": "kendall_tau",
        "regret %": "regret_mean",
    }  # fmt: skip
    sources = [*answer["by_source"].items(), ("all", answer)]
    columns = {name: key for name, key in columns.items() if any(of[key] is not None for _, of in sources)}
    rows = [(name, *(_blank_or_three(of[key]) for key in columns.values())) for name, of in sources]
    return ReportTable([text("median errors by source", least=MIN_NAME_WIDTH), *columns], rows)


def _read(counts: Mapping[str, int]) -> str:
    """What the words of a source were read as, most frequent first."""
    shown = [f"{words} ({rows})" for words, rows in list(counts.items())[:MOST_READ]]
    rest = len(counts) - MOST_READ
    return "; ".join(shown) + (f"; and {rest} more" if rest > 0 else "")


def _blank_or_three(value: float | None) -> str:
    return "" if value is None else format_significant(value)
