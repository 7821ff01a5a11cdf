"""``simpar list``: what is shipped, by name."""

from typing import Annotated

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out
from simpar.shipped import LISTS, names_of


def _starting(word: str) -> list[str]:
    return [name for name in LISTS if name.startswith(word)]


@app.command("list", epilog="Example: simpar list models")
def list_names(
    what: Annotated[str | None, typer.Argument(help=", ".join(LISTS), metavar="KIND", autocompletion=_starting)] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """List what simpar ships, by the names that other commands take."""
    from simpar.report.terminal import print_names

    names = LISTS if what is None else names_of(what)
    if not json_out(names, json_):
        print_names(names, console())
