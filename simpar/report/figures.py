"""Figures in one style and as bytes, built without pyplot: no global state, no display."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from simpar.report.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def canvas(height: float, width: float = 14.0) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure = new_figure(width, max(2.4, height))
    axes = figure.subplots()
    clean(axes)
    return figure, axes


def clean(axes: Axes) -> None:
    """Keep only the left and bottom axis lines, in grey."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=INK, labelsize=8)


def render_figure(figure: Figure, suffix: str) -> bytes:
    """The bytes of a figure as "png" or "svg"; equal figures give equal bytes."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    metadata = {"Date": None} if suffix == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "simpar", "hatch.linewidth": 0.6}):
        figure.savefig(buffer, format=suffix, metadata=metadata)
    return buffer.getvalue()
