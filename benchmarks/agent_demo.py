"""Count the runs that it takes from a poor launch to a layout within 5 % of the best of a measured grid.

Usage: python benchmarks/agent_demo.py [--json FILE]

A cell is one model on one number of GPUs with one batch, in the Ultra-Scale Playbook's sweep; its layouts were all
measured, those that ran out of memory too, so a "run" is looked up. Three ways to choose the next one: simpar's order
(what is predicted to fit first, shortest predicted step first), by chance (its expectation is exact), and one
coordinate at a time from the slowest layout that ran (all values of tp, then pp, micro-batch, ZeRO; the best is kept;
when nothing gains, from a layout by chance that was not measured).

The software profile of these runs was made from them (docs/learning_accuracy.md), so this shows what the order is worth
where the stack is known, not how well an unknown one is predicted.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
from normalise.tables import read_published
from tables import DATA

import simpar

TABLE = DATA / "measured_playbook_dev.csv"
NEAR = 1.05
"""A layout is found once one was measured whose step is at most so many times the shortest."""
LEAST = 12
"""Layouts of a cell that ran, at least: of fewer there is little to choose."""
AXES = ("tp", "pp", "micro_batch", "zero")
RESTARTS = 50


@dataclass(frozen=True)
class Layout:
    """A measured layout: its coordinates, seconds (None: out of memory), and what was predicted."""

    at: tuple[str, ...]
    measured_s: float | None
    predicted_s: float
    predicted_fits: bool

    @property
    def seconds(self) -> float:
        """Infinite where it ran out of memory."""
        return float("inf") if self.measured_s is None else self.measured_s


def cells(table: Path) -> dict[str, list[Layout]]:
    """Layouts by cell, each once (the shortest of repeats), without runs of the trainer's slow pipelines."""
    rows = read_published(table)
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="", encoding="utf-8") as file:
        names = dict.fromkeys(name for row in rows for name, value in row.items() if name and value)
        writer = csv.DictWriter(file, list(names), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        file.flush()
        details = simpar.validate(file.name)["rows_detail"]
    found: dict[str, dict[tuple[str, ...], Layout]] = defaultdict(dict)
    for row, detail in zip(rows, details, strict=True):
        if detail.get("suspect") or detail.get("predicted_step_time_s") is None:
            continue
        cell = (
            f"{row['model_name'].removeprefix('llama-like-')}, {row['n_gpus']} GPUs, batch {row['global_batch_seqs']}"
        )
        at = tuple(str(row.get(axis) or "0") for axis in AXES)
        layout = Layout(
            at, detail.get("measured_step_time_s"), detail["predicted_step_time_s"], bool(detail["predicted_fits"])
        )
        known = found[cell].get(at)
        if known is None or layout.seconds < known.seconds:
            found[cell][at] = layout
    listed = {cell: sorted(layouts.values(), key=lambda each: each.at) for cell, layouts in sorted(found.items())}
    return {cell: each for cell, each in listed.items() if sum(one.measured_s is not None for one in each) >= LEAST}


def by_prediction(layouts: Sequence[Layout]) -> float:
    """Runs in the order of predictions."""
    order = sorted(layouts, key=lambda each: (not each.predicted_fits, each.predicted_s, each.at))
    return float(_until(order, _goal_s(layouts)))


def by_chance(layouts: Sequence[Layout]) -> float:
    """Expected runs in an order by chance: (N + 1) / (K + 1) with K layouts that count as found."""
    found = sum(each.seconds <= _goal_s(layouts) for each in layouts)
    return (len(layouts) + 1) / (found + 1)


def by_coordinates(layouts: Sequence[Layout]) -> float:
    """Mean runs of a search along one coordinate at a time, over restarts by chance."""
    lines = {
        each.at: [[one for one in layouts if _on_line(one, each, axis)] for axis in range(len(AXES))]
        for each in layouts
    }
    counts = [_coordinates(layouts, lines, np.random.default_rng(seed)) for seed in range(RESTARTS)]
    return float(np.mean(counts))


def _coordinates(
    layouts: Sequence[Layout], lines: dict[tuple[str, ...], list[list[Layout]]], chance: np.random.Generator
) -> int:
    goal_s, measured = _goal_s(layouts), set[tuple[str, ...]]()
    current = max((each for each in layouts if each.measured_s is not None), key=lambda each: each.seconds)
    measured.add(current.at)
    while current.seconds > goal_s:
        before = current
        for axis in range(len(AXES)):
            line = lines[current.at][axis]
            for each in line:
                measured.add(each.at)
                if each.seconds <= goal_s:
                    return len(measured)
            current = min([current, *line], key=lambda each: each.seconds)
        if current == before:
            left = [each for each in layouts if each.at not in measured]
            current = left[int(chance.integers(len(left)))]
            measured.add(current.at)
    return len(measured)


def _on_line(one: Layout, other: Layout, axis: int) -> bool:
    """Whether layouts differ along a single axis (and in the replicas that follow from it)."""
    return [at for at in range(len(AXES)) if one.at[at] != other.at[at]] == [axis]


def _goal_s(layouts: Sequence[Layout]) -> float:
    return NEAR * min(each.seconds for each in layouts)


def _until(order: Sequence[Layout], goal_s: float) -> int:
    return next(at for at, each in enumerate(order, start=1) if each.seconds <= goal_s)


WAYS: dict[str, Callable[[Sequence[Layout]], float]] = {
    "simpar": by_prediction,
    "by chance": by_chance,
    "one coordinate at a time": by_coordinates,
}


def table(of_cells: dict[str, list[Layout]]) -> Iterator[dict[str, object]]:
    """A row a cell: how many layouts there are, and the runs of each way."""
    for cell, layouts in of_cells.items():
        ran = [each.seconds for each in layouts if each.measured_s is not None]
        row = {"cell": cell, "layouts": len(layouts), "slowest / best": max(ran) / min(ran)}
        yield row | {name: way(layouts) for name, way in WAYS.items()}


def main() -> None:
    """Print a table, and by what factor simpar needs fewer runs."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = list(table(cells(TABLE)))
    print(f"| cell | layouts | slowest / best | {' | '.join(WAYS)} |\n|{'---|' * (3 + len(WAYS))}")
    for row in rows:
        runs = " | ".join(f"{row[name]:.3g}" for name in WAYS)
        print(f"| {row['cell']} | {row['layouts']} | {row['slowest / best']:.3g} | {runs} |")
    for name in WAYS:
        print(f"{name}: median {median(float(str(row[name])) for row in rows):.3g} runs")
    for name in list(WAYS)[1:]:
        factor = geometric_mean([float(str(row[name])) / float(str(row["simpar"])) for row in rows])
        print(f"{name} takes {factor:.3g} times as many runs as simpar (geometric mean over cells)")
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
