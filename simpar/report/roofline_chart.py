"""The roofline picture: FLOP/s of products and attention over FLOP per byte [Williams et al. 2009, CACM 52(4)]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simpar.report.figures import canvas
from simpar.report.palette import INK, KERNEL_COLOUR
from simpar.units import TERA, format_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simpar.report.pictured import KernelPoint, Roofline

MARKS = {"forward": "o", "input gradient": "s", "weight gradient": "D", "backward": "^"}
MOST_NAMED = 16
"""Operators that are named: those that take the most time."""
GAP = 0.06
"""Distance of their names, as a part of the height."""


def draw_roofline(roofline: Roofline) -> Figure:
    """A figure of one panel; areas of marks are shares of the kernels' time."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = canvas(6.4)
    points = merged(roofline.points)
    rates = np.array([point.flop / point.seconds for point in points]) / TERA
    dense = np.array([point.flop / point.moved_bytes for point in points])
    spent = np.array([point.layers * point.seconds for point in points])
    top = max(roofline.peak_flop_per_s.values()) / TERA
    ridges = [peak / roofline.bytes_per_s for peak in roofline.peak_flop_per_s.values()]
    low, high = min(dense.min() / 2, *(each / 8 for each in ridges)), max(dense.max(), *ridges) * 1.5
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(min(rates.min() / 1.6, low * roofline.bytes_per_s / TERA), top * 1.5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.set_minor_locator(NullLocator())
    _draw_roofs(axes, roofline, (low, high))
    for at, point in enumerate(points):
        area = 30 + 700 * spent[at] / spent.sum()
        axes.scatter(
            dense[at], rates[at], s=area, marker=MARKS[point.direction], color=KERNEL_COLOUR[kind_of(point)],
            edgecolors="white", lw=0.5, alpha=0.85, zorder=3,
        )  # fmt: skip
    _name_operators(axes, points)
    _legend(axes, points)
    axes.set_xlabel("FLOP per byte of operands and results, each moved once", color=INK)
    axes.set_ylabel("TFLOP/s", color=INK)
    return figure


def kind_of(point: KernelPoint) -> str:
    """What an operator is for the colours of the picture."""
    if "attention" in point.operator:
        return "attention"
    return "experts" if point.operator.startswith("expert_") else "products"


def _draw_roofs(axes: Axes, roofline: Roofline, span: tuple[float, float]) -> None:
    """The bandwidth's slope and a level for every precision."""
    slope = roofline.bytes_per_s / TERA
    for precision, peak in roofline.peak_flop_per_s.items():
        level = peak / TERA
        intensity = np.array([span[0], peak / roofline.bytes_per_s, span[1]])
        axes.plot(intensity, np.minimum(slope * intensity, level), color=INK, lw=1.4, zorder=2)
        axes.annotate(
            f"{format_figure(level)} TFLOP/s dense {precision}", (intensity[1], level), (-6, 0),
            textcoords="offset points", ha="right", va="center", fontsize=9, color=INK,
        )  # fmt: skip
    middle = (span[0] * min(roofline.peak_flop_per_s.values()) / roofline.bytes_per_s) ** 0.5
    axes.annotate(
        f"{format_figure(slope)} TB/s of memory", (middle, slope * middle), (-6, 2), textcoords="offset points",
        ha="right", va="bottom", fontsize=9, color=INK,
    )  # fmt: skip


def merged(points: Sequence[KernelPoint]) -> list[KernelPoint]:
    """The points with those of blocks that do the same as one."""
    same: dict[tuple[object, ...], KernelPoint] = {}
    for point in points:
        key = (point.operator, point.direction, point.precision, point.flop, point.moved_bytes, point.seconds)
        layers = point.layers + (same[key].layers if key in same else 0)
        same[key] = same.get(key, point).model_copy(update={"layers": layers})
    return list(same.values())


def _name_operators(axes: Axes, points: Sequence[KernelPoint]) -> None:
    """A column of names right of the panel with lines to the operators' marks, in the order of their heights."""
    mine: dict[tuple[str, str], list[KernelPoint]] = {}
    for point in points:
        mine.setdefault((point.block, point.operator), []).append(point)
    spent = {key: sum(point.layers * point.seconds for point in some) for key, some in mine.items()}
    named = sorted(sorted(spent, key=lambda key: -spent[key])[:MOST_NAMED], key=lambda key: _rate(mine[key][0]))
    operators = [operator for _, operator in named]
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = [to_axes.transform((1.0, _rate(mine[key][0])))[1] for key in named]
    for place, key in zip(spread(wanted, GAP), named, strict=True):
        rates = " / ".join(format_figure(_rate(point)) for point in mine[key])
        name = f"{key[0]}: {key[1]}" if operators.count(key[1]) > 1 else key[1]
        first = mine[key][0]
        axes.annotate(
            f"{name}  {rates} TFLOP/s, {spent[key] / sum(spent.values()):.0%}",
            (first.flop / first.moved_bytes, _rate(first)),
            (1.03, place), textcoords="axes fraction", fontsize=8, color=INK, va="center",
            arrowprops={"arrowstyle": "-", "color": "#999999", "lw": 0.6, "shrinkB": 4, "relpos": (0, 0.5)},
            zorder=1, annotation_clip=False,
        )  # fmt: skip


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places near the ``wanted`` ones (ascending, 0 to 1) that are ``gap`` apart, or less if there are too many."""
    gap = min(gap, 1.0 / len(wanted))
    places, least = list[float](), gap / 2
    for each in wanted:
        places.append(max(each, least))
        least = places[-1] + gap
    most = 1.0 - gap / 2
    for at in reversed(range(len(places))):
        places[at] = min(places[at], most)
        most = places[at] - gap
    return places


def _rate(point: KernelPoint) -> float:
    """TFLOP/s."""
    return point.flop / point.seconds / TERA


def _legend(axes: Axes, points: Sequence[KernelPoint]) -> None:
    """A mark for every direction, a colour for every kind of operator."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds, directions = {kind_of(point) for point in points}, {point.direction for point in points}
    handles: list[Line2D | Patch] = [Patch(color=c, label=kind) for kind, c in KERNEL_COLOUR.items() if kind in kinds]
    handles += [
        Line2D([], [], marker=mark, color="#777777", ls="", label=direction)
        for direction, mark in MARKS.items()
        if direction in directions
    ]
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(handles), frameon=False, fontsize=9,
        borderaxespad=0,
    )  # fmt: skip
