"""What a search found, for a page: candidates in a table, ties, the certificate, and time against memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from simpar.planner.answer.terminal import certificate, describe, ties
from simpar.report.figures import canvas, render_figure
from simpar.report.palette import BACKWARD, FORWARD, INK
from simpar.report.table import ReportTable
from simpar.report.words import interval_words, probably
from simpar.units import GIB, MS, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simpar.planner.result import SearchResult


CANDIDATES = "candidates, 95 % sure to fit"
FRONT = "the shortest step found in so much memory"


def found_section(result: SearchResult) -> dict[str, Any]:
    """Sentences, a table of the candidates and the picture as SVG. Raises Infeasible without a plan."""
    svg = render_figure(plot_front(result), "svg").decode()
    return {
        "lines": [*certificate(result), *ties(result)],
        "table": candidate_table(result),
        "picture": svg[svg.index("<svg") :],
    }


def candidate_table(result: SearchResult) -> ReportTable:
    """A row a candidate, best first; tied ones are marked."""
    table = ReportTable(["", "plan", "step", "90 % interval", "MFU", "memory", "fits", "tied"])
    for each in result.candidates:
        figures = each.figures
        interval, sure = figures.get("step_time_interval_s"), figures.get("fit_probability")
        table.add(
            str(each.rank),
            describe(each.to_dict()["plan"]),
            format_seconds(each.step_time_s),
            interval_words(interval) if interval else "",
            f"{each.mfu:.1%}",
            format_bytes(figures["peak_reserved_bytes"]),
            probably(sure) if sure is not None else "",
            "yes" if figures.get("tied") else "",
        )
    return table


def plot_front(result: SearchResult) -> Figure:
    """Step against the memory that a plan surely fits in: the candidates, and the plans that nothing beats in both."""
    figure, axes = canvas(4.0, width=8.5)
    others = [_point(one) for one in result.details.get("pareto", ())]
    needed = {seconds: memory for memory, seconds in others}  # of candidates that are among them
    points = [
        (needed.get(each.step_time_s, _surely_bytes(each.figures) / GIB), each.step_time_s)
        for each in result.candidates
    ]
    front = _unbeaten([*points, *others]) if others else []
    longest_s = max(seconds for _, seconds in (*points, *front))
    scale, unit = (1.0, "s") if longest_s >= 1 else (MS, "ms")
    if front:
        axes.step(*_columns(front, scale), where="post", color=BACKWARD, lw=1.2, label=FRONT)
        axes.plot(*_columns(front, scale), "s", color=BACKWARD, ms=6)
    axes.plot(*_columns(points, scale), "o", color=FORWARD, ms=7, label=CANDIDATES, mec=INK, mew=0.5)
    memory, seconds = points[0][0], points[0][1] / scale
    axes.annotate("1", (memory, seconds), (8, 0), textcoords="offset points", va="center", fontsize=9, color=INK)
    axes.set_xlabel("memory in which a plan surely fits, GiB", color=INK)
    axes.set_ylabel(f"step ({unit})", color=INK)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _surely_bytes(figures: Mapping[str, Any]) -> float:
    """The upper end of the 90 % interval of what is reserved: 95 % of peaks are below. Files of old have none."""
    interval = figures.get("reserved_memory_interval_bytes")
    return float(interval[1] if interval else figures["peak_reserved_bytes"])


def _point(one: Mapping[str, Any]) -> tuple[float, float]:
    """Memory in GiB and seconds of a plan on the front."""
    return one["needed_bytes"] / GIB, one["step_time_s"]


def _unbeaten(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of pairs of memory and seconds those with no shorter step in as little memory, from the least memory on."""
    kept: list[tuple[float, float]] = []
    for memory, seconds in sorted(points):
        if not kept or seconds < kept[-1][1]:
            kept.append((memory, seconds))
    return kept


def _columns(points: list[tuple[float, float]], scale: float) -> tuple[list[float], list[float]]:
    return [memory for memory, _ in points], [seconds / scale for _, seconds in points]
