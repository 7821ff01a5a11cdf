"""The page "why this plan": the question, the choice, its lead, its uncertainty, and what would change it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simpar.files import write_atomic
from simpar.planner.answer.found import found_section
from simpar.planner.answer.terminal import certificate, describe, describe_baseline, describe_whole_run, headline, ties
from simpar.planner.result import SearchResult
from simpar.report.html import environment, fill_template
from simpar.report.run_rows import figure
from simpar.report.words import interval_words, probably
from simpar.units import HOUR_S, format_bytes, format_energy, format_seconds, number_of

FOLDER = Path(__file__).parent


def save_summary(result: SearchResult, path: str | Path) -> None:
    """Write the page atomically; equal searches give equal bytes. Raises Infeasible without a plan."""
    save_sections(
        plan_words(result), summary(result), path, {**found_section(result), "lines": ()}
    )  # lines stand above


def save_sections(
    title: str, sections: list[dict[str, Any]], path: str | Path, section: dict[str, Any] | None = None
) -> None:
    """Write a page of sections, each with a title and sentences, and what a search found."""
    page = {"plan": title, "sections": sections, "found": section}
    write_atomic(path, fill_template(environment(FOLDER).get_template("summary.html.j2"), page))


def plan_words(result: SearchResult) -> str:
    """The chosen plan in a few words."""
    return describe(result.best.to_dict()["plan"])


def summary(result: SearchResult) -> list[dict[str, Any]]:
    """The five sections, each a title and its sentences. Raises Infeasible without a plan."""
    parts = {
        "What was asked": _asked(result),
        "What was chosen": _chosen(result),
        "By how much": _by_how_much(result),
        "How sure": _how_sure(result),
        "What would change it": _what_would_change_it(result),
    }
    return [{"title": title, "lines": list(lines)} for title, lines in parts.items()]


def _asked(result: SearchResult) -> Iterator[str]:
    yield headline(result)
    asked = result.details.get("constraints", {})
    if asked.get("deadline_s"):
        yield f"a step in at most {format_seconds(asked['deadline_s'])}"
    if asked.get("fit_probability"):
        yield f"fits in memory {probably(asked['fit_probability'])}"
    if asked.get("portable"):
        yield f"can be expressed by {asked['portable']}"
    fixed = asked.get("fixed") or {}
    for name, values in fixed.items():
        yield f"{name} held at {', '.join(map(str, values if isinstance(values, list | tuple) else [values]))}"


def _chosen(result: SearchResult) -> Iterator[str]:
    best, figures = result.best, result.best.figures
    yield plan_words(result)
    interval = figures.get("step_time_interval_s")
    step = format_seconds(best.step_time_s)
    around = f" (90 % interval {interval_words(interval)})" if interval else ""
    yield f"a step of {step}{around}, {best.mfu:.1%} MFU"
    yield f"{format_bytes(figures['peak_reserved_bytes'])} of memory reserved on the fullest device"
    if (usd := figures.get("cost_usd_per_step")) is not None:
        price = figure(usd * HOUR_S / best.step_time_s / best.plan.world_size)
        yield f"{usd:.3g} USD a step, at {price} USD per GPU-hour (--price-per-gpu-hour sets another)" + (
            f", {format_energy(joule)}" if (joule := figures.get("energy_j_per_step")) is not None else ""
        )
    yield from describe_whole_run(best)


def _by_how_much(result: SearchResult) -> Iterator[str]:
    yield from result.best.why
    for one in result.details.get("naive", ()):
        yield describe_baseline(one)


def _how_sure(result: SearchResult) -> Iterator[str]:
    yield from certificate(result)
    yield f"the plan is {probably(result.best.figures['fit_probability'])} to fit"
    support = result.best.figures.get("support")
    shared = "in stack, device, kind of model, bits and lengths"
    if support:
        yield f"the interval rests on {number_of(support, 'set')} of measured runs like it {shared}"
    elif support == 0:
        yield f"no measured run is like this one {shared}: the interval is wide"


def _what_would_change_it(result: SearchResult) -> Iterator[str]:
    yield from ties(result)
    for one in result.candidates[1:3]:
        yield f"{describe(one.to_dict()['plan'])}: {'; '.join(one.why)}"
    for point in result.details.get("pareto", ())[1:2]:
        size = format_bytes(point["needed_bytes"])
        yield f"with {size} of memory: {describe(point['plan'])}, {format_seconds(point['step_time_s'])} a step"
    scope = result.details.get("scope", {})
    for words in scope.get("left_out", ()):
        yield f"not searched: {words}"
    yield "another software stack, other hardware, or measured runs of your own (simpar learn) may rank plans otherwise"
