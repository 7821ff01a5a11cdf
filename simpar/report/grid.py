"""Heat maps over two axes: best layouts of a grid of searches, or every choice of a sweep, and where they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar import formats
from simpar.errors import UserError
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
SWEEP_CAPTION = "MFU and memory; predicted step and its 90 % interval"
FRONTIER_CAPTION = "heavy line: beyond it nothing fits"
OUTSIDE_INK = "#666666"
DARK_SHARE = 0.6  # share of the colour scale above which letters are white


def load_grid(path: str | Path, *, is_drawn: bool = True) -> dict[str, Any] | None:
    """A saved grid of searches, or a sweep in the form of one; None if the file holds something else.

    Raises UserError if it is not JSON, or a sweep over more than two keys that ``is_drawn``.
    """
    result = read_object(path)
    if formats.SWEEP.mark in result:
        formats.SWEEP.check(result, str(path))
        if not result["sweep"]:
            raise UserError(f"{path}: is a sweep without a choice")
        axes = list(result["sweep"][0]["choice"])
        if is_drawn and len(axes) > 2:
            raise UserError(f"{path}: is a sweep over {', '.join(axes)}; allowed: one or two keys in a picture")
        return _grid_of_sweep(result["sweep"], axes)
    if formats.GRID.key not in result:
        return None
    formats.GRID.check(result, str(path))
    if not result["cells"]:
        raise UserError(f"{path}: is a grid without a cell")
    return result


def _grid_of_sweep(rows: Sequence[Mapping[str, Any]], axes: list[str]) -> dict[str, Any]:
    """A sweep as a grid: a cell per choice, with its figures where it was simulated."""
    cells = [
        {**row["choice"], "best": row if "step_time_s" in row else None, "instead": _instead(row),
         "reason": row.get("refused", "")}
        for row in rows
    ]  # fmt: skip
    return {"axes": axes, "cells": cells, "title": f"{' by '.join(axes)}", "caption": SWEEP_CAPTION}


def _instead(row: Mapping[str, Any]) -> str:
    return "not simulated" if row.get("interrupted") else "refused"


def save_grid_plot(grid: Mapping[str, Any], path: str | Path) -> None:
    """Draw a grid with two axes (or one) to a .png, .svg, .pdf or .html file. Raises UserError for another suffix."""
    save_figure(lambda: plot_grid(grid), path, "best layouts")


def plot_grid(grid: Mapping[str, Any]) -> Figure:
    """Rows and columns are the first and last axis; a cell shows MFU and memory, and the layout of a best plan.

    Of several axes, a cell is the one with the highest MFU over those between; the title says so.
    """
    row_axis, column_axis = "" if len(grid["axes"]) == 1 else grid["axes"][0], grid["axes"][-1]
    rows, columns = (
        list(dict.fromkeys(cell.get(axis, "") for cell in grid["cells"])) for axis in (row_axis, column_axis)
    )
    where: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    for cell in grid["cells"]:
        at = cell.get(row_axis, ""), cell[column_axis]
        where[at] = max(where.get(at, cell), cell, key=_rank)
    figure = new_figure(2.4 + CELL_WIDTH * len(columns), 1.9 + CELL_HEIGHT * len(rows))
    axes = figure.subplots()
    share = np.full((len(rows), len(columns)), np.nan)
    fits = np.zeros(share.shape, dtype=bool)
    for (row, column), cell in where.items():
        at = rows.index(row), columns.index(column)
        if cell["best"]:
            share[at], fits[at] = cell["best"]["mfu"], cell["best"].get("fits", True)
    shown = np.where(fits, share, np.nan)
    top = float(np.nanmax(shown)) if np.isfinite(shown).any() else 1.0
    image = axes.imshow(shown, aspect="auto", cmap="YlGnBu", vmin=0, vmax=top)
    for (row, column), cell in where.items():
        _write_cell(axes, (columns.index(column), rows.index(row)), cell, top)
    _draw_frontier(axes, fits)
    bar = figure.colorbar(image, ax=axes, pad=0.01, format=lambda value, _: f"{value:.0%}")
    bar.set_label("model FLOP utilisation", color=INK)
    bar.outline.set_visible(False)
    names = [_row_name(row, [cell for cell in grid["cells"] if cell.get(row_axis, "") == row]) for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8, color=INK)
    axes.set_xticks(range(len(columns)), [str(column) for column in columns], fontsize=8, color=INK)
    axes.set_xlabel(column_axis, color=INK)
    axes.set_ylabel(row_axis, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", lw=2)
    axes.tick_params(which="minor", length=0)
    caption = [grid.get("caption", GRID_CAPTION), *([FRONTIER_CAPTION] if fits.any() and not fits.all() else [])]
    axes.set_title("\n".join(caption), loc="left", fontsize=8, color=INK)
    between = grid["axes"][1:-1]
    best_over = f" (best over {', '.join(between)})" if between else ""
    figure.suptitle(f"{title_of(grid)}{best_over}", x=0.01, ha="left", fontsize=11, color=INK, fontweight="bold")
    return figure


def _rank(cell: Mapping[str, Any]) -> tuple[bool, float]:
    """What fits before what does not, then by MFU."""
    best = cell["best"]
    return (bool(best.get("fits", True)), float(best["mfu"])) if best else (False, -1.0)


def title_of(grid: Mapping[str, Any]) -> str:
    """What a grid shows, for its picture and its page."""
    what = "Best layout" if "caption" not in grid else "Every choice"
    return f"{what}: {grid['title']}"


def _draw_frontier(axes: Axes, fits: Any) -> None:
    """A heavy line between cells that fit and those that do not."""
    rows, columns = fits.shape
    for row in range(rows):
        for column in range(columns):
            if column + 1 < columns and fits[row, column] != fits[row, column + 1]:
                axes.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color=INK, lw=2.5, solid_capstyle="projecting")
            if row + 1 < rows and fits[row, column] != fits[row + 1, column]:
                axes.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, color=INK, lw=2.5, solid_capstyle="projecting")


def _row_name(row: Any, cells: Sequence[Mapping[str, Any]]) -> str:
    counts = {cell.get("parameters") for cell in cells}
    count = counts.pop() if len(counts) == 1 else None
    return f"{row}" + (f"\n{count / GIGA:.1f} B" if count else "")


def _write_cell(axes: Axes, at: tuple[int, int], cell: Mapping[str, Any], top: float) -> None:
    best = cell["best"]
    if not best:
        words = cell.get("instead", "nothing fits")
        axes.text(*at, words, ha="center", va="center", fontsize=7, color=OUTSIDE_INK)
        return
    if not best.get("fits", True):
        words = f"does not fit\n{best['peak_reserved_bytes'] / GIB:.0f} GiB"
        axes.text(*at, words, ha="center", va="center", fontsize=7, color=OUTSIDE_INK, linespacing=1.35)
        return
    colour = "white" if best["mfu"] > DARK_SHARE * top else INK
    head = f"{best['mfu']:.0%}  {best['peak_reserved_bytes'] / GIB:.0f} GiB"
    text = "\n".join([head, *_sure_words(best), *([layout_words(best["plan"])] if "plan" in best else [])])
    axes.text(*at, text, ha="center", va="center", fontsize=7, color=colour, linespacing=1.35)


def _sure_words(best: Mapping[str, Any]) -> list[str]:
    """The step with the half-width of its 90 % interval, and the probability of fitting, in one line.

    Empty for files of versions without intervals.
    """
    if not best.get("step_time_interval_s"):
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
