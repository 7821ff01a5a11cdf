"""Sweeps: one simulation per choice, with its figures and the exposed part of its communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simpar.dataclass import dataclass
from simpar.formats import SWEEP
from simpar.report.result import Result
from simpar.report.table import Column, ReportTable, text
from simpar.report.words import interval_words, probably
from simpar.units import GIB, PETA, TERA, format_bytes, format_count, format_figure, format_seconds

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

KEPT_COLUMNS = (
    "step_time_s", "step_time_interval_s", "tokens_per_s", "mfu", "bubble_fraction", "time_breakdown_s",
    "communication", "peak_reserved_bytes", "fits", "fit_probability",
)  # fmt: skip

NOT_SIMULATED = "not simulated"
TOKENS, FLOPS = "tokens/s", "model PFLOP/s"
RATES: dict[str, Callable[[Result], float]] = {
    TOKENS: lambda result: result.tokens_per_s,
    FLOPS: lambda result: result.speed.tflops_per_device * result.setup.cluster["devices"] * TERA / PETA,
}
"""What tells which choice is faster, by its name."""
MORE_FIGURES: dict[str, Callable[[Result], str]] = {
    TOKENS: lambda result: format_count(result.tokens_per_s),
    FLOPS: lambda result: format_figure(RATES[FLOPS](result)),
    "bubble": lambda result: f"{result.bubble_fraction:.1%}",
}
"""Columns of a table where choices differ in them."""


@dataclass(frozen=True)
class Swept:
    """One choice, as keys and values, and its result.

    Without a result, the choice was ``refused`` for that reason, or the sweep was ``interrupted`` before it. ``vpp``
    are the chunks per rank of its schedule, if they are others than the scenario's.
    """

    choice: Mapping[str, Any]
    result: Result | None = None
    refused: str = ""
    vpp: int | None = None

    @property
    def interrupted(self) -> bool:
        """Whether it was neither simulated nor refused."""
        return self.result is None and not self.refused

    @property
    def instead(self) -> str:
        """The text in place of its figures."""
        return NOT_SIMULATED if self.interrupted else "refused"


@dataclass(frozen=True, repr=False)
class Sweep:
    """Every combination of a sweep, in order; see :class:`Swept`."""

    rows: tuple[Swept, ...]

    @property
    def best(self) -> Swept | None:
        """The combination with most tokens/s among those that fit; None if none does.

        Of one batch, this is the one with the shortest step. Several models are compared by the FLOP/s that train
        them, of which a token of a larger one needs more.
        """
        rate = RATES[compared_by(self.rows)]
        fitting = ((-rate(row.result), at) for at, row in enumerate(self.rows) if row.result and row.result.fits)
        _, at = min(fitting, default=(0.0, None))
        return None if at is None else self.rows[at]

    @property
    def interrupted(self) -> bool:
        """Whether some combinations were not simulated because the user stopped."""
        return any(row.interrupted for row in self.rows)

    def to_frame(self) -> pd.DataFrame:
        """A row per combination, in SI units: keys, step, interval, MFU, memory, busy and exposed communication."""
        import pandas as pd

        table = si_table(self.rows)
        return pd.DataFrame(table.rows, columns=table.titles).replace("", None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``simpar simulate --over``."""
        return to_dict(self.rows)

    def __repr__(self) -> str:
        best = self.best
        if best is None or best.result is None:
            return f"<Sweep: {len(self.rows)} combinations, none fits>"
        step = format_seconds(best.result.step_time_s)
        return f"<Sweep: {len(self.rows)} combinations; best {choice_text(best.choice)}: {step}>"


def compared_by(rows: Sequence[Swept]) -> str:
    """The name of the rate by which choices are compared."""
    models = {row.result.setup.model.get("name") for row in rows if row.result}
    return FLOPS if len(models) > 1 else TOKENS


def choice_text(choice: Mapping[str, Any]) -> str:
    """A combination in words: "tp=2 zero=1"."""
    return " ".join(f"{key}={value}" for key, value in choice.items())


def chunks_text(rows: Sequence[Swept]) -> str:
    """Which schedules have chunks of their own: "vpp 2, not the scenario's, with zb-v"; "" if none has."""
    of_chunks: dict[int, list[str]] = {}
    for row in rows:
        if row.vpp is not None:
            name = next(str(value) for key, value in row.choice.items() if key.split(".")[-1] == "schedule")
            of_chunks[row.vpp] = list(dict.fromkeys([*of_chunks.get(row.vpp, ()), name]))
    parts = [f"vpp {vpp} with {', '.join(names)}" for vpp, names in sorted(of_chunks.items())]
    return f"chunks of the schedules, where they cannot run the scenario's: {'; '.join(parts)}" if parts else ""


def to_dict(rows: Sequence[Swept]) -> dict[str, Any]:
    """The sweep as plain data: every choice with the figures that a result has under the same keys."""
    result = []
    for row in rows:
        figures: dict[str, Any] = {"interrupted": True} if row.interrupted else {"refused": row.refused}
        if row.result:
            whole = row.result.to_dict()
            figures = {key: whole[key] for key in KEPT_COLUMNS}
        chunks = {} if row.vpp is None else {"vpp": row.vpp}
        result.append({"choice": dict(row.choice), **chunks, **figures})
    return {SWEEP.key: SWEEP.version, "sweep": result}


def table(rows: Sequence[Swept]) -> ReportTable:
    """A row per choice: keys, step, MFU, busy and exposed time by kind, memory.

    Where batches differ there are tokens/s, and where there are pipelines their bubble. On a narrow terminal
    communication is omitted first, then the interval.
    """
    more = _figures_that_differ([row.result for row in rows if row.result], compared_by(rows))
    kinds = list(dict.fromkeys(kind for row in rows if row.result for kind in row.result.communication))
    interval = Column("90 % interval", spare=len(kinds) + 1)
    sent_by = (Column(f"{kind} busy / exposed", spare=at) for at, kind in enumerate(kinds, start=1))
    result = ReportTable([*rows[0].choice, "step", interval, *more, "MFU", *sent_by, "memory", text()])
    for row in rows:
        values = tuple(map(str, row.choice.values()))
        if row.result is None:
            result.add(*values, *[""] * (4 + len(more) + len(kinds)), row.refused or row.instead)
            continue
        cells = []
        for kind in kinds:
            sent = row.result.communication.get(kind)
            cells.append(f"{format_seconds(sent.busy_s)} / {format_seconds(sent.exposed_s)}" if sent else "")
        memory = format_bytes(row.result.memory.peak_reserved_bytes)
        fits, known = "fits" if row.result.fits else "does not fit", row.result.certainty
        between = interval_words(known.step_time_interval_s) if known else ""
        sure = f", {probably(known.fit_probability)}" if known and row.result.fits else ""
        step = format_seconds(row.result.step_time_s)
        told = [MORE_FIGURES[name](row.result) for name in more]
        result.add(*values, step, between, *told, f"{row.result.mfu:.1%}", *cells, memory, fits + sure)
    return result


def _figures_that_differ(results: Sequence[Result], rate: str) -> list[str]:
    """Of MORE_FIGURES those that a comparison by a ``rate`` needs."""
    tokens = {result.setup.training["global_batch"] * result.setup.training["seq_len"] for result in results}
    bubbles = any(result.bubble_fraction for result in results)
    return [rate] * (len(tokens) > 1 or rate != TOKENS) + ["bubble"] * bubbles


def si_table(rows: Sequence[Swept]) -> ReportTable:
    """A row per choice, in SI units: keys, step, interval, MFU, memory, busy, exposed."""
    kinds = list(dict.fromkeys(kind for row in rows if row.result for kind in row.result.communication))
    head = ["step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s", "mfu", "peak_reserved_bytes", "fits"]
    sent = [f"{kind}_{part}_s" for kind in kinds for part in ("busy", "exposed")]
    table = ReportTable([*rows[0].choice, *head, "fit_probability", *sent, "refused", "interrupted"])
    for row in rows:
        if row.result is None:
            blank = [""] * (len(head) + 1 + len(sent))
            table.add(*row.choice.values(), *blank, row.refused, row.interrupted)
            continue
        result, known = row.result, row.result.certainty
        low_s, high_s = known.step_time_interval_s if known else ("", "")
        times = [result.communication.get(kind) for kind in kinds]
        table.add(
            *row.choice.values(), result.step_time_s, low_s, high_s, result.tokens_per_s, result.mfu,
            result.memory.peak_reserved_bytes, result.fits, known.fit_probability if known else "",
            *(value for each in times for value in ((each.busy_s, each.exposed_s) if each else ("", ""))), "", False,
        )  # fmt: skip
    return table


def save_sweep(rows: Sequence[Swept], path: str | Path, title: str, intro: str = "") -> None:
    """Write a page: a grid for two keys, and a list to choose from, shaded by the step time of what fits."""
    from simpar.report.html.choices import ChoiceFacts, save_choices

    rate = compared_by(rows)
    facts = [
        ChoiceFacts(
            shade=_shade(row, rows),
            rate=RATES[rate](row.result) if row.result else 0.0,
            memory_gib=row.result.memory.peak_reserved_bytes / GIB if row.result else 0.0,
            fits=bool(row.result and row.result.fits),
        )
        for row in rows
    ]
    page = {
        "title": title,
        "brand": "one simulated step for every choice",
        "note": "The darker, the faster; what does not fit has no shade.",
        "intro": intro,
        "grid": _grid(rows),
        "table": table(rows),
        "rate": rate,
        "keys": len(rows[0].choice),
    }
    save_choices(page, facts, path)


def _grid(rows: Sequence[Swept]) -> dict[str, Any] | None:
    """Cells by the values of two keys; None for another number of keys."""
    keys = list(rows[0].choice)
    if len(keys) != 2:
        return None
    down, across = (list(dict.fromkeys(row.choice[key] for row in rows)) for key in keys)
    cells = {(row.choice[keys[0]], row.choice[keys[1]]): row for row in rows}
    lines = [{"name": first, "cells": [_cell(cells[first, second], rows) for second in across]} for first in down]
    return {"keys": keys, "across": across, "lines": lines}


def _cell(row: Swept, rows: Sequence[Swept]) -> dict[str, str]:
    if row.result is None:
        return {"step": row.instead, "words": row.refused, "shade": _shade(row, rows)}
    memory = format_bytes(row.result.memory.peak_reserved_bytes)
    fits = "fits" if row.result.fits else "does not fit"
    words = f"MFU {row.result.mfu:.1%}, {memory}, {fits}"
    return {"step": format_seconds(row.result.step_time_s), "words": words, "shade": _shade(row, rows)}


def _shade(row: Swept, rows: Sequence[Swept]) -> str:
    """The shade of a cell: the fastest that fits is darkest, half its rate is white; empty if it does not fit."""
    rate = RATES[compared_by(rows)]
    rates = [rate(one.result) for one in rows if one.result and one.result.fits]
    if row.result is None or not row.result.fits:
        return "0"
    return f"{max(0.0, 2 - max(rates) / rate(row.result)) * 0.5:.3f}"


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Print the table with the fastest choice that fits marked; narrow terminals omit columns, which are named."""
    shown, best = table(sweep.rows), sweep.best
    lines = [
        ("*" if row is best else "", *line[:-1], line[-1] if row.result else row.instead)
        for row, line in zip(sweep.rows, shown.rows, strict=True)
    ]
    console.print(ReportTable([text(), *shown.columns], lines))
    for row in sweep.rows:
        if row.refused:
            console.print(f"{choice_text(row.choice)}: {row.refused}", soft_wrap=True, markup=False)
    if chunks := chunks_text(sweep.rows):
        console.print(chunks, soft_wrap=True, markup=False)
    if best:
        rate = compared_by(sweep.rows)
        console.print(f"* fastest that fits{f' (most {rate})' if rate in shown.titles else ''}")
