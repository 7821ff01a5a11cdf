"""Pictures of a grid of searches: the best layout of every model on every cluster, with its MFU and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar import formats
from simpar.plan.choices.mesh import LABELLED
from simpar.report.figures import new_figure, save_figure
from simpar.report.palette import INK
from simpar.report.result import read_object
from simpar.report.words import probably
from simpar.units import GIB, GIGA, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL_WIDTH, CELL_HEIGHT = 1.6, 1.02
GRID_CAPTION = "MFU and memory; predicted step and its 90 % interval; layout"
DARK_SHARE = 0.6  # share of the colour scale above which letters are white


def load_grid(path: str | Path) -> dict[str, Any] | None:
    """A saved grid; None if the file holds something else. Raises UserError if it is not JSON."""
    result = read_object(path)
    if formats.GRID.key not in result:
        return None
    formats.GRID.check(result, str(path))
    return result


def save_grid_plot(grid: Mapping[str, Any], path: str | Path) -> None:
    """Draw a grid with two axes (or one) to a .png, .svg, .pdf or .html file. Raises UserError for another suffix."""
    save_figure(lambda: plot_grid(grid), path, "best layouts")


def plot_grid(grid: Mapping[str, Any]) -> Figure:
    """Rows and columns are the first and last axis; a cell shows MFU, memory and layout of its best plan."""
    row_axis, column_axis = grid["axes"][0], grid["axes"][-1]
    rows, columns = (list(dict.fromkeys(cell[axis] for cell in grid["cells"])) for axis in (row_axis, column_axis))
    where = {(cell[row_axis], cell[column_axis]): cell for cell in grid["cells"]}
    figure = new_figure(2.4 + CELL_WIDTH * len(columns), 1.9 + CELL_HEIGHT * len(rows))
    axes = figure.subplots()
    share = np.full((len(rows), len(columns)), np.nan)
    for (row, column), cell in where.items():
        if cell["best"]:
            share[rows.index(row), columns.index(column)] = cell["best"]["mfu"]
    top = float(np.nanmax(share)) if np.isfinite(share).any() else 1.0
    image = axes.imshow(share, aspect="auto", cmap="YlGnBu", vmin=0, vmax=top)
    for (row, column), cell in where.items():
        _write_cell(axes, (columns.index(column), rows.index(row)), cell, top)
    bar = figure.colorbar(image, ax=axes, pad=0.01, format=lambda value, _: f"{value:.0%}")
    bar.set_label("model FLOP utilisation", color=INK)
    bar.outline.set_visible(False)
    names = [_row_name(row, [cell for cell in grid["cells"] if cell[row_axis] == row]) for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8, color=INK)
    axes.set_xticks(range(len(columns)), [str(column) for column in columns], fontsize=8, color=INK)
    axes.set_xlabel(column_axis, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", lw=2)
    axes.tick_params(which="minor", length=0)
    axes.set_title(GRID_CAPTION, loc="left", fontsize=8, color=INK)
    figure.suptitle(f"Best layout: {grid['title']}", x=0.01, ha="left", fontsize=11, color=INK, fontweight="bold")
    return figure


def _row_name(row: Any, cells: Sequence[Mapping[str, Any]]) -> str:
    counts = {cell["parameters"] for cell in cells}
    size = f"\n{counts.pop() / GIGA:.1f} B" if len(counts) == 1 else ""
    return f"{row}{size}"


def _write_cell(axes: Axes, at: tuple[int, int], cell: Mapping[str, Any], top: float) -> None:
    best = cell["best"]
    if not best:
        axes.text(*at, "nothing fits", ha="center", va="center", fontsize=7, color="#999999")
        return
    colour = "white" if best["mfu"] > DARK_SHARE * top else INK
    head = f"{best['mfu']:.0%}  {best['peak_reserved_bytes'] / GIB:.0f} GiB"
    text = "\n".join([head, *_sure_words(best), layout_words(best["plan"])])
    axes.text(*at, text, ha="center", va="center", fontsize=7, color=colour, linespacing=1.35)


def _sure_words(best: Mapping[str, Any]) -> list[str]:
    """The step with the half-width of its 90 % interval, and the probability of fitting, in one line.

    Empty for files of versions without intervals.
    """
    if "step_time_interval_s" not in best:
        return []
    step_s, (low_s, high_s) = best["step_time_s"], best["step_time_interval_s"]
    around = f"{low_s / step_s - 1:+.0%}{high_s / step_s - 1:+.0%}".replace("%+", " +").replace("-", "\N{MINUS SIGN}")
    return [f"{format_seconds(step_s)} {around}", f"{probably(best['fit_probability'])} to fit"]


def layout_words(plan: Mapping[str, Any]) -> str:
    """A layout in two short lines: the degrees, then micro-batch, ZeRO stage and recomputation."""
    mesh, data = plan["mesh"], plan["data_parallel"]
    degrees = [f"{axis}{mesh[axis]}" for axis in LABELLED if (mesh.get(axis) or 1) > 1]
    vpp = plan["pipeline"].get("vpp") or 1
    degrees += [f"v{vpp}"] * (vpp > 1)
    stage = data.get("zero") or 0
    habits = [f"mb{plan['micro_batch']}", *([f"Z{stage}"] * (stage > 0))]
    recompute = plan["memory"]["recompute"]
    habits += [f"rc {recompute}"] * (recompute != "none")
    return " ".join(degrees or ["1 device"]) + "\n" + " ".join(habits)
