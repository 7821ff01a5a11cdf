"""``simpar collective``: the time of one collective by size and number of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out

Value = TypeVar("Value", int, float)
USUAL = {"bytes": "64KB,256KB,1MB,4MB,16MB,64MB,256MB,1GB,4GB", "nodes": "1,2,4,8,16,32,64"}
"""What an axis of --over goes over where no values are given."""


@app.command(
    epilog="Example: simpar collective all_reduce --hardware dgx-h100 --bytes 16MB,256MB,1GB --nodes 1,2,4 -o bus.png"
)
def collective(
    op: Annotated[str, typer.Argument(help="all_reduce, all_gather, all_to_all, broadcast, send, ...", metavar="OP")],
    hardware: Annotated[str, typer.Option("--hardware", help="Hardware profile")],
    *,
    sizes: Annotated[str, typer.Option("--bytes", help="Sizes of the whole tensor, such as 16MB,256MB")] = "256MB",
    nodes: Annotated[str, typer.Option("--nodes", help="Numbers of nodes, such as 1,2,4")] = "1",
    over: Annotated[
        list[str] | None,
        typer.Option("--over", help="Go over usual numbers or sizes, or over given ones: nodes, bytes, nodes=1,2,4"),
    ] = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="ring, tree, ... (default: the fastest, as libraries choose)")
    ] = "auto",
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
    csv: Annotated[str | None, typer.Option("--csv", help="Write the table as CSV, in SI units")] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="Draw bus bandwidth as .png, .svg, .pdf or .html")
    ] = None,
) -> None:
    """Time one collective alone among all devices.

    Sizes and bus bandwidth are counted as nccl-tests does: a ring all-reduce of X bytes over N ranks sends
    2 (N - 1) / N X from each.
    """
    from simpar.report.collective import collective_table, save_collective_plot, time_collectives
    from simpar.report.table import ReportTable
    from simpar.units import parse_quantity

    given = {"bytes": sizes, "nodes": nodes, **dict(_gone_over(each) for each in over or ())}
    rows = time_collectives(
        op,
        hardware,
        _listed(
            given["bytes"],
            "--bytes",
            lambda each: parse_quantity(each, "bytes"),
            "sizes with units, such as 16MB,256MB",
        ),
        _listed(given["nodes"], "--nodes", int, "whole numbers of 1 or more, such as 1,2,4"),
        algorithm=algorithm,
    )
    data = [row.to_dict() for row in rows]
    if csv:
        ReportTable.of_records(data).save_csv(csv)
    if output:
        save_collective_plot(rows, output)
    if not json_out({"collectives": data}, json_):
        console().print(collective_table(rows))


def _gone_over(words: str) -> tuple[str, str]:
    """An axis, and its values as a list with commas. Raises UserError."""
    from simpar.files import choose

    axis, _, listed = words.partition("=")
    choose(axis, USUAL, "axis of --over")
    return axis, listed or USUAL[axis]


def _listed(words: str, flag: str, read: Callable[[str], Value], allowed: str) -> list[Value]:
    """The values of a list with commas, all above zero. Raises UserError."""
    from simpar.errors import UserError

    try:
        values = [read(each.strip()) for each in words.split(",") if each.strip()]
    except ValueError:
        values = []
    if not values or min(values) <= 0:
        raise UserError(f"{flag} {words}: allowed: {allowed}")
    return values
