"""``simpar search``: the best layouts of a model on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simpar.cli.app import INTERRUPTED, JSON_HELP, app, console
from simpar.cli.flags import SCENARIO_FLAGS, Flag, scenario_flags, with_flags
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.scenario import Scenario
    from simpar.search.result import Counts, SearchResult
    from simpar.search.watch import Watch

SEARCH_FLAGS = (
    Flag(
        "--space",
        "",
        str,
        "uniform, alpa (stages and operators of their own) or uneven (cuts, nodes of several kinds)",
    ),
    Flag("--objective", "", str, "time, cost, energy or devices (fewest for --deadline)"),
    Flag("--deadline", "", str, "Longest step, such as 5 s"),
    Flag("--top", "", int, "Candidates to show; default 5"),
    Flag("--fix", "", list[str], "axis=value or axis=value,value; may be repeated"),
    Flag("--schedules", "", str, "Pipeline schedules to consider, separated by commas"),
    Flag("--portable", "", str, "Only plans that this export target can express"),
    Flag("--headroom", "", float, "Fraction of device memory to leave free"),
    Flag("--output,-o", "", str, "Write the best plan as plan.json"),
    Flag("--set", "", list[str], "Any scenario key: dotted.key=value; may be repeated"),
    Flag("--json", "", str, JSON_HELP),
)
PLAN = "plan."


@app.command(epilog="Example: simpar search --model gpt3-175b --hardware dgx-a100-80gb --nodes 512 --seq-len 2048 "
             "--global-batch 1536 -o plan.json")  # fmt: skip
@with_flags(
    (*SCENARIO_FLAGS, *SEARCH_FLAGS), "A shipped scenario or a scenario file; its layout is left aside"
)
def search(scenario: str | None, **values: Any) -> int:
    """Find the best layout, certified, with what the others lose by. Layout flags fix an axis."""
    from simpar.scenario import load_scenario

    flags, settings = scenario_flags(values), list(values["set_"] or [])
    loaded = load_scenario(scenario, flags, settings)
    fixed = _fixed(flags, settings, values["fix"] or [])
    from simpar.search.api import search as find

    inputs = loaded.inputs()
    with _watched(values["top"]) as watch:
        found = find(
            inputs["model"],
            inputs["cluster"],
            inputs["training"],
            space=values["space"],
            watch=watch,
            stack=inputs["stack"],
            base=_base(loaded),
            perturbation=inputs["perturbation"],
            objective=values["objective"] or "time",
            constraints=_constraints(values, fixed),
        )
    _write(found, values)
    return INTERRUPTED if watch.interrupted else 0


def _fixed(flags: Mapping[str, Any], settings: list[str], fixes: list[str]) -> dict[str, Any]:
    """Axes that flags, settings and --fix hold."""
    from simpar.scenario import parse_setting
    from simpar.search.axes import AXIS_NAMES

    given = {**flags, **dict(map(parse_setting, settings))}
    found = {key.removeprefix(PLAN): value for key, value in given.items() if key.startswith(PLAN)}
    fixed = {
        name: value for name, value in found.items() if name in (*AXIS_NAMES, "dp") and value is not None
    }
    for text in fixes:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UserError(f"--fix {text}: wants axis=value, such as tp=8 or recompute=none,full")
        fixed[name.strip()] = value
    return fixed


def _base(loaded: Scenario) -> Any:
    """What of the scenario's plan is no axis of the search."""
    from simpar.plan.plan import Plan
    from simpar.search.space import without_axes

    return without_axes(loaded.plan) if isinstance(loaded.plan, Plan) else loaded.plan


def _constraints(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
    from simpar.files import choose
    from simpar.plan.schedules import SCHEDULES
    from simpar.search.problem import Constraints
    from simpar.units import parse_quantity

    deadline, names = values["deadline"], values["schedules"]
    try:
        deadline_s = None if deadline is None else parse_quantity(deadline, "seconds")
    except ValueError as error:
        raise UserError(f"--deadline {deadline}: {error}") from None
    if values["objective"] == "devices" and deadline_s is None:
        raise UserError('--objective devices: needs --deadline, such as --deadline "5 s"')
    schedules = (
        None if names is None else tuple(choose(n.strip(), SCHEDULES, "schedule") for n in names.split(","))
    )
    return Constraints(
        headroom=values["headroom"] or 0.0,
        fixed=fixed,
        portable=values["portable"],
        schedules=schedules,
        deadline_s=deadline_s,
    )


@contextmanager
def _watched(top: int | None) -> Iterator[Watch]:
    """A watch that draws a line of counts on a terminal's standard error."""
    from rich.console import Console

    from simpar.search.watch import Watch

    if top is not None and top < 1:
        raise UserError(f"--top {top}: allowed: at least 1")
    with Console(stderr=True).status("enumerating ...") as status:
        yield Watch(
            top=top or 5, report=lambda phase, counts, best: status.update(_line(phase, counts, best))
        )


def _line(phase: str, counts: Counts, best: float | None) -> str:
    so_far = "" if best is None else f", best {best:.4g}"
    return f"{phase}: {counts.bounded:,} bounded, {counts.swept:,} swept, {counts.simulated:,} simulated{so_far} ..."


def _write(found: SearchResult, values: Mapping[str, Any]) -> None:
    from simpar.search.terminal import print_search

    if values["output"]:
        found.best.plan.save(values["output"])
    if values["json_"] == "-":
        sys.stdout.write(found.to_json() + "\n")
        return
    if values["json_"]:
        found.save(values["json_"])
    print_search(found, console())
