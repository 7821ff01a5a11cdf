"""``simpar mcp``: simpar's verbs as tools for coding agents."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from simpar.cli.app import app
from simpar.errors import UserError


@app.command(epilog="Example: simpar mcp --folder runs")
def mcp(
    folder: Annotated[
        str, typer.Option("--folder", help="Folder whose files the tools may open and write; no others")
    ] = ".",
    http: Annotated[
        int | None, typer.Option("--http", help="Port on 127.0.0.1 to serve HTTP (default: standard input and output)")
    ] = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", help="Seconds that one call may take; a search then gives its best so far")
    ] = 120,
) -> None:
    """Serve the commands to a coding agent (Model Context Protocol).

    Tools open shipped names and files below the folder only, run no code of yours and reach no network.
    """
    from simpar.mcp.server import MISSING, Desk, serve_http, serve_stdio

    if http is not None and not 0 <= http < 2**16:
        raise UserError(f"--http {http}: allowed: 0 (any free port) to {2**16 - 1}")
    desk = Desk(Path(folder), time_limit)
    if not find_spec("mcp"):
        raise UserError(MISSING)
    if http is None:
        serve_stdio(desk)
    else:
        serve_http(desk, http, lambda address: typer.echo(f"simpar mcp: {address} (Ctrl-C ends it)", err=True))
