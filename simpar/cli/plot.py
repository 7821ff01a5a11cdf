"""``simpar plot``: pictures of saved results."""

from typing import Annotated

import typer

from simpar.cli.app import app, console
from simpar.cli.saved import result_of


@app.command(epilog="Example: simpar plot result.json --kind memory -o memory.png")
def plot(
    result: Annotated[
        str,
        typer.Argument(help="A result, a search, a grid or a sweep (--json), a plan or a scenario", metavar="RESULT"),
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="timeline (default), memory, breakdown, heatmap, flame (memory at the peak by category and layer) or "
            "roofline (rates of kernels); of grids: heatmap",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", help="File to write: .png, .svg, .pdf or .html")
    ] = "plot.png",
) -> None:
    """Draw a result. A grid of searches, or a sweep over one or two keys, is drawn as a heat map.

    A plan, a scenario, or the best plan of a search is simulated first.
    """
    from simpar.errors import UserError
    from simpar.report.grid import load_grid, save_grid_plot
    from simpar.report.plots import save_plot

    grid = load_grid(result) if result.endswith(".json") else None
    if grid is None:
        save_plot(result_of(result), kind or "timeline", output)
    elif kind in (None, "heatmap"):
        save_grid_plot(grid, output)
    else:
        raise UserError(f"--kind {kind}: {result} is a grid; allowed: heatmap")
    console().print(f"wrote {output}", soft_wrap=True)
