"""One simulation for every choice of a sweep: what it comes to, and how much of its communication anyone waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simpar.report.result import SCHEMA_VERSION, Result
from simpar.report.terminal import interval_words, probably
from simpar.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

KEPT = (
    "step_time_s", "step_time_interval_s", "tokens_per_s", "mfu", "bubble_fraction", "time_breakdown_s",
    "communication", "peak_reserved_bytes", "fits", "fit_probability",
)  # fmt: skip


@dataclass(frozen=True)
class Swept:
    """One choice, as keys and values, and its result; where it cannot be, None and the reason."""

    choice: Mapping[str, str]
    result: Result | None = None
    refused: str = ""


def to_dict(rows: Sequence[Swept]) -> dict[str, Any]:
    """The sweep as plain data: every choice with the figures that a result has under the same keys."""
    found = []
    for row in rows:
        whole = row.result.to_dict() if row.result else {}
        figures = {key: whole[key] for key in KEPT} if row.result else {"refused": row.refused}
        found.append({"choice": dict(row.choice), **figures})
    return {"schema_version": SCHEMA_VERSION, "sweep": found}


def table(rows: Sequence[Swept]) -> list[tuple[str, ...]]:
    """Names of columns, then a row for every choice: keys, step, MFU, busy and exposed by kind, memory."""
    kinds = list(dict.fromkeys(kind for row in rows if row.result for kind in row.result.communication))
    columns = (f"{kind} busy / exposed" for kind in kinds)
    head = (*rows[0].choice, "step", "nine of ten", "MFU", *columns, "memory", "")
    lines = [head]
    for row in rows:
        values = tuple(row.choice.values())
        if row.result is None:
            lines.append((*values, *[""] * (len(head) - len(values) - 1), row.refused))
            continue
        cells = []
        for kind in kinds:
            sent = row.result.communication.get(kind)
            cells.append(f"{format_seconds(sent.busy_s)} / {format_seconds(sent.exposed_s)}" if sent else "")
        memory = format_bytes(row.result.memory.peak_reserved_bytes)
        fits, known = "fits" if row.result.fits else "does not fit", row.result.certainty
        interval = interval_words(known.step_time_interval_s) if known else ""
        sure = f", {probably(known.fit_probability)}" if known and row.result.fits else ""
        step = format_seconds(row.result.step_time_s)
        lines.append((*values, step, interval, f"{row.result.mfu:.1%}", *cells, memory, fits + sure))
    return lines


def print_sweep(rows: Sequence[Swept], console: Console) -> None:
    """Write the table, the fastest choice that fits marked."""
    from rich.table import Table

    head, *lines = table(rows)
    times = [row.result.step_time_s if row.result and row.result.fits else float("inf") for row in rows]
    best = times.index(min(times)) if min(times) < float("inf") else -1
    drawn = Table(box=None, pad_edge=False)
    for at, name in enumerate(("", *head)):
        drawn.add_column(name, justify="left" if at in (0, len(head)) else "right", no_wrap=at < len(head))
    for at, line in enumerate(lines):
        drawn.add_row("*" if at == best else "", *line)
    console.print(drawn)
    if best >= 0:
        console.print("* fastest that fits")
