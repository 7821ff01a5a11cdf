"""Candidates of a search as rows, as an HTML table for notebooks, and as one line of text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from simpar.plan import flat
from simpar.plan.choices import COLUMNS
from simpar.report.table import ReportTable
from simpar.report.words import layout, probably
from simpar.units import GIB, format_seconds

if TYPE_CHECKING:
    from simpar.planner.result import SearchResult


def rows(result: SearchResult) -> list[dict[str, Any]]:
    """A row per candidate: rank, figures in SI units, axes, and the choices in which most plans differ."""
    return [_row(one.to_dict()) for one in result.candidates]


def cell_row(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The best plan of a cell of a grid of searches as a row; without a plan, the reason."""
    return _row(cell["best"]) if cell["best"] else {"reason": cell["reason"]}


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    plan = one["plan"]
    figures = {key: value for key, value in one.items() if value is None or isinstance(value, int | float)}
    interval = one.get("step_time_interval_s")
    if interval:
        figures |= {"step_time_low_s": interval[0], "step_time_high_s": interval[1]}
    return {**figures, **{name: flat.get_flat(plan, name) for name in COLUMNS}}


def describe_briefly(result: SearchResult) -> str:
    """A search result in one line."""
    if not result.candidates:
        return "<SearchResult: no plan>"
    best, sure = result.best, "certified" if result.certified_optimal else f"gap {result.gap:.2%}"
    plan = layout(best.to_dict()["plan"])
    return (
        f"<SearchResult: {len(result.candidates)} candidates, {sure}; best {plan}: "
        f"{format_seconds(best.step_time_s)}, MFU {best.mfu:.1%}>"
    )


def to_html(result: SearchResult) -> str:
    """The question, the candidates, and how sure the answer is, for a notebook."""
    if not result.candidates:
        return f"<p>{escape(describe_briefly(result))}</p>"
    rows = [
        (
            str(one.rank), format_seconds(one.step_time_s), f"{one.mfu:.1%}",
            f"{one.figures['peak_reserved_bytes'] / GIB:.1f}", probably(one.figures["fit_probability"]),
            layout(one.to_dict()["plan"]),
        )
        for one in result.candidates
    ]  # fmt: skip
    table = ReportTable(("", "step", "MFU", "reserved GiB", "fits", "plan"), rows)
    sure = "certified" if result.certified_optimal else f"not certified: gap {result.gap:.2%}"
    model, hardware = result.details["model"]["name"], result.details["cluster"]["hardware"]
    asked = f"{model} on {hardware}: best {result.objective}, {sure}"
    return f"<p><b>{escape(asked)}</b></p>{table.html()}"
