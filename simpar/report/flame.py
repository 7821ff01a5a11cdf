"""The flame chart of memory at the peak: categories, the layers in each, and the same layer by layer."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from simpar.report.figures import clean, new_figure
from simpar.report.palette import COMM, INK, MEMORY_COLOUR, ink_on, lighter
from simpar.report.timeline import MEMORY_PARTS
from simpar.units import GIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simpar.report.pictured import HeldAtPeak

WIDTH = 14.0
FONT = 8.0
ROW = 0.96
MUCH_FREE = 1.5
"""A device with more memory than this times the peak is not drawn whole."""


def draw_flame(held: HeldAtPeak) -> Figure:
    """A figure of two panels."""
    from matplotlib.patches import Patch

    figure = new_figure(WIDTH, 6.6)
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 2.4))
    _draw_icicle(upper, held)
    _draw_layers(lower, held)
    there = {part.category for part in held.parts}
    handles: list[Any] = [
        Patch(color=MEMORY_COLOUR[each], label=each.replace("_", " ")) for each in MEMORY_PARTS if each in there
    ]
    handles += upper.lines
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return figure


def _draw_icicle(axes: Axes, held: HeldAtPeak) -> None:
    """The total, under it categories, under each its parts: as wide as they have bytes."""
    room = held.capacity_bytes <= MUCH_FREE * held.total_bytes
    span = 1.02 * max(held.total_bytes, held.capacity_bytes * room) / GIB
    axes.set_xlim(0, span)
    axes.set_ylim(3, 0)
    axes.set_yticks([0.5, 1.5, 2.5], ["device", "category", "layer"])
    axes.set_xlabel("GiB", color=INK)
    _box(axes, (0.0, held.total_bytes), 0, (0.88, 0.88, 0.88), [f"peak {format_bytes(held.total_bytes)}"])
    if room:
        axes.axvline(held.capacity_bytes / GIB, color=COMM, lw=1.2, ls="--", label="capacity")
    begin = 0.0
    for category in MEMORY_PARTS:
        parts = [part for part in held.parts if part.category == category]
        size, title = sum(part.size_bytes for part in parts), category.replace("_", " ")
        words = [f"{title} {format_bytes(size)}", title, format_bytes(size)]
        _box(axes, (begin, size), 1, lighter(MEMORY_COLOUR[category], 0), words)
        for number, part in enumerate(parts):
            colour = lighter(MEMORY_COLOUR[category], 1 + number % 2)
            short = part.name.removeprefix("layer ")
            words = [f"{part.name} {format_bytes(part.size_bytes)}", part.name, *([short] if short.isdecimal() else [])]
            _box(axes, (begin, part.size_bytes), 2, colour, words)
            begin += part.size_bytes
    clean(axes)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _box(axes: Axes, span: tuple[float, float], row: int, colour: tuple[float, float, float], words: list[str]) -> None:
    """A box from ``span`` (begin, length) in bytes with the first of ``words`` that fits into it."""
    begin, length = span[0] / GIB, span[1] / GIB
    axes.barh(row + 0.5, length, left=begin, height=ROW, color=colour, edgecolor="white", lw=0.3)
    room = 72 * 0.9 * WIDTH * length / axes.get_xlim()[1]  # in points
    fitting = next((each for each in words if 0.6 * FONT * (len(each) + 1) <= room), None)
    if fitting is not None:
        axes.text(
            begin + length / 2, row + 0.5, fitting, ha="center", va="center", fontsize=FONT, color=ink_on(colour),
            zorder=4, bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
        )  # fmt: skip


def _draw_layers(axes: Axes, held: HeldAtPeak) -> None:
    """A bar for every layer, stacked by category; what belongs to no layer is not in it."""
    by_layer: defaultdict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(MEMORY_PARTS, 0.0))
    for part in held.parts:
        if is_layer(part.name):
            by_layer[part.name][part.category] += part.size_bytes
    names = sorted(by_layer, key=_order)
    below = [0.0] * len(names)
    shown = [category for category in MEMORY_PARTS if any(by_layer[name][category] for name in names)]
    for category in shown:
        sizes = [by_layer[name][category] / GIB for name in names]
        axes.bar(range(len(names)), sizes, bottom=below, width=0.86, color=MEMORY_COLOUR[category])
        below = [one + size for one, size in zip(below, sizes, strict=True)]
    every = -(-len(names) // 28)
    kept = [at for at, name in enumerate(names) if not _order(name)[1] % every]
    axes.set_xticks(kept, [names[at].removeprefix("layer ") for at in kept])
    axes.set_xlim(-0.6, max(len(names), 1) - 0.4)
    axes.set_xlabel("layer", color=INK)
    axes.set_ylabel("GiB", color=INK)
    clean(axes)


def is_layer(name: str) -> bool:
    """Whether a part is of one layer, embedding and head included."""
    return name in ("embedding", "head") or name.startswith("layer ")


def _order(name: str) -> tuple[int, int]:
    """Layers in the order of the model."""
    if name == "embedding":
        return 0, 0
    return (2, 0) if name == "head" else (1, int(name.removeprefix("layer ")))
