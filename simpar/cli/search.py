"""``simpar search``: the best layouts of a model on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simpar import formats
from simpar.cli.app import INTERRUPTED, JSON_HELP, app, console, json_out, working, write_out
from simpar.cli.axes import asks, is_searched, print_grid_axes, print_searched_axes
from simpar.cli.flags import FAILURE_FLAGS, RUN_FLAGS, ScenarioFlag, values_by_key, with_flags
from simpar.errors import Infeasible, UserError
from simpar.interrupts import written_whole

if TYPE_CHECKING:
    from simpar.learning.suggest import Suggestion
    from simpar.planner.problem import Problem
    from simpar.planner.progress import SearchProgress
    from simpar.planner.result import SearchResult
    from simpar.scenario import Scenario
    from simpar.workers import Workers

SEARCH_FLAGS = (
    ScenarioFlag(
        "--space",
        "Plans to search: uniform, alpa (a mesh for each stage, a sharding for each operator) or uneven (stages of "
        "different sizes, nodes of several kinds)",
    ),
    ScenarioFlag(
        "--objective",
        "regret (default: the shortest step; of plans that predictions cannot tell apart, the one that loses least "
        "where they err), time (shortest predicted step), cost, energy or devices (fewest that meet --deadline); with "
        "--tokens also days or dollars: how many GPUs to use, of --nodes and its halves or of --over nodes=8,16,32",
    ),
    ScenarioFlag(
        "--deadline", "Longest step allowed, such as 5 s; with objective days or dollars: longest run, such as 60d"
    ),
    ScenarioFlag("--budget", "With objective days or dollars: most US dollars that the run may cost, such as 2M"),
    ScenarioFlag("--top", "Number of candidates to show (default: 5)", kind=int),
    ScenarioFlag(
        "--fix",
        "Hold an axis at a value, or search only some values: axis=value or axis=value,value; may be repeated. Some "
        "axes are searched only if given here: optimizer, reduce_dtype, bucket_bytes, sync, ...; help lists all "
        "(docs/search_axes.md). micro_batch counts sequences of one data-parallel rank; with --space alpa, those of "
        "all devices of a stage",
        kind=list[str],
    ),
    ScenarioFlag("--schedules", "Pipeline schedules to consider, separated by commas"),
    ScenarioFlag(
        "--portable",
        "Search only plans that this export target can express, predicted for its stack unless --stack is given; any: "
        "also plans that no framework supports. Default: schedules, recomputation, ZeRO and overlaps that the stack's "
        "framework supports",
    ),
    ScenarioFlag(
        "--fit-probability",
        "Lowest probability with which a plan may fit (default: 0.95; 0.5: fits as predicted)",
        kind=float,
    ),
    ScenarioFlag("--headroom", "Fraction of device memory to leave free, in addition", kind=float),
    ScenarioFlag(
        "--over",
        "Run a search for every value: axis=value,value, with axis one of model, hardware, nodes, nvls, ...; help "
        "lists all",
        kind=list[str],
    ),
    ScenarioFlag(
        "--jobs",
        "Number of processes; -1: one per core (default: one per core, at most 8, for a single search on Linux; else "
        "1). The answer does not depend on it",
        kind=int,
    ),
    ScenarioFlag("--backend", "Whose processes: local (default), or dask, those of a cluster"),
    ScenarioFlag("--time-limit", "Stop after this time with the best plan so far and its gap: 60 (s), 10min, 2 h"),
    ScenarioFlag("--output,-o", "Write the best plan as plan.json"),
    ScenarioFlag(
        "--suggest",
        "Name this many layouts worth measuring before you decide, and write them as a table for simpar learn",
        kind=int,
    ),
    ScenarioFlag(
        "--suggest-to", "File for the table of --suggest (default: suggested.csv); plan files are written beside it"
    ),
    ScenarioFlag(
        "--rl",
        "Search placement, layouts of both sides and synchrony of the step that the section post_training describes, "
        "on at most --nodes; objective time (default) or cost",
        kind=bool,
    ),
    ScenarioFlag("--staleness", "With --rl: most updates that responses may be behind (default: 1)", kind=int),
    ScenarioFlag(
        "--rollout-precision",
        "With --rl: precisions of replicas to try, with commas between them (default: that of the section)",
    ),
    ScenarioFlag(
        "--cache-dtype", "With --rl: dtypes of keys and values to try, as bf16,fp8 (default: that of the section)"
    ),
    ScenarioFlag("--set", "Any scenario key: dotted.key=value; may be repeated", kind=list[str]),
    ScenarioFlag("--verbose,-v", "Also print which values were searched, held and left out", kind=bool),
    ScenarioFlag("--json", JSON_HELP),
    ScenarioFlag("--csv", "Write the candidates, the cells of --over, or the numbers of nodes as CSV, in SI units"),
)
FLAGS = (*RUN_FLAGS, *FAILURE_FLAGS)
PLAN = "plan."
OVER = {
    "model": "model", "hardware": "cluster.hardware", "nodes": "cluster.nodes", "seq-len": "training.seq_len",
    "global-batch": "training.global_batch", "nvls": "cluster.nvls", "sharp": "cluster.sharp",
}  # fmt: skip
"""Axes of a grid of searches and the scenario key that each sets."""


OF_REINFORCEMENT_LEARNING = ("staleness", "rollout_precision", "cache_dtype")
"""Options of a search with --rl alone."""
SWITCHES = ("nvls", "sharp")
"""Axes of a grid that are on or off: whether switches reduce within a node, and between nodes."""


@app.command(epilog="Example: simpar search --model gpt3-175b --hardware dgx-a100-80gb --nodes 512 --seq-len 2048 "
             "--global-batch 1536 -o plan.json")  # fmt: skip
@with_flags(
    (*FLAGS, *SEARCH_FLAGS),
    "A shipped scenario or a scenario file; values of searched axes in its plan are ignored",
    plan=True,
)
def search(scenario: str | None, **values: Any) -> int:
    """Find the certified best layout, and say why others are slower.

    Flags of the layout, such as --tp 8, hold an axis at that value.
    """
    from simpar.files import check_writable

    if _asks_for_axes(values):
        return 0
    if values["rl"]:
        from simpar.cli.post_training import run_post_training_search

        check_writable(values["json_"])
        flags, settings = values_by_key(values, FLAGS), list(values["set_"] or [])
        constraints = _constraints(values, _fixed(flags, settings, values["fix"] or []))
        return run_post_training_search(scenario, values, flags, constraints, _time_limit_s(values["time_limit"]))
    for name in OF_REINFORCEMENT_LEARNING:
        if values[name] is not None:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} {values[name]}: is of reinforcement learning; allowed: with --rl")
    is_of_run = _is_of_run(values)
    check_writable(*(values[name] for name in ("output", "json_", "csv")))
    if is_of_run:
        from simpar.cli.how_many import how_many_devices

        one_step = {**values, "objective": "time", "deadline": None}
        made = _problem(scenario, one_step, values_by_key(values, FLAGS))
        return how_many_devices(made, values, lambda status: _progress(values, 1, status, brief=True))
    if values["over"]:
        return _grid(scenario, values)
    from simpar.planner.api import find_space

    table = _table_to_fill(values)
    problem, loaded = _problem(scenario, values, values_by_key(values, FLAGS))
    if table:
        from simpar.learning.suggest import check

        check(problem)
    with _with_progress(values) as progress:
        try:
            result = find_space(values["space"], problem.cluster)(problem, progress)
        except Infeasible as reason:
            if not progress.is_user_stop:
                raise
            sys.stderr.write(f"{reason}\n")
            return INTERRUPTED
    chosen: list[Suggestion] = []
    if table and not progress.is_user_stop:
        from simpar.learning.suggest import suggestions

        chosen = suggestions(result, problem, values["suggest"])
        result = result.with_details({"suggestions": [one.to_dict() for one in chosen]})
    with written_whole():
        _write(result, values)
    if table and not progress.is_user_stop:
        lines = _suggested(chosen, table, values["suggest"], loaded)
        if values["json_"] != "-":
            for at, line in enumerate(lines):
                console().print(line, style=None if at else "bold", soft_wrap=True)
    return INTERRUPTED if progress.is_user_stop else 0


def _asks_for_axes(values: Mapping[str, Any]) -> bool:
    """Whether --over or --fix asks for the axes, which are printed then."""
    if asks(values["over"]):
        print_grid_axes(OVER, console())
    elif asks(values["fix"]):
        print_searched_axes(console())
    else:
        return False
    return True


def _is_of_run(values: Mapping[str, Any]) -> bool:
    """Whether the objective is about a whole run. Raises UserError for an unknown one, or a budget without one."""
    from simpar.budget.wanted import OBJECTIVES as OF_RUNS
    from simpar.files import choose
    from simpar.planner.problem import OBJECTIVES

    wanted = values["objective"]
    if wanted is not None:
        choose(wanted, (*OBJECTIVES, *OF_RUNS), "objective")
    if values["budget"] is not None and wanted not in OF_RUNS:
        raise UserError(f"--budget {values['budget']}: is of a whole run; allowed: with --objective days or dollars")
    return wanted in OF_RUNS


def _table_to_fill(values: Mapping[str, Any]) -> Path | None:
    """The table of --suggest, if it is asked for."""
    if values["suggest"] is None:
        if values["suggest_to"]:
            raise UserError(f"--suggest-to {values['suggest_to']}: needs --suggest, such as --suggest 3")
        return None
    from simpar.learning.suggest import table_to_fill

    if values["suggest"] < 1:
        raise UserError(f"--suggest {values['suggest']}: allowed: at least 1")
    if values["top"] == 1:
        raise UserError("--suggest: needs several candidates to tell apart; allowed: --top from 2")
    return table_to_fill(values["suggest_to"] or "suggested.csv", "--suggest-to")


def _suggested(chosen: Sequence[Suggestion], table: Path, most: int, loaded: Scenario) -> list[str]:
    """Write the layouts worth measuring to a table; returns lines that say so."""
    from simpar.learning.suggest import STEPS, learned_from, write
    from simpar.report.words import layout
    from simpar.units import HOUR_S, format_seconds, number_of

    lines = ["\nWorth measuring"]
    if not chosen:
        return [*lines, "- nothing: no run that may be made changes what is chosen"]
    write(chosen, table, loaded.model if isinstance(loaded.model, str) else None)
    for at, one in enumerate(chosen, start=1):
        where = number_of(one.nodes, "node")
        so_far = "" if at == 1 else " with those above"
        lines.append(
            f"- {where}: {layout(one.plan.model_dump(mode='json'))}; {format_seconds(one.step_time_s)} predicted, "
            f"{STEPS} steps take {one.device_s / HOUR_S:.2g} device hours; what is chosen then is {one.gain:.1%} faster"
            f"{so_far}"
        )
    if len(chosen) < most:
        lines.append("- nothing else that may be run tells more")
    named = loaded.cluster.hardware
    if not isinstance(named, str):
        return [*lines, f"fill in iteration_time_s of {table}, then learn from it with the file of the hardware"]
    runs, stack, hardware = learned_from(loaded.stack or str(chosen[0].plan.stack), named)
    lines.append(
        f"fill in iteration_time_s of {table}, then: simpar learn {' '.join([*runs, str(table)])} --stack {stack} "
        f"--hardware {hardware} -o ours.yaml"
    )
    return lines


def _problem(scenario: str | None, values: Mapping[str, Any], flags: Mapping[str, Any]) -> tuple[Problem, Scenario]:
    """The problem from flags and a scenario, and the scenario that they make."""
    from simpar.planner.problem import BY_REGRET, make_problem
    from simpar.scenario import load_scenario

    settings = list(values["set_"] or [])
    loaded = load_scenario(scenario, dict(flags), settings)
    fixed = _fixed(flags, settings, values["fix"] or [])
    inputs = loaded.inputs()
    problem = make_problem(
        inputs["model"],
        inputs["cluster"],
        inputs["training"],
        stack=inputs["stack"],
        base=_base(loaded),
        perturbation=inputs["perturbation"],
        objective=values["objective"] or BY_REGRET,
        constraints=_constraints(values, fixed),
    )
    return problem, loaded


def _grid(scenario: str | None, values: Mapping[str, Any]) -> int:
    """Search every combination of the values of --over."""
    from itertools import product

    from simpar.planner.answer.terminal import print_grid
    from simpar.planner.sweep import Cell, sweep

    if values["suggest"] is not None:
        raise UserError("--suggest: is of one search; allowed: without --over")
    if values["output"]:
        raise UserError("--output: a grid of searches has no single best plan; take one from --json")
    axes = dict(map(_over, values["over"]))
    cells = []
    for combination in product(*axes.values()):
        at = dict(zip(axes, combination, strict=True))
        flags = {**values_by_key(values, FLAGS), **{OVER[axis]: value for axis, value in at.items()}}
        cells.append(Cell(at, _problem(scenario, values, flags)[0]))
    workers, time_limit_s = _workers(values), _time_limit_s(values["time_limit"])
    with working(f"0 of {len(cells)} searches") as status:
        result = sweep(
            cells,
            space=values["space"],
            workers=workers,
            time_limit_s=time_limit_s,
            done=lambda count: status.update(f"{count} of {len(cells)} searches ..."),
        )
    problem = cells[0].problem
    training = problem.training
    common = f"{problem.cluster.profile.name}, {training.global_batch} x {training.seq_len} tokens"
    grid = {"axes": list(axes), "cells": result, "title": common, formats.GRID.key: formats.GRID.version}
    if values["csv"]:
        from simpar.planner.tables import cell_row
        from simpar.report.table import ReportTable

        records = [{**{axis: cell[axis] for axis in axes}, **cell_row(cell)} for cell in result]
        ReportTable.of_records(records).save_csv(values["csv"])
    if not json_out(grid, values["json_"]):
        print_grid(grid, console())
    return INTERRUPTED if any(cell.get("interrupted") for cell in result) else 0


def _over(text: str) -> tuple[str, list[Any]]:
    """An axis of a grid and its values; ``global_batch`` and ``global-batch`` are one."""
    from simpar.files import choose

    axis, _, listed = text.partition("=")
    items = [item.strip() for item in listed.split(",") if item.strip()]
    if not items:
        raise UserError(f"--over {text}: wants axis=value,value, such as nodes=1,2,4; --over help lists the axes")
    if is_searched(axis.strip().replace("-", "_")):
        raise UserError(f"--over {text}: is an axis of the search itself; allowed: --fix {text}, which restricts it")
    name = choose(axis.strip().replace("_", "-"), OVER, "axis of --over")
    if name in ("model", "hardware"):
        return name, items
    if name in SWITCHES:
        if not set(items) <= {"true", "false"}:
            raise UserError(f"--over {text}: allowed: true, false")
        return name, [item == "true" for item in items]
    if not all(item.isdecimal() and int(item) for item in items):
        raise UserError(f"--over {text}: allowed: whole numbers from 1")
    return name, [int(item) for item in items]


def _fixed(flags: Mapping[str, Any], settings: list[str], fixes: list[str]) -> dict[str, Any]:
    """Axes that flags, settings and --fix hold."""
    from simpar.files import suggest
    from simpar.plan.choices import name_of
    from simpar.planner.space.axes import ALL_NAMES, AXIS_NAMES
    from simpar.settings import parse_setting

    given = {**flags, **dict(map(parse_setting, settings))}
    result = {key.removeprefix(PLAN): value for key, value in given.items() if key.startswith(PLAN)}
    fixed = {name: value for name, value in result.items() if name in (*AXIS_NAMES, "dp") and value is not None}
    for text in fixes:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UserError(
                f"--fix {text}: wants axis=value, such as tp=8 or recompute=none,full; --fix help lists all"
            )
        axis = name.strip().removeprefix("--").replace("-", "_")
        if not is_searched(name_of(axis)):
            raise UserError(f"--fix {text}: {axis} is no axis{suggest(axis, ALL_NAMES)}; --fix help lists all")
        fixed[axis] = value
    return fixed


def _base(loaded: Scenario) -> Any:
    """The base plan of a problem: what of the scenario's plan is not an axis."""
    from simpar.plan.plan import Plan
    from simpar.planner.space.jobs import without_axes

    return without_axes(loaded.plan) if isinstance(loaded.plan, Plan) else loaded.plan


def _constraints(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
    from simpar.files import choose
    from simpar.frameworks import TARGETS
    from simpar.plan.schedules import SCHEDULES
    from simpar.planner.problem import ANY, Constraints
    from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY
    from simpar.units import parse_quantity

    deadline, names = values["deadline"], values["schedules"]
    try:
        deadline_s = None if deadline is None else parse_quantity(deadline, "seconds")
    except ValueError:
        raise UserError(f"--deadline {deadline}: needs a number and a unit, such as 5 s or 800 ms") from None
    if values["objective"] == "devices" and deadline_s is None:
        raise UserError('--objective devices: needs --deadline, such as --deadline "5 s"')
    schedules = None if names is None else tuple(choose(n.strip(), SCHEDULES, "schedule") for n in names.split(","))
    if values["portable"] is not None:
        choose(values["portable"], (*TARGETS, ANY), "target")
    return Constraints(
        headroom=values["headroom"] or 0.0,
        fit_probability=DEFAULT_FIT_PROBABILITY if values["fit_probability"] is None else values["fit_probability"],
        fixed=fixed,
        portable=values["portable"],
        schedules=schedules,
        deadline_s=deadline_s,
    )


def _workers(values: Mapping[str, Any]) -> Workers:
    """The processes of --jobs and --backend; by default a grid has one, so that it can be stopped."""
    from simpar.workers import Workers

    jobs, usual = values["jobs"], Workers.usual()
    if jobs is None and not values["backend"]:
        return Workers() if values["over"] else usual
    jobs = usual.jobs if jobs is None else jobs
    if jobs < -1 or jobs == 0:
        raise UserError(f"--jobs {jobs}: allowed: at least 1, or -1 for all cores")
    return Workers(jobs, values["backend"] or usual.backend)


def _time_limit_s(text: str | None) -> float | None:
    """Seconds of --time-limit, whose unit may be omitted."""
    from simpar.units import parse_quantity

    if text is None:
        return None
    try:
        seconds = float(text) if text.strip().replace(".", "", 1).isdecimal() else parse_quantity(text, "seconds")
    except ValueError:
        raise UserError(f"--time-limit {text}: allowed: seconds, or a number with a unit, such as 10min") from None
    if not 0 < seconds < float("inf"):
        raise UserError(f"--time-limit {text}: allowed: above 0 s")
    return seconds


@contextmanager
def _with_progress(values: Mapping[str, Any]) -> Iterator[SearchProgress]:
    """A Progress that draws a line of counts on standard error, if that is a terminal."""
    from simpar.planner.progress import TOP

    top = TOP if values["top"] is None else values["top"]
    if top < 1:
        raise UserError(f"--top {top}: allowed: at least 1")
    with working("enumerating") as status:
        yield _progress(values, top, status)


def _progress(values: Mapping[str, Any], top: int, status: Any, *, brief: bool = False) -> SearchProgress:
    """The Progress of one search, which writes its counts to a status."""
    from simpar.planner.progress import SearchProgress, in_words

    return SearchProgress(
        top=top,
        report=lambda *said: status.update(f"{in_words(*said)} ..."),
        brief=brief,
        whole=bool(values["json_"] or values["verbose"]),
        time_limit_s=_time_limit_s(values["time_limit"]),
        workers=_workers(values),
    )


def _write(result: SearchResult, values: Mapping[str, Any]) -> None:
    from simpar.planner.answer.terminal import print_search

    if values["output"]:
        result.best.plan.save(values["output"])
    if values["csv"]:
        from simpar.planner.tables import rows
        from simpar.report.table import ReportTable

        ReportTable.of_records(rows(result)).save_csv(values["csv"])
    if values["json_"] == "-":
        write_out(result.to_json() + "\n")
        return
    if values["json_"]:
        result.save(values["json_"])
    print_search(result, console(), is_verbose=bool(values["verbose"]), saved=values["output"])
