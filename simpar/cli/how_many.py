"""``simpar search --objective days|dollars``: how many devices a run of given tokens needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from simpar.cli.app import INFEASIBLE, INTERRUPTED, console, json_out, working
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.planner.problem import Problem
    from simpar.planner.progress import SearchProgress
    from simpar.scenario import Scenario

UNUSED = ("suggest", "suggest_to", "top")
"""Flags of a search that apply to a single number of nodes."""


def how_many_devices(
    made: tuple[Problem, Scenario], values: Mapping[str, Any], progress: Callable[[Any], SearchProgress]
) -> int:
    """Search every number of nodes, print the run on each; returns the exit code.

    ``progress`` makes the Progress of one search, which draws on a status. Raises UserError.
    """
    from simpar.budget.answer import how_many
    from simpar.budget.nodes import Search
    from simpar.budget.terminal import print_how_many
    from simpar.budget.wanted import Wanted
    from simpar.report.table import ReportTable

    problem, loaded = made
    for name in UNUSED:
        if values[name] is not None:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: is of one number of nodes; allowed: without --objective {values['objective']}")
    wanted = Wanted.of(values["objective"], values["deadline"], values["budget"])
    with working("searching") as status:
        how = Search(values["space"], lambda: progress(status), loaded.operation)
        answer = how_many(problem, wanted, node_counts=_counts(values["over"]), search=how)
    chosen = answer.chosen
    if values["output"] and chosen is not None and chosen.plan is not None:
        chosen.plan.save(values["output"])
    if values["csv"]:
        ReportTable.of_records(answer.table()).save_csv(values["csv"])
    if not json_out(answer.to_dict(), values["json_"]):
        print_how_many(answer, console())
    if not answer.is_whole:
        return INTERRUPTED
    return INFEASIBLE if chosen is None else 0


def _counts(over: list[str] | None) -> list[int] | None:
    """Numbers of nodes in --over; None without it. Raises UserError."""
    if not over:
        return None
    axis, _, listed = over[0].partition("=")
    items = [item.strip() for item in listed.split(",") if item.strip()]
    if len(over) > 1 or axis.strip() != "nodes" or not items or not all(i.isdecimal() and int(i) for i in items):
        raise UserError(f"--over {' '.join(over)}: allowed with days and dollars: nodes=8,16,32")
    return [int(item) for item in items]
