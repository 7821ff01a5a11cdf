"""The results for a state: the figures of a step at once, its timeline and memory over time, and changes to try."""

from collections.abc import Callable, Mapping
from typing import Any

from simpar.errors import UserError
from simpar.neighbours import advise
from simpar.operate.whole_run import add_operation
from simpar.posttraining import page as rl_page
from simpar.posttraining.answer import PostTrainingResult
from simpar.posttraining.simulate import post_train
from simpar.report.html import sections
from simpar.report.html.data import page_data, series
from simpar.report.result import Result
from simpar.report.words import layout
from simpar.simulation import simulate
from simpar.ui.choices import choices
from simpar.ui.section import fields
from simpar.ui.state import ResolvedRequest, as_state

NUMBER_SECTIONS = ("figures", "how_sure", "why", "memory_key", "memory_table", "breakdown", "communication")
"""Sections of the result page that need no timeline."""
DRAWN_SECTIONS = ("timeline", "memory_chart", "why", "breakdown")
RL_DRAWN_SECTIONS = ("timeline", "memory_chart")


def simulate_request(asked: ResolvedRequest, *, with_timeline: bool) -> Result:
    """The step of a state. Raises UserError if it cannot be simulated."""
    return simulate(**asked.inputs(), with_timeline=with_timeline)


def numbers(asked: ResolvedRequest) -> dict[str, Any]:
    """Figures in words, figures for pins in SI units, and sections that need no timeline. Raises UserError."""
    result = simulate_request(asked, with_timeline=False)
    known, bill, page = result.certainty, result.bill, page_data(result)
    words = (
        ("being counted", "the whole run is without them so far")
        if asked.cluster.profile.reliability
        else ("not counted", "the hardware profile has no failure rates")
    )
    page["figures"] = [_without_failures(figure, *words) for figure in page["figures"]]
    return {
        "state": as_state(asked.scenario),
        "title": page["title"],
        "layout": layout(result.setup.plan),
        "plan": result.setup.plan,
        "fits": result.fits,
        "values": {
            "step_time_s": result.step_time_s,
            "step_time_interval_s": known and list(known.step_time_interval_s),
            "mfu": result.mfu,
            "tokens_per_s": result.tokens_per_s,
            "peak_reserved_bytes": result.memory.peak_reserved_bytes,
            "capacity_bytes": result.memory.capacity_bytes,
            "fit_probability": known and known.fit_probability,
            **bill.model_dump(),
        },
        "html": sections(page, *NUMBER_SECTIONS),
    }


def _without_failures(figure: dict[str, str], value: str, detail: str) -> dict[str, str]:
    """The figure in place of failures until they are counted, or if they cannot be."""
    return {**figure, "value": value, "detail": detail} if figure["name"] == "failures" else figure


def simulate_rl(asked: ResolvedRequest) -> PostTrainingResult:
    """The step of reinforcement learning of a state. Raises UserError if it cannot be simulated."""
    scenario, section = asked.scenario, asked.scenario.post_training
    assert section is not None, "asked for only with a section"
    if scenario.perturbation != type(scenario.perturbation)():
        raise UserError("perturbation: is of one update; allowed with post_training: none")
    return post_train(asked.graph, asked.cluster, asked.plan, scenario.training, section, stack=asked.stack)


def rl_parts(asked: ResolvedRequest, *, brief: bool) -> list[dict[str, Any]]:
    """Parts of the answer for a step of reinforcement learning: figures and sections; its charts unless ``brief``.

    Raises UserError.
    """
    result = simulate_rl(asked)
    page = rl_page.page_data(result)
    told = {
        "state": as_state(asked.scenario),
        "title": page["title"],
        "layout": page["title"].partition(": ")[2],
        "plan": result.figures.setup["plan"],
        "fits": result.fits,
        "values": rl_page.values(result.figures),
        "html": {**rl_page.sections(page, *NUMBER_SECTIONS), "what_to_try": ""},
    }
    drawn = {"html": rl_page.sections(page, *RL_DRAWN_SECTIONS), "series": page["series"]}
    return [{"numbers": told}, *([] if brief else [{"drawn": drawn}])]


def section_fields(asked: ResolvedRequest, names: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """The form of a section, as plain data."""
    section = asked.scenario.post_training
    return [] if section is None else fields(section, tuple(names["models"]), tuple(names["hardware"]))


def add_failures(result: Result, asked: ResolvedRequest) -> dict[str, Any] | None:
    """The figures with failures in the whole run, if it has one and a reliability is known."""
    counted = add_operation(result, asked.inputs(), None)
    if counted is result or counted.whole_run is None:
        return None
    return {"html": sections(page_data(counted), "figures"), "whole_run": counted.whole_run.model_dump()}


def legal(asked: ResolvedRequest) -> list[dict[str, Any]]:
    """Every choice of the plan with its legal values, as plain data."""
    return [choice.to_dict() for choice in choices(asked)]


def draw_sections(result: Result) -> dict[str, Any]:
    """The timeline sections of a result, and its series."""
    return {"html": sections(page_data(result), *DRAWN_SECTIONS), "series": series(result)}


def try_neighbours(result: Result, asked: ResolvedRequest, progress: Callable[[str], None]) -> dict[str, Any]:
    """The neighbours of a simulated state, best first, as the result page lists them, each with its change."""
    advised = advise(result, asked.inputs(), progress)
    return {
        "html": sections(page_data(advised), "what_to_try"),
        "trials": [trial.model_dump() for trial in advised.why.trials],
    }
