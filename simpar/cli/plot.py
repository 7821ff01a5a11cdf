"""``simpar plot``: pictures of saved results."""

from __future__ import annotations

from typing import Annotated

import typer

from simpar.cli.app import app, console


@app.command(epilog="Example: simpar plot result.json --kind memory -o memory.png")
def plot(
    result: Annotated[
        str, typer.Argument(help="A result written by simpar simulate --json", metavar="RESULT.json")
    ],
    kind: Annotated[str, typer.Option("--kind", help="timeline, memory, breakdown or heatmap")] = "timeline",
    output: Annotated[
        str, typer.Option("-o", "--output", help="File to write: .png, .svg or .html")
    ] = "plot.png",
) -> None:
    """Draw a result that was saved as JSON."""
    from simpar.report.plots import save_plot
    from simpar.report.result import Result

    save_plot(Result.load(result), kind, output)
    console().print(f"wrote {output}", soft_wrap=True)
