"""Figures in one style and as bytes, built without pyplot: no global state, no display."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from simpar.errors import UserError
from simpar.files import write_atomic
from simpar.plain import printable
from simpar.report.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf", ".html")
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
"""What would make two files of one picture differ."""
STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;color:#333;max-width:1200px;margin:2em auto;padding:0 1em}"
    "h1{font-size:1em;font-weight:500}svg{width:100%;height:auto}"
    "th{text-align:left;font-weight:500;padding-right:2em}td{padding:.1em 0}"
)


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


def titles(figure: Figure, title: str, detail: str) -> None:
    """The title in a size that fits the width, and a line of detail below it."""
    size = min(12.0, 72 * figure.get_figwidth() / (0.66 * len(title)))
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=size, color=INK, fontweight="bold")
    below = (1.35 * size + 6) / 72 / figure.get_figheight()
    figure.text(0.01, 1 - below, detail, ha="left", va="top", fontsize=10, color=INK)


def save_figure(make: Callable[[], Figure], path: str | Path, title: str, below: str = "") -> None:
    """Write the picture that ``make`` draws as .png, .svg, .pdf or .html; a page has the HTML of ``below`` under it.

    Raises UserError for another suffix, before anything is drawn.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        kind, name = repr(suffix or "without suffix"), printable(str(path))
        raise UserError(f"{name}: unknown kind of picture {kind}: allowed {', '.join(SUFFIXES)}")
    if suffix == ".html":
        svg = render_figure(make(), "svg").decode()
        name = html.escape(f"simpar: {title}")
        picture = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{name}"', 1)
        write_atomic(
            path,
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>{STYLE}</style>'
            f"</head><body><main><h1>{name}</h1>{picture}{below}</main></body></html>\n",
        )
    else:
        write_atomic(path, render_figure(make(), suffix.removeprefix(".")))


def render_figure(figure: Figure, suffix: str) -> bytes:
    """The bytes of a figure as "png", "svg" or "pdf"; equal figures give equal bytes. A PNG holds its texts as well."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    words = {"Description": written_in(figure)} if suffix == "png" else {}
    with mpl.rc_context({"svg.hashsalt": "simpar", "hatch.linewidth": 0.6}):
        figure.savefig(buffer, format=suffix, metadata=UNDATED[suffix] | words)
    return buffer.getvalue()


def written_in(figure: Figure) -> str:
    """Titles, names of axes, labels and legends of a figure, a line each; not the numbers of its ticks."""
    from matplotlib.text import Text

    texts = (each.get_text().strip() for each in figure.findobj(Text) if each.get_visible())
    return "\n".join(text for text in texts if text)
