"""``simpar plot``: pictures of saved results."""

from typing import Annotated

import typer

from simpar.cli.app import app, console
from simpar.cli.saved import result_of


@app.command(epilog="Example: simpar plot result.json --kind memory -o memory.png")
def plot(
    result: Annotated[
        str,
        typer.Argument(
            help="A result, a search or a grid of searches (--json), a plan or a scenario", metavar="RESULT"
        ),
    ],
    kind: Annotated[str, typer.Option("--kind", help="timeline, memory, breakdown or heatmap")] = "timeline",
    output: Annotated[
        str, typer.Option("-o", "--output", help="File to write: .png, .svg, .pdf or .html")
    ] = "plot.png",
) -> None:
    """Draw a result. A grid of searches is drawn as a heat map of best layouts.

    A plan, a scenario, or the best plan of a search is simulated first.
    """
    from simpar.errors import UserError
    from simpar.report.grid import load_grid, save_grid_plot
    from simpar.report.plots import save_plot

    grid = load_grid(result) if result.endswith(".json") else None
    if grid is None:
        save_plot(result_of(result), kind, output)
    elif kind == "heatmap":
        save_grid_plot(grid, output)
    else:
        raise UserError(f"--kind {kind}: {result} is a grid of searches; allowed: heatmap")
    console().print(f"wrote {output}", soft_wrap=True)
