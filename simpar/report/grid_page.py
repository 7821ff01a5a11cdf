"""A saved grid as a page: searches over some axes, or a sweep, as a table by two axes and as a list of all cells."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simpar.report.grid import layout_words, title_of
from simpar.report.table import ReportTable, text
from simpar.report.words import interval_words, probably
from simpar.units import GIB, format_bytes, format_seconds

Cell = Mapping[str, Any]


def save_grid_page(grid: Mapping[str, Any], path: str | Path) -> None:
    """Write the page of a grid atomically, as :func:`simpar.report.grid.load_grid` reads it."""
    from simpar.report.html.choices import ChoiceFacts, save_choices

    cells = grid["cells"]
    facts = [
        ChoiceFacts(
            shade=_shade(cell, cells),
            rate=cell["best"]["mfu"] if cell["best"] else 0.0,
            memory_gib=cell["best"]["peak_reserved_bytes"] / GIB if cell["best"] else 0.0,
            fits=bool(cell["best"] and cell["best"].get("fits", True)),
        )
        for cell in cells
    ]
    page = {
        "title": title_of(grid),
        "brand": "the best layout of every cell" if any(_plan(cell) for cell in cells) else "every choice, simulated",
        "note": "The darker, the higher the model FLOP utilisation; what does not fit has no shade.",
        "intro": "",
        "grid": _by_two(grid),
        "table": _listed(grid),
        "rate": "model FLOP utilisation",
        "keys": len(grid["axes"]),
    }
    save_choices(page, facts, path)


def _by_two(grid: Mapping[str, Any]) -> dict[str, Any] | None:
    """Cells by the values of two axes; None for another number of axes."""
    if len(grid["axes"]) != 2:
        return None
    first, second = grid["axes"]
    down, across = (list(dict.fromkeys(cell[axis] for cell in grid["cells"])) for axis in grid["axes"])
    placed = {(cell[first], cell[second]): cell for cell in grid["cells"]}
    lines = [
        {"name": row, "cells": [_shown(placed.get((row, column)), grid["cells"]) for column in across]} for row in down
    ]
    return {"keys": grid["axes"], "across": across, "lines": lines}


def _shown(cell: Cell | None, cells: list[Cell]) -> dict[str, str]:
    if cell is None:
        return {"step": "", "words": "", "shade": "0"}
    if not cell["best"]:
        return {"step": str(cell.get("instead", "nothing fits")), "words": str(cell.get("reason", "")), "shade": "0"}
    best = cell["best"]
    words = [f"MFU {best['mfu']:.1%}", format_bytes(best["peak_reserved_bytes"]), _fits(best), _plan(cell)]
    told = ", ".join(filter(None, words))
    return {"step": format_seconds(best["step_time_s"]), "words": told, "shade": _shade(cell, cells)}


def _listed(grid: Mapping[str, Any]) -> ReportTable:
    """A row per cell: its values, step and interval, MFU, memory, whether it fits, and the layout if cells have any."""
    last = [text("layout")] if any(_plan(cell) or not cell["best"] for cell in grid["cells"]) else []
    table = ReportTable([*grid["axes"], "step", "90 % interval", "MFU", "memory", text("fits"), *last])
    for cell in grid["cells"]:
        values, best = [str(cell[axis]) for axis in grid["axes"]], cell["best"]
        if not best:
            table.add(*values, "", "", "", "", "", _instead(cell))
            continue
        interval = best.get("step_time_interval_s")
        step, between = format_seconds(best["step_time_s"]), interval_words(interval) if interval else ""
        figures = step, between, f"{best['mfu']:.1%}", format_bytes(best["peak_reserved_bytes"])
        table.add(*values, *figures, _fits(best), *([_plan(cell)] if last else []))
    return table


def _fits(best: Cell) -> str:
    known = best.get("fit_probability")
    return "does not fit" if not best.get("fits", True) else "fits" + (f", {probably(known)}" if known else "")


def _plan(cell: Cell) -> str:
    best = cell["best"]
    return " ".join(layout_words(best["plan"]).split()) if best and "plan" in best else ""


def _instead(cell: Cell) -> str:
    """Why a cell has no figures."""
    return str(cell.get("reason") or cell.get("instead") or "nothing fits")


def _shade(cell: Cell, cells: list[Cell]) -> str:
    """Half the colour for the highest MFU of what fits; none for what does not fit."""
    fitting = [each["best"]["mfu"] for each in cells if each["best"] and each["best"].get("fits", True)]
    if not cell["best"] or not cell["best"].get("fits", True):
        return "0"
    return f"{0.5 * cell['best']['mfu'] / max(fitting):.3f}"
