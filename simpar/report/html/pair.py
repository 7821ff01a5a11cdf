"""The page of two results: one scale of time for both timelines, figures side by side, and why they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simpar.files import write_atomic
from simpar.report.compare import differences, format_input, rows
from simpar.report.html import environment, fill_template
from simpar.report.html.data import legend, parts_of_step, series
from simpar.report.palette import MEMORY_COLOUR
from simpar.report.table import ReportTable
from simpar.report.timeline import MEMORY_PARTS
from simpar.report.words import headline, step_time_words

if TYPE_CHECKING:
    from simpar.report.result import Result

WITHOUT_TIMELINE = "No timelines: one of the two was written by a version that kept none."


def save_pair(results: tuple[Result, Result], path: str | Path, sources: tuple[str, str] = ("", "")) -> None:
    """Write the page of two results atomically; ``sources`` say where they come from."""
    write_atomic(path, render_pair(results, sources))


def render_pair(results: tuple[Result, Result], sources: tuple[str, str] = ("", "")) -> str:
    """The page as text; the same results give the same text."""
    return fill_template(environment().get_template("compare.html.j2"), pair_data(results, sources))


def pair_data(results: tuple[Result, Result], sources: tuple[str, str]) -> dict[str, Any]:
    """What the template needs; ``series`` is None unless both results have timelines."""
    comparison = differences(*results)
    letters = comparison.names
    asked = [(key, format_input(key, pair.a), format_input(key, pair.b)) for key, pair in comparison.asked.items()]
    ratio = " / ".join(reversed(letters))
    drawn = all(result.overview is not None for result in results)
    longest_s = max(result.step_time_s for result in results)
    legends = [pair for result in results for pair in legend(result)] if drawn else []
    return {
        "title": " and ".join(dict.fromkeys(str(result.setup.model.get("name")) for result in results)) + ": A and B",
        "results": [
            {
                "letter": letter,
                "headline": headline(result),
                "source": source,
                "step": step_time_words(result),
                "breakdown": [
                    asdict(bar) | {"share": bar.share * result.step_time_s / longest_s}
                    for bar in parts_of_step(result.time_breakdown_s.model_dump(), result.step_time_s)
                ],
            }
            for letter, result, source in zip(letters, results, sources, strict=True)
        ],
        "sentences": comparison.sentences,
        "figures": ReportTable(["figure", *letters, ratio], rows(comparison)),
        "asked": ReportTable(["asked", *letters], asked),
        "legend": list(dict.fromkeys(legends)),
        "memory_legend": [(part.replace("_", " "), MEMORY_COLOUR[part]) for part in MEMORY_PARTS],
        "series": joint_series(results, letters) if drawn else None,
        "without_timeline": WITHOUT_TIMELINE,
    }


def joint_series(results: Sequence[Result], letters: Sequence[str]) -> dict[str, Any]:
    """The series of several results as one: their stages one below the other, each until its own step ends."""
    each = [series(result) for result in results]
    stages = [
        {**stage, "name": f"{letter} {stage['name']}"}
        for letter, one in zip(letters, each, strict=True)
        for stage in one["stages"]
    ]
    return {**each[0], "step_ns": max(one["step_ns"] for one in each), "stages": stages}
