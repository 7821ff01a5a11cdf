"""Compare how often the predicted faster one of two layouts was the faster one with how often it was said to be.

Usage: python benchmarks/near_ties.py [--rows FILE] [--write]

Pairs of layouts of one model on one cluster with one batch, of the development tables. Errors are those of runs whose
whole source nothing was fitted to, and so is the spread (calibrate_uncertainty.py; --rows is its file). A run
counts once however many it is compared with, and a source as SOURCE_RUNS at most.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from calibrate_uncertainty import Fold, folds_of, moved_runs
from calibrate_uncertainty_rows import Run, kept_runs
from tables import ROOT

from simpar.uncertainty.step_time import StepTimeError
from simpar.uncertainty.support import support_of
from simpar.uncertainty.table import load_error_table
from simpar.uncertainty.ties import rank_layouts

SOURCE_RUNS = 30
DIFFERENCES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Of predicted steps, as shares of the shorter one: where groups of pairs begin."""
CERTAINTIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""That the predicted faster one is the faster one: where groups of pairs begin."""
PICTURE = ROOT / "docs" / "images" / "near_ties.png"


@dataclass(frozen=True)
class Pair:
    """Two layouts: by how much their predicted steps differ, how probably the shorter one is said to be, if it was."""

    difference: float
    probability: float
    is_right: bool
    weight: float


def pairs_of(runs: Sequence[Run]) -> Iterator[Pair]:
    """All pairs of layouts of one cell that are predicted to differ, of sources left out in turn."""
    moved, cells = moved_runs(runs), defaultdict[tuple[str, ...], list[tuple[int, float, float]]](list)
    for fold in folds_of(moved):
        if fold.name.startswith("source "):
            for at, error, spread in zip(fold.left_out, fold.errors, _spreads(moved, fold), strict=True):
                if moved[at].parts_s:
                    cells[moved[at].cell].append((int(at), float(error), spread))
    counted = Counter(moved[cell[0][0]].source for cell in cells.values() for _ in cell if len(cell) > 1)
    for cell in cells.values():
        source = moved[cell[0][0]].source
        for pair in combinations(cell, 2):
            (one, one_error, spread), (two, two_error, other) = pair
            measured_s = np.array([moved[one].measured_s, moved[two].measured_s], dtype=np.float64)
            predicted_s = measured_s / np.exp([one_error, two_error])
            shares = np.array([moved[at].parts_s for at in (one, two)])
            shares /= shares.sum(axis=1, keepdims=True)
            if np.isclose(predicted_s[0], predicted_s[1], rtol=1e-9):
                continue
            odds = rank_layouts(predicted_s, shares * predicted_s[:, None], max(spread, other)).best_probability
            first = int(predicted_s.argmin())
            yield Pair(
                difference=float(predicted_s.max() / predicted_s.min() - 1),
                probability=float(odds[first]),
                is_right=bool(measured_s[first] <= measured_s[1 - first]),
                weight=2 / len(cell) * min(1.0, SOURCE_RUNS / counted[source]),
            )


def _spreads(moved: Sequence[Run], fold: Fold) -> list[float]:
    """By how much layouts differ, of every run that is left out, by what evidence is left."""
    errors = load_error_table().time
    runs = [moved[at] for at in fold.left_out]
    known = {traits: support_of(traits, fold.evidence) for traits in {run.traits for run in runs}}
    return [StepTimeError.of(known[run.traits], errors, run.predicted_s).layout for run in runs]


def groups_of(pairs: Sequence[Pair], by: str, starts: Sequence[float]) -> list[tuple[float, int, float, float]]:
    """(Where it begins, pairs, how often the predicted faster one was to be, and was, the faster one) by group."""
    found = []
    for start, end in zip(starts, (*starts[1:], np.inf), strict=True):
        mine = [pair for pair in pairs if start <= getattr(pair, by) < end]
        if mine:
            weight = [pair.weight for pair in mine]
            said = np.average([pair.probability for pair in mine], weights=weight)
            was = np.average([pair.is_right for pair in mine], weights=weight)
            found.append((start, len(mine), float(said), float(was)))
    return found


def draw(groups: Sequence[tuple[float, int, float, float]], path: Path) -> None:
    """How often the predicted faster one of two was the faster one, said and measured, by predicted difference."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2))
    at = np.arange(len(groups))
    axes.plot(at, [100 * said for *_, said, _ in groups], "o--", color="0.5", label="said")
    axes.plot(at, [100 * was for *_, was in groups], "o", color="tab:blue", label="measured")
    ends = [f"{100 * end:g} %" for end in DIFFERENCES[1:]]
    names = [*(f"below\n{end}" for end in ends), f"above\n{ends[-1]}"]
    ticks = [f"{names[DIFFERENCES.index(start)]}\n({count})" for start, count, *_ in groups]
    axes.set_xticks(at, ticks, fontsize=8)
    axes.set(ylim=(50, 101), xlabel="predicted difference of two layouts (pairs)", ylabel="shorter one is faster, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    """Print both by groups of pairs, and draw on request."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=Path, help="file that keeps runs, of calibrate_uncertainty.py")
    parser.add_argument("--write", action="store_true", help="draw the picture of the docs")
    arguments = parser.parse_args()
    pairs = list(pairs_of(kept_runs(arguments.rows)))
    for by, starts in (("difference", DIFFERENCES), ("probability", CERTAINTIES)):
        for start, count, said, was in groups_of(pairs, by, starts):
            print(f"{by} from {start:6.1%}: {count:5d} pairs, said {said:6.1%}, measured {was:6.1%}")
    hit, odds = (np.array([getattr(pair, name) for pair in pairs]) for name in ("is_right", "probability"))
    score = -np.average(np.log(np.where(hit, odds, 1 - odds) + 1e-4), weights=[pair.weight for pair in pairs])
    print(f"{len(pairs)} pairs, log score {score:.3f} (coin: {np.log(2):.3f})")
    if arguments.write:
        draw(groups_of(pairs, "difference", DIFFERENCES), PICTURE)


if __name__ == "__main__":
    main()
