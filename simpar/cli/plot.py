"""``simpar plot``: pictures of saved results."""

from __future__ import annotations

from typing import Annotated

import typer

from simpar.cli.app import app, console


@app.command(epilog="Example: simpar plot result.json --kind memory -o memory.png")
def plot(
    result: Annotated[
        str,
        typer.Argument(
            help="Written by simpar simulate --json, or search --over --json", metavar="RESULT.json"
        ),
    ],
    kind: Annotated[str, typer.Option("--kind", help="timeline, memory, breakdown or heatmap")] = "timeline",
    output: Annotated[
        str, typer.Option("-o", "--output", help="File to write: .png, .svg or .html")
    ] = "plot.png",
) -> None:
    """Draw a result that was saved as JSON. A grid of searches is drawn as a heat map of best layouts."""
    from simpar.errors import UserError
    from simpar.report.grid import load_grid, save_grid_plot
    from simpar.report.plots import save_plot
    from simpar.report.result import Result

    grid = load_grid(result)
    if grid is None:
        save_plot(Result.load(result), kind, output)
    elif kind == "heatmap":
        save_grid_plot(grid, output)
    else:
        raise UserError(f"--kind {kind}: {result} is a grid of searches; allowed: heatmap")
    console().print(f"wrote {output}", soft_wrap=True)
