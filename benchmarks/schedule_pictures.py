"""Draw every pipeline schedule: its timeline on a few ranks, and bubble against memory on more.

Times are those of a textbook: a forward, an input gradient and a weight gradient of a whole rank take one unit
each, split over the chunks that the rank holds; messages are free. TeraPipe is drawn with sequences in slices of equal
time. Run in the checkout:
``python benchmarks/schedule_pictures.py``
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar.files import write_atomic
from simpar.plan.schedules import SCHEDULES, make_schedule
from simpar.plan.schedules.actions import B, F, I, Schedule, W, waits_for
from simpar.plan.schedules.terapipe import slice_schedule
from simpar.report.figures import new_figure, render_figure
from simpar.report.palette import BACKWARD, FORWARD, INK, SERIES, WEIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent.parent / "docs" / "images"
SMALL = (4, 8)  # ranks and microbatches of the timelines
LARGE = (8, 32)  # and of the comparison
UNITS = {F: 1.0, B: 2.0, I: 1.0, W: 1.0}
COLOUR = {F: FORWARD, B: BACKWARD, I: BACKWARD, W: WEIGHT}
COLUMNS = 3
SLICES = {"terapipe": 4}
MARKS = "os^Dv<>PXh*dp8"


@dataclass(frozen=True)
class Timed:
    """An action table with the start and the end of every action, rank after rank."""

    schedule: Schedule
    start: np.ndarray
    end: np.ndarray
    slices: int = 1

    def _ranks(self) -> list[slice]:
        bounds = np.cumsum([0, *(len(rank) for rank in self.schedule.ranks)])
        return [slice(a, b) for a, b in pairwise(bounds.tolist())]

    @property
    def bubble(self) -> float:
        """Idle share of the time from the first start to the last end of all, averaged over ranks."""
        busy = [covered(self.start[rows], self.end[rows]) for rows in self._ranks()]
        return 1 - float(np.mean(busy)) / float(self.end.max())

    @property
    def own_bubble(self) -> float:
        """The same within a rank's own first start and last end: what a step without a barrier costs."""
        shares = [
            1 - covered(self.start[rows], self.end[rows]) / float(self.end[rows].max() - self.start[rows].min())
            for rows in self._ranks()
        ]
        return float(np.mean(shares))

    @property
    def peak(self) -> float:
        """Most activations on any rank, in those of one microbatch on a whole rank."""
        chunks = self.schedule.num_stages / self.schedule.num_ranks
        return max(self.schedule.peak_in_flight(rank) for rank in range(self.schedule.num_ranks)) / (
            chunks * self.slices
        )


def titled(name: str) -> str:
    """A schedule's name, with the slices that its sequences are cut into."""
    return f"{name}, {SLICES[name]} slices" if name in SLICES else name


def covered(start: np.ndarray, end: np.ndarray) -> float:
    """Length of the union of intervals; overlapped pairs count once."""
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(np.concatenate([[0.0], end[order]]))
    return float(np.clip(end[order] - np.maximum(start[order], reach[:-1]), 0, None).sum())


def run(name: str, ranks: int, microbatches: int) -> Timed:
    """Start every action when its rank is free and what it waits for has ended; pairs run together."""
    slices = SLICES.get(name, 1)
    schedule = (
        slice_schedule(make_schedule(name, ranks, microbatches), slices)
        if slices > 1
        else make_schedule(name, ranks, microbatches)
    )
    needs = waits_for(schedule)
    bounds = np.cumsum([0, *(len(rank) for rank in schedule.ranks)]).tolist()
    code = np.concatenate([rank.code for rank in schedule.ranks]).tolist()
    joined = np.concatenate([rank.overlap for rank in schedule.ranks]).tolist()
    share = schedule.num_ranks / schedule.num_stages / slices
    start, end = np.zeros(len(code)), np.full(len(code), np.nan)
    position, clock = bounds[:-1].copy(), [0.0] * schedule.num_ranks
    while any(at < stop for at, stop in zip(position, bounds[1:], strict=True)):
        for rank, stop in enumerate(bounds[1:]):
            while position[rank] < stop:
                both = range(position[rank], position[rank] + 1 + joined[position[rank]])
                ready = [end[needs[i]] if needs[i] >= 0 else 0.0 for i in both]
                if np.isnan(ready).any():
                    break
                begin = max(clock[rank], *ready)
                clock[rank] = begin + share * sum(UNITS[code[i]] for i in both)
                start[both], end[both] = begin, clock[rank]
                position[rank] = both.stop
    return Timed(schedule, start, end, slices)


def timelines() -> Figure:
    """A panel a schedule, on the same scale of time."""
    timed = {name: run(name, *SMALL) for name in SCHEDULES}
    longest = max(entry.end.max() for name, entry in timed.items() if name != "naive")
    rows = -(-len(timed) // COLUMNS)
    figure = new_figure(15.0, 2.1 * rows)
    panels = figure.subplots(rows, COLUMNS, sharex=True)
    for panel in panels.flat[len(timed) :]:
        panel.set_visible(False)
    for panel, (name, entry) in zip(panels.flat, timed.items(), strict=False):
        draw(panel, entry)
        panel.set_xlim(0, longest)
        cut = ", cut" if entry.end.max() > longest else ""
        words = f"bubble {entry.bubble:.0%}, peak {entry.peak:.3g}{cut}"
        panel.set_title(titled(name), fontsize=10, color=INK, loc="left", fontweight="bold")
        panel.set_title(words, fontsize=9, color=INK, loc="right")
    ranks, microbatches = SMALL
    figure.suptitle(
        f"{len(timed)} pipeline schedules, {ranks} ranks, {microbatches} microbatches: forward blue, backward "
        "green, weight gradient yellow, later chunks lighter; peak = activations kept, in microbatches",
        fontsize=10, color=INK, x=0.01, ha="left",
    )  # fmt: skip
    return figure


def draw(panel: Axes, entry: Timed) -> None:
    """The rows of one schedule."""
    from simpar.report.palette import lighter

    at = 0
    for row, rank in enumerate(entry.schedule.ranks):
        held = np.unique(rank.stage)
        late = 0.0
        for i in range(len(rank)):
            code, chunk = int(rank.code[i]), int(np.searchsorted(held, rank.stage[i]))
            pair = bool(rank.overlap[i]) or late > entry.start[at + i]
            late = entry.end[at + i] if rank.overlap[i] else late
            low, tall = (row - 0.42, 0.84) if not pair else (row - 0.42 + 0.42 * (code != F), 0.42)
            bar = (float(entry.start[at + i]), float(entry.end[at + i] - entry.start[at + i]))
            panel.broken_barh([bar], (low, tall), facecolors=lighter(COLOUR[code], chunk), edgecolors="white", lw=0.4)
        at += len(rank)
    panel.set_ylim(len(entry.schedule.ranks) - 0.5, -0.5)
    panel.set_yticks([])
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color("#999999")
    panel.tick_params(colors=INK, labelsize=7)


def tradeoff() -> Figure:
    """Bubble against memory: down and left is better."""
    figure = new_figure(10.5, 5.2)
    axes = figure.subplots()
    for mark, colour, name in zip(cycle(MARKS), cycle(SERIES), SCHEDULES, strict=False):
        if name == "naive":
            continue  # three quarters bubble would flatten the rest
        entry = run(name, *LARGE)
        copies = " (two copies of the weights)" if entry.schedule.num_mirrored else ""
        label = f"{titled(name)}{copies}: {entry.bubble:.1%} ({entry.own_bubble:.1%}), {entry.peak:.3g}"
        axes.plot(entry.peak, 100 * entry.bubble, mark, ms=9, label=label, color=colour, mec=INK, mew=0.5)
    ranks, microbatches = LARGE
    axes.set_xscale("log", base=2)
    axes.set_xticks([2, 4, 8, 16, 32], ["2", "4", "8", "16", "32"])
    axes.set_xlabel("activations kept on the fullest rank, in microbatches", color=INK)
    axes.set_ylabel("bubble, % of the step from the first start to the last end", color=INK)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{ranks} ranks, {microbatches} microbatches", fontsize=10, color=INK, loc="left")
    figure.legend(
        loc="outside right upper", frameon=False, fontsize=9, title="bubble (within a rank's own span), activations"
    )
    return figure


def main() -> None:
    """Write both pictures to docs/images."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    figures: dict[str, Any] = {"schedules": timelines, "schedules_tradeoff": tradeoff}
    for name, make in figures.items():
        write_atomic(FOLDER / f"{name}.png", render_figure(make(), "png"))
        print(f"docs/images/{name}.png")


if __name__ == "__main__":
    main()
