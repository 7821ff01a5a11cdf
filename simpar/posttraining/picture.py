"""Both pools over time: a row for the training devices, one for every replica, bars for what each does."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simpar.posttraining.answer import PostTrainingResult
from simpar.posttraining.memory import RESERVED
from simpar.posttraining.program import KINDS
from simpar.posttraining.terminal import headline, lead_lines
from simpar.posttraining.weight_flows import FLOW
from simpar.report.figures import clean, new_figure, save_figure
from simpar.report.palette import AGAIN, BACKWARD, COMM, FORWARD, HOST, INK
from simpar.units import GIB, NS_PER_S

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOUR = {"generate": FORWARD, "score": AGAIN, "train": BACKWARD, "weights": COMM, FLOW: COMM, "switch": HOST}
MOST_ROWS = 24
BAR = 0.8


def save_pools(result: PostTrainingResult, path: str | Path) -> None:
    """Write the timeline as .png, .svg, .pdf or .html, whose page has the answer, too. Raises UserError otherwise."""
    save_figure(lambda: plot_pools(result), path, "a step of reinforcement learning", _below(result))


def plot_pools(result: PostTrainingResult) -> Figure:
    """The training devices first, then replicas, of many every so many; below, the memory of a device of each side."""
    timeline = result.timeline
    rows, kinds = timeline.slices, [label.kind for label in timeline.labels]
    classes = np.arange(len(timeline.classes))
    shown = classes if len(classes) <= MOST_ROWS else np.unique(np.linspace(0, len(classes) - 1, MOST_ROWS).astype(int))
    figure = new_figure(14.0, 0.28 * len(shown) + 3.5)
    axes, below = figure.subplots(2, sharex=True, height_ratios=(max(len(shown), 4), 7))
    clean(axes)
    clean(below)
    for at, each in enumerate(shown.tolist()):
        mine = np.flatnonzero(rows.class_id == each)
        for kind, colour in COLOUR.items():
            bars = [row for row in mine.tolist() if kinds[int(rows.label[row])] == kind]
            spans = [
                (rows.start_ns[row] / NS_PER_S, (rows.finish_ns[row] - rows.start_ns[row]) / NS_PER_S) for row in bars
            ]
            axes.broken_barh(spans, (at - BAR / 2, BAR), facecolors=colour, linewidth=0)
    axes.set_yticks(range(len(shown)), [timeline.classes[each].name for each in shown.tolist()])
    axes.invert_yaxis()
    for name, curve in result.memory.items():
        points = zip(*((at, used / GIB) for at, used in curve), strict=True)
        colour, dashes = (BACKWARD, "-") if name == "training" else (FORWARD, "--" if name == RESERVED else "-")
        below.plot(*points, color=colour, linestyle=dashes, label=name, linewidth=1)
    below.set_ylim(0.0)
    below.set_ylabel("GiB of a device", color=INK, fontsize=8)
    below.legend(fontsize=8, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)
    below.set_xlabel("seconds", color=INK, fontsize=8)
    axes.set_xlim(0.0, timeline.span_ns / NS_PER_S)
    handles = [axes.barh([0], [0], color=colour, label=f"{kind}: {KINDS[kind]}") for kind, colour in COLOUR.items()]
    axes.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(handles), fontsize=8, frameon=False
    )
    return figure


def _below(result: PostTrainingResult) -> str:
    """What was simulated and the answer in four lines, under the picture of a page."""
    lines = "".join(f"<p><b>{escape(name)}</b> {escape(words)}</p>" for name, words in lead_lines(result.figures))
    return f"<p>{escape(headline(result.figures))}</p>{lines}"
