"""Pictures of a result: timeline, memory over time, breakdown of the step, occupancy of every stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar.errors import UserError
from simpar.files import choose
from simpar.report.figures import canvas, clean, new_figure, save_figure, titles
from simpar.report.flame import draw_flame
from simpar.report.palette import (
    BAND_EDGE,
    BAND_HATCH,
    BUBBLE,
    COMM,
    IDLE_COLOUR,
    IDLE_TITLE,
    INK,
    KIND_COLOUR,
    KIND_TITLE,
    MEMORY_COLOUR,
    PART_COLOUR,
    ink_on,
    lighter,
)
from simpar.report.roofline_chart import draw_roofline
from simpar.report.timeline import (
    IDLE_CAUSES,
    KINDS,
    MEMORY_PARTS,
    PASS_KINDS,
    Blocks,
    MemoryCurve,
    Overview,
    StagePlot,
)
from simpar.units import GIB, MS, US, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simpar.report.result import Result

MAX_PANELS = 16
AGAIN_WRITTEN = "write the result again with `simpar simulate --json FILE`"
POINTS_PER_INCH = 300  # of a curve: three a hundredth of an inch, as thinning keeps of what one line draws
RASTER_ABOVE = 5000  # with more blocks, an SVG is too slow to open


def save_plot(result: Result, kind: str, path: str | Path) -> None:
    """Draw ``kind`` (a key of KINDS_OF_PLOT) to a .png, .svg, .pdf or .html.

    Raises UserError for another kind or suffix.

    >>> import simpar, tempfile
    >>> result = simpar.simulate(**simpar.load_scenario("gpt2-laptop").inputs())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_plot(result, "memory", f"{folder}/memory.png")
    """
    from simpar.report.notebook import to_html

    save_figure(lambda: plot(result, kind), path, kind, to_html(result))


def save_timelines(results: Mapping[str, Result], path: str | Path) -> None:
    """Draw the timelines of several results, by their letters, to a file as ``save_plot`` does."""
    save_figure(lambda: plot_timelines(results), path, "timelines")


def plot(result: Result, kind: str) -> Figure:
    """The picture as a matplotlib Figure. Raises UserError for an unknown kind or without a timeline."""
    return KINDS_OF_PLOT[choose(kind, KINDS_OF_PLOT, "plot")](result)


def plot_timeline(result: Result) -> Figure:
    """Stages over time: what each rank computes, its messages as thin bars below, and why it idles."""
    view = _overview(result)
    figure, axes = canvas(_row_height(len(view.stages)) * len(view.stages) + 1.5)
    scale, unit = _time_unit(view.step_time_s)
    many = sum(len(stage.blocks) for stage in view.stages) > RASTER_ABOVE
    used: set[str] = set()
    for row, stage in enumerate(view.stages):
        used |= _draw_stage(axes, row, stage, view.step_time_s, scale=scale, rasterized=many)
    _stage_axis(axes, view)
    axes.set_xlim(0, view.step_time_s / scale)
    axes.set_xlabel(f"time ({unit})", color=INK)
    _label_blocks(axes, view, scale)
    _titles(figure, result, f"step {_step_words(result)}, bubble {result.bubble_text}")
    _legend(axes, used, idle_causes(view))
    return figure


def plot_timelines(results: Mapping[str, Result]) -> Figure:
    """Timelines of several results one above the other, on one scale of time that the longest step fills.

    Raises UserError without a timeline.
    """
    from simpar.report.words import headline

    views = {letter: _overview(result) for letter, result in results.items()}
    longest_s = max(view.step_time_s for view in views.values())
    heights = [max(0.9, _row_height(len(view.stages)) * len(view.stages)) + 0.6 for view in views.values()]
    figure = new_figure(14.0, sum(heights) + 0.8)
    panels = figure.subplots(len(views), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    scale, unit = _time_unit(longest_s)
    used: set[str] = set()
    for axes, (letter, result) in zip(panels, results.items(), strict=True):
        view = views[letter]
        clean(axes)
        axes.set_xlim(0, longest_s / scale)
        many = sum(len(stage.blocks) for stage in view.stages) > RASTER_ABOVE
        for row, stage in enumerate(view.stages):
            used |= _draw_stage(axes, row, stage, view.step_time_s, scale=scale, rasterized=many)
        _stage_axis(axes, view)
        _label_blocks(axes, view, scale)
        axes.axvline(view.step_time_s / scale, color=INK, lw=1.0, ls=":", zorder=4)
        words = f"{letter}: {headline(result)}\nstep {_step_words(result)}, bubble {result.bubble_text}"
        axes.set_title(words, loc="left", fontsize=9, color=INK)
    panels[-1].set_xlabel(f"time ({unit})", color=INK)
    causes = dict.fromkeys(cause for view in views.values() for cause in idle_causes(view))
    handles = _legend_handles(used, list(causes))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False,
        fontsize=9, handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip
    return figure


def plot_memory(result: Result) -> Figure:
    """Memory over time by category, one panel per stage, with the device's capacity.

    A band in the fullest stage's panel is the 90 % interval of the reserved peak.
    """
    from matplotlib.patches import Patch

    from simpar.report.words import memory_state

    view = _overview(result)
    stages = _with_memory(view)
    columns = min(4, len(stages))
    rows = -(-len(stages) // columns)
    width = 13.0 if columns > 1 else 9.0
    figure = new_figure(width, 2.4 * rows + 1.6)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    scale, unit = _time_unit(view.step_time_s)
    for panel, stage in zip(panels.flat, stages, strict=False):
        _draw_memory(panel, stage, result, scale, round(POINTS_PER_INCH * width / columns))
    peaks = [float(_curve(stage).total_bytes.max()) for stage in stages]
    band = _draw_interval(panels.flat[int(np.argmax(peaks))], result)
    highest = max(*(one.capacity_bytes for one in result.memory.stages), *peaks, *band)
    panels[0, 0].set_ylim(0, 1.06 * highest / GIB)
    for panel in panels.flat[len(stages) :]:
        panel.set_visible(False)
    for panel in panels[:, 0]:
        panel.set_ylabel("GiB", color=INK)
    for panel in panels[-1]:
        panel.set_xlabel(f"time ({unit})", color=INK)
    shown = f", {len(stages)} of {len(view.stages)} stages" if len(stages) < len(view.stages) else ""
    peak = format_bytes(result.peak_memory_bytes)
    _titles(figure, result, f"{memory_state(result)}; peak in use {peak}{shown}")
    handles = [_patch(MEMORY_COLOUR[part], part.replace("_", " ")) for part in MEMORY_PARTS]
    handles.append(panels[0, 0].lines[-1])
    if band:
        handles.append(
            Patch(facecolor="none", edgecolor=BAND_EDGE, hatch=BAND_HATCH, label="reserved peak, 90 % interval")
        )
    ncols = len(handles) if columns > 1 else 4
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9)
    return figure


def plot_breakdown(result: Result) -> Figure:
    """Where the step of the critical rank goes, as a waterfall from zero to the step time.

    The error bar in the last row is the 90 % interval of the step.
    """
    parts = {name: value for name, value in result.time_breakdown_s.model_dump().items() if value > 0}
    known, names = result.certainty, [name.replace("_", " ") for name in parts]
    figure, axes = canvas(0.42 * (len(parts) + (known is not None)) + 1.5, width=9.0)
    scale, unit = _time_unit(result.step_time_s)
    left = 0.0
    for row, (name, value) in enumerate(parts.items()):
        axes.barh(row, value / scale, left=left / scale, height=0.7, color=PART_COLOUR[name])
        text = f"{format_seconds(value)}  {value / result.step_time_s:.1%}"
        axes.annotate(
            text, ((left + value) / scale, row), (5, 0), textcoords="offset points", va="center", fontsize=9,
            color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
        left += value
    longest_s = result.step_time_s
    if known is not None:
        longest_s = known.step_time_interval_s[1]
        around = abs(np.array(known.step_time_interval_s) - result.step_time_s)[:, None] / scale
        names.append("step,\n90 % interval")
        axes.errorbar(result.step_time_s / scale, len(parts), xerr=around, fmt="o", ms=4, color=INK, capsize=4)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.18 * result.step_time_s, 1.05 * longest_s) / scale)
    axes.axvline(result.step_time_s / scale, color=INK, lw=0.8, ls=":", zorder=0)
    axes.set_xlabel(f"time ({unit})", color=INK)
    _titles(figure, result, f"step {_step_words(result)}, MFU {result.mfu:.1%}")
    return figure


def plot_heatmap(result: Result, bins: int = 240) -> Figure:
    """The share of time in which every stage computes, over time: for timelines with too many blocks to draw."""
    view = _overview(result)
    edges = np.linspace(0, view.step_time_s, bins + 1)
    busy = np.array([_occupancy(stage.blocks, edges) for stage in view.stages])
    figure, axes = canvas(_row_height(len(view.stages)) * len(view.stages) + 1.5)
    scale, unit = _time_unit(view.step_time_s)
    extent = (0, view.step_time_s / scale, len(view.stages) - 0.5, -0.5)
    image = axes.imshow(busy, aspect="auto", extent=extent, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, pad=0.01, format=lambda value, _: f"{value:.0%}")
    bar.set_label("share of time computing", color=INK)
    bar.outline.set_visible(False)
    _stage_axis(axes, view)
    axes.set_xlabel(f"time ({unit})", color=INK)
    _titles(figure, result, f"step {_step_words(result)}, bubble {result.bubble_text}")
    return figure


def plot_flame(result: Result) -> Figure:
    """What the fullest rank holds when its memory peaks: by category and in it by layer, and layer by layer."""
    if (held := _overview(result).held) is None:
        raise UserError(f"result: memory by layer is missing: {AGAIN_WRITTEN}")
    total, capacity = format_bytes(held.total_bytes), format_bytes(held.capacity_bytes)
    words = f"a rank of stage {held.stage} at its peak: {total} of {capacity}"
    figure = draw_flame(held)
    _titles(figure, result, words)
    return figure


def plot_roofline(result: Result) -> Figure:
    """Products and attention of a rank under the roofline of its device: FLOP/s over FLOP per byte."""
    if (roofline := _overview(result).roofline) is None:
        raise UserError(f"result: kernels are missing, as for stages with roles of their own: {AGAIN_WRITTEN}")
    words = (
        f"{roofline.device}; {roofline.share:.0%} of the kernels' time is shown, the rest computes no products; "
        "right: rates forward and backward, share of the time shown"
    )
    figure = draw_roofline(roofline)
    _titles(figure, result, words)
    return figure


KINDS_OF_PLOT: dict[str, Callable[[Result], Figure]] = {
    "timeline": plot_timeline,
    "memory": plot_memory,
    "breakdown": plot_breakdown,
    "heatmap": plot_heatmap,
    "flame": plot_flame,
    "roofline": plot_roofline,
}


def _overview(result: Result) -> Overview:
    if result.overview is None or not result.overview.stages:
        raise UserError("result: timeline is missing: write the result with `simpar simulate --json FILE`")
    return result.overview


def idle_causes(view: Overview) -> list[str]:
    """Causes of idle time in a timeline; only bubbles if a result does not say."""
    codes = {code for stage in view.stages if stage.idle for code in np.unique(stage.idle.cause).tolist()}
    known = any(stage.idle for stage in view.stages)
    return [cause for code, cause in enumerate(IDLE_CAUSES) if code in codes] if known else ["bubble"]


def _draw_stage(
    axes: Axes, row: int, stage: StagePlot, step_time_s: float, *, scale: float, rasterized: bool
) -> set[str]:
    """Draw one row; returns the colours used."""
    _draw_idle(axes, row, stage, step_time_s, scale)
    used: set[str] = set()
    blocks = stage.blocks
    for code in np.unique(blocks.kind).tolist():
        kind = KINDS[code]
        colour, low, height = KIND_COLOUR[kind], *_lane(kind, row)
        of_kind = blocks.of_kind(kind)
        used.add(colour)
        shades = of_kind.chunk if kind in PASS_KINDS else np.zeros(len(of_kind), dtype=np.int64)
        edge = min(0.3, 0.04 * _points(axes, float(np.median(of_kind.duration_s)) / step_time_s))
        for shade in np.unique(shades).tolist():
            mine = shades == shade
            bars = np.stack([of_kind.start_s[mine], of_kind.duration_s[mine]], axis=1) / scale
            axes.broken_barh(
                [tuple(bar) for bar in bars.tolist()],
                (low, height),
                facecolors=lighter(colour, max(shade, 0)),
                # an edge in its own colour keeps a message visible that is thinner than a pixel
                edgecolors="white" if height > 0.5 else colour,
                lw=edge if height > 0.5 else 0.4,
                zorder=2,
                rasterized=rasterized,
            )
    return used


def _draw_idle(axes: Axes, row: int, stage: StagePlot, step_time_s: float, scale: float) -> None:
    """The background of a row: bubbles hatched, other idle time in tints of its cause's colour."""
    if stage.idle is None:
        whole = [(0, step_time_s / scale)]
        axes.broken_barh(whole, (row - 0.4, 0.66), **_ground("bubble"), lw=0, zorder=1)
        return
    for code, cause in enumerate(IDLE_CAUSES):
        mine = stage.idle.cause == code
        bars = np.stack([stage.idle.start_s[mine], stage.idle.duration_s[mine]], axis=1) / scale
        if len(bars):
            spans = [tuple(bar) for bar in bars.tolist()]
            axes.broken_barh(spans, (row - 0.4, 0.66), **_ground(cause), lw=0, zorder=1)


def _ground(cause: str) -> dict[str, Any]:
    """The fill style of idle time of a cause."""
    if cause == "bubble":
        return {"facecolor": "white", "edgecolor": BUBBLE, "hatch": "////"}
    return {"facecolor": lighter(IDLE_COLOUR[cause], 2), "edgecolor": "none"}


def _points(axes: Axes, share: float) -> float:
    """The width, in points, of a share of the horizontal axis."""
    figure = axes.get_figure()
    assert figure is not None, "axes are drawn on a figure"
    return 72 * 0.9 * float(figure.get_figwidth()) * share  # type: ignore[union-attr]


def _lane(kind: str, row: int) -> tuple[float, float]:
    """Lower edge and height of a kind's bars: compute above, communication as a thin bar below it."""
    if KIND_COLOUR[kind] == COMM:
        return row + 0.29, 0.13
    return row - 0.4, 0.66


def _label_blocks(axes: Axes, view: Overview, scale: float) -> None:
    """Microbatch numbers, only in blocks wide enough to hold the largest of them."""
    size, span = 6.5, axes.get_xlim()[1]
    digits = len(str(max((int(stage.blocks.microbatch.max(initial=0)) for stage in view.stages), default=0)))
    for row, stage in enumerate(view.stages):
        blocks = stage.blocks.of_kind(*PASS_KINDS)
        columns = (blocks.start_s / scale, blocks.duration_s / scale, blocks.microbatch, blocks.chunk, blocks.kind)
        for start, width, microbatch, chunk, code in zip(*(c.tolist() for c in columns), strict=True):
            if microbatch < 0 or _points(axes, width / span) < (0.66 * digits + 0.4) * size:
                continue
            axes.text(
                start + width / 2, row - 0.08, str(microbatch), ha="center", va="center",
                fontsize=size, color=ink_on(lighter(KIND_COLOUR[KINDS[code]], max(chunk, 0))), zorder=3,
            )  # fmt: skip


def _draw_memory(panel: Axes, stage: StagePlot, result: Result, scale: float, points: int) -> None:
    """Parts on top of each other; those that do not change are two points each, so that vectors stay small."""
    curve = _curve(stage).thin(points)
    time = np.append(curve.time_s, result.step_time_s) / scale
    below = np.zeros(len(time))
    for name in (part for part in MEMORY_PARTS if part in curve.parts):
        above = below + np.append(curve.parts[name], curve.parts[name][-1]) / GIB
        is_flat = not np.ptp(below) and not np.ptp(above)
        at = [0, -1] if is_flat else slice(None)
        panel.fill_between(time[at], below[at], above[at], color=MEMORY_COLOUR[name], step="post", lw=0)
        below = above
    total = curve.total_bytes
    top = int(np.argmax(total))
    panel.plot(curve.time_s[top] / scale, total[top] / GIB, marker="v", color=INK, ms=4, clip_on=False)
    capacity = result.memory.capacity_of(stage.pipeline_rank) / GIB
    panel.axhline(capacity, color=COMM, lw=1.2, ls="--", label="capacity", zorder=3)
    panel.set_title(f"{stage.name}: {format_bytes(float(total[top]))}", fontsize=9, color=INK, loc="left")
    panel.set_xlim(0, result.step_time_s / scale)
    clean(panel)


def _draw_interval(panel: Axes, result: Result) -> tuple[float, ...]:
    """Draw the 90 % interval of the fullest rank's reserved peak; returns its ends, or nothing without one."""
    if result.certainty is None:
        return ()
    low, high = result.certainty.reserved_memory_interval_bytes
    panel.axhspan(low / GIB, high / GIB, facecolor="none", edgecolor=BAND_EDGE, hatch=BAND_HATCH, lw=0.6, zorder=2)
    return low, high


def _step_words(result: Result) -> str:
    from simpar.report.words import step_time_words

    return step_time_words(result)


def _curve(stage: StagePlot) -> MemoryCurve:
    assert stage.memory is not None, "stages without a curve are filtered before drawing"
    return stage.memory


def _with_memory(view: Overview) -> list[StagePlot]:
    stages = [stage for stage in view.stages if stage.memory is not None]
    if not stages:
        raise UserError("result: memory curves are missing: write the result with `simpar simulate --json FILE`")
    if len(stages) <= MAX_PANELS:
        return stages
    fullest = max(range(len(stages)), key=lambda index: float(_curve(stages[index]).total_bytes.max()))
    kept = {*np.linspace(0, len(stages) - 1, MAX_PANELS - 1).round().astype(int).tolist(), fullest}
    return [stages[index] for index in sorted(kept)]


def _occupancy(blocks: Blocks, edges: Any) -> Any:
    """The share of each time bin inside compute blocks (blocks of one rank do not overlap)."""
    compute = blocks.of_kind(*(kind for kind, colour in KIND_COLOUR.items() if colour != COMM))
    order = np.argsort(compute.start_s)
    start, duration = compute.start_s[order], compute.duration_s[order]
    done = np.concatenate([[0.0], np.cumsum(duration)])
    index = np.searchsorted(start, edges, side="right")
    inside = np.zeros(len(edges))
    seen = index > 0
    inside[seen] = np.clip(edges[seen] - start[index[seen] - 1], 0, duration[index[seen] - 1])
    cumulative = np.where(seen, done[np.maximum(index - 1, 0)] + inside, 0.0)
    return np.clip(np.diff(cumulative) / np.diff(edges), 0, 1)


def _row_height(num_stages: int) -> float:
    return 0.44 if num_stages <= 16 else max(0.16, 7.0 / num_stages)


def _stage_axis(axes: Axes, view: Overview) -> None:
    count = len(view.stages)
    every = 1 if count <= 32 else 4
    names = [stage.name + (f"  x{stage.multiplicity}" if stage.multiplicity > 1 else "") for stage in view.stages]
    axes.set_yticks(range(0, count, every), names[::every])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(count - 0.45, -0.55)
    axes.spines["left"].set_visible(False)


def _titles(figure: Figure, result: Result, detail: str) -> None:
    """The headline, and a line of detail below it."""
    from simpar.report.words import headline

    titles(figure, headline(result), detail)


def _legend_handles(used: set[str], idle: Sequence[str]) -> list[Any]:
    """A swatch for every colour and every cause of idle time that is drawn."""
    from matplotlib.patches import Patch

    handles = [_patch(colour, title) for colour, title in KIND_TITLE.items() if colour in used]
    return handles + [Patch(**_ground(cause), label=IDLE_TITLE[cause], lw=0) for cause in idle]


def _legend(axes: Axes, used: set[str], idle: Sequence[str]) -> None:
    handles = _legend_handles(used, idle)
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(handles), frameon=False,
        fontsize=9, handlelength=1.2, columnspacing=1.2, borderaxespad=0,
    )  # fmt: skip


def _patch(colour: str, title: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=title)


def _time_unit(span_s: float) -> tuple[float, str]:
    """Seconds per displayed unit, and its name."""
    if span_s >= 1:
        return 1.0, "s"
    return (MS, "ms") if span_s >= MS else (US, "us")
