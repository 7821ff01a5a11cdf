"""``simpar learn``: a few measured runs make a stack and a cluster profile the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out, working

if TYPE_CHECKING:
    from rich.console import Console

MOST_LISTED = 12  # parameters


@app.command(epilog="Example: simpar learn runs.csv --stack nemo --hardware dgx-h100 -o ours.yaml")
def learn(
    runs: Annotated[
        list[str], typer.Argument(help="Tables of measured runs, or folders of simpar run", metavar="RUNS.csv")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="File to write: --stack and --hardware take it")],
    stack: Annotated[
        str | None, typer.Option(help="Stack profile of all runs (default: the one that each row names)")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Hardware profile of all runs (default: the one that each row names)")
    ] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Adapt a stack and a cluster profile to a few measured runs.

    Three runs are enough to begin with; docs/measured.md lists the columns of a table. The written file
    serves as --stack and as --hardware, and as --using of simpar validate.
    """
    from simpar.errors import UserError
    from simpar.learning.answer import learn

    path = Path(output)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"--output {output}: allowed: a name that ends in .yaml")
    with working(f"learning from {', '.join(runs)}"):
        answer = learn(*runs, stack=stack, hardware=hardware)
    answer.save(path)
    data = answer.to_dict()
    if not json_out(data, json_):
        _print(data, console())
        console().print(f"wrote {output}: --stack {output} --hardware {output}", soft_wrap=True)


def _print_memory(answer: Mapping[str, Any], screen: Console) -> None:
    """Errors of peaks, and how far off the stack's hidden memory may be."""
    screen.print(f"\n{'error of peak memory, %':<58}{'before':>11}{'after':>11}{'left out':>9}", style="bold")
    rows = [
        (each["label"], each["memory_error_percent"])
        for each in answer["runs_detail"]
        if "memory_error_percent" in each
    ]
    for label, errors in rows:
        row = f"{label[:57]:<58}{errors['before']:>+11.1f}{errors['after']:>+11.1f}"
        screen.print(f"{row}{errors['left_out']:>+9.1f}", soft_wrap=True)
    middle = answer["memory"]["median_error_percent"]
    row = f"{'median of absolute errors':<58}{middle['before']:>11.1f}{middle['after']:>11.1f}"
    screen.print(f"{row}{middle['left_out']:>9.1f}")
    for stack, spread in answer["memory"]["stack_spread_percent"].items():
        screen.print(
            f"memory of {stack} that is not modelled: {spread['before']:.0f} % of what it needs before, "
            f"{spread['after']:.0f} % now"
        )


def _print(answer: Mapping[str, Any], screen: Console) -> None:
    models, noise = answer["models"], answer["repeats_spread_percent"]
    runs, layouts = (_counted(answer[what], what) for what in ("runs", "layouts"))
    counts = f"{runs} of {layouts}, {_counted(len(models), 'models')}: "
    screen.print(counts + ", ".join(models), style="bold", soft_wrap=True)
    if len(models) > 1:
        screen.print("what is learnt is of the stack and the cluster: runs of several models tell it together")
    if noise is not None:
        screen.print(f"repeats of a layout scatter by {noise:.1f} %")
    for line in answer["remarks"]:
        screen.print(line, soft_wrap=True)
    screen.print(f"\n{'changed':<58}{'was':>11}{'is':>11}{'spreads':>9}", style="bold")
    for each in answer["changes"][:MOST_LISTED]:
        name = f"{each['profile']} {each['parameter']}"
        screen.print(f"{name:<58}{each['was']:>11.4g}{each['is']:>11.4g}{each['spreads']:>+9.2f}")
    screen.print(f"\n{'error of step time, %':<58}{'before':>11}{'after':>11}{'left out':>9}", style="bold")
    for each in answer["runs_detail"]:
        errors = each["error_percent"]
        row = f"{each['label'][:57]:<58}{errors['before']:>+11.1f}{errors['after']:>+11.1f}"
        screen.print(f"{row}{errors['left_out']:>+9.1f}", soft_wrap=True)
    middle = answer["median_error_percent"]
    row = f"{'median of absolute errors':<58}{middle['before']:>11.1f}{middle['after']:>11.1f}"
    screen.print(f"{row}{middle['left_out']:>9.1f}")
    width = answer["half_interval_percent"]
    screen.print(f"90 % of layouts like these are within {width['before']:.0f} % before, {width['after']:.0f} % now")
    if answer["layouts"] > 1 and middle["left_out"] >= middle["before"]:
        screen.print("runs that were left out are predicted no better than before: measure more layouts")
    if answer["memory"]:
        _print_memory(answer, screen)
    unexplained = [each["label"] for each in answer["runs_detail"] if not each["explained"]]
    if unexplained:
        screen.print(f"not explained (more than 5 % off after learning): {'; '.join(unexplained)}", soft_wrap=True)


def _counted(count: int, what: str) -> str:
    """A count with its noun, in singular or plural."""
    return f"{count} {what if count != 1 else what.removesuffix('s')}"
