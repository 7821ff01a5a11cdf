"""``simpar compare``: two results side by side, and why they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out, working

if TYPE_CHECKING:
    from rich.console import Console

    from simpar.report.compare import Comparison
    from simpar.report.result import Result

WHAT = "A result of simpar simulate --json, a scenario or a plan"


@app.command(epilog="Example: simpar compare before.json after.json")
def compare(
    a: Annotated[str, typer.Argument(help=WHAT, metavar="A")],
    b: Annotated[str, typer.Argument(help=WHAT, metavar="B")],
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Set two results side by side and explain the difference."""
    from simpar.report.compare import compare as set_side_by_side

    found = set_side_by_side(_result(a), _result(b))
    if not json_out(found.model_dump(mode="json"), json_):
        _print(found, (a, b), console())


def _result(name: str) -> Result:
    """A saved result, or a scenario or plan file simulated now. Raises UserError."""
    from simpar import files
    from simpar.report.result import Result, read_object
    from simpar.scenario import load_scenario

    path = files.find(name, "scenarios", "scenario")
    if path.suffix == ".json" and "schema_version" in (data := read_object(path)):
        return Result.from_dict(data, source=str(path))
    loaded = load_scenario(name)
    from simpar.simulation import simulate

    with working(f"simulating {name}"):
        return simulate(**loaded.inputs())


def _print(found: Comparison, names: tuple[str, str], out: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from simpar.report.compare import asked_text, rows

    for letter, name in zip(found.names, names, strict=True):
        out.print(f"{letter}: {name}", style="bold", soft_wrap=True, markup=False)
    if found.asked:
        table = Table("asked", *found.names, box=SIMPLE_HEAD)
        for key, pair in found.asked.items():
            table.add_row(key, asked_text(key, pair.a), asked_text(key, pair.b))
        out.print(table)
    else:
        out.print("asked: the same", soft_wrap=True)
    table = Table("came out", *found.names, f"{found.names[1]} / {found.names[0]}", box=SIMPLE_HEAD)
    for row in rows(found):
        table.add_row(*row)
    out.print(table)
    for sentence in found.sentences:
        out.print(f"- {sentence}", soft_wrap=True, markup=False)
