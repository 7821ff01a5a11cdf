"""How alike the errors of one layout are on different numbers of nodes: what joint.KIN rests on.

Usage: python benchmarks/kin_errors.py [TABLE.csv ...]

Errors of step times around the mean of their source, device and precision, as predicted by the shipped profiles. Kin
are runs of one layout (model, sizes, tp, pp, ...) on different numbers of devices; other layouts are compared by the
means of theirs. Disturbed rows and errors beyond MOST are left out.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from as_published import published_outcomes
from calibrate_uncertainty_rows import TABLES
from normalise.tables import read_published
from tables import DATA

from simpar.validation.cells import Row, text

CELL = ("source", "gpu_type", "precision")
LAYOUT = (
    "model_name", "seq_len", "n_layers", "hidden", "tp", "pp", "vpp", "cp", "ep", "micro_batch", "recompute",
    "zero_stage_or_fsdp",
)  # fmt: skip
MOST, FEWEST = 0.5, 4
"""Of an error, as a logarithm; runs of a cell that say what its mean is."""
Key = tuple[str, ...]


def errors_of(paths: Sequence[Path]) -> Iterator[tuple[Row, float]]:
    """Rows of tables with log(measured / predicted)."""
    for path in paths:
        rows = read_published(path)
        for row, found in zip(rows, published_outcomes(rows), strict=True):
            if found.time_error is not None and not found.suspect and abs(np.log1p(found.time_error)) < MOST:
                yield row, -float(np.log1p(found.time_error))


def layouts_of(errors: Sequence[tuple[Row, float]]) -> dict[Key, list[tuple[str, float]]]:
    """By cell and layout (devices, error around the mean of its cell) of every run."""
    cells = defaultdict[Key, list[float]](list)
    for row, error in errors:
        cells[tuple(text(row, name) for name in CELL)].append(error)
    found = defaultdict[Key, list[tuple[str, float]]](list)
    for row, error in errors:
        cell = tuple(text(row, name) for name in CELL)
        if len(cells[cell]) >= FEWEST:
            layout = tuple(text(row, name) for name in LAYOUT)
            found[cell + layout].append((text(row, "n_gpus"), error - float(np.mean(cells[cell]))))
    return found


def correlation(groups: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Of pairs of errors around 0 in either order, every group counted once."""
    products = [float(np.mean([a * b for a, b in pairs])) for pairs in groups]
    squares = [float(np.mean([(a * a + b * b) / 2 for a, b in pairs])) for pairs in groups]
    return float(np.sum(products) / np.sum(squares))


def report(name: str, layouts: dict[Key, list[tuple[str, float]]]) -> None:
    """Print how alike kin are, and other layouts of one model."""
    kin = [
        [(one, other) for (here, one), (there, other) in combinations(runs, 2) if here != there]
        for runs in layouts.values()
    ]
    kin = [pairs for pairs in kin if pairs]
    models = defaultdict[Key, list[float]](list)
    for key, runs in layouts.items():
        models[key[: len(CELL) + 1]].append(float(np.mean([error for _, error in runs])))
    others = [list(combinations(means, 2)) for means in models.values() if len(means) > 1]
    if kin and others:
        print(f"{name:40s} {len(kin):4d} layouts on several numbers of devices: {correlation(kin):.2f}; "
              f"other layouts of {len(others)} models: {correlation(others):.2f}")  # fmt: skip


def main() -> None:
    """Print it of every source with many such layouts, and of all others together."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, default=[DATA / name for name in TABLES])
    found = layouts_of(list(errors_of(parser.parse_args().tables)))
    grids = ("vTrain", "ultrascale-playbook")
    for grid in grids:
        report(grid, {key: runs for key, runs in found.items() if key[0].startswith(grid)})
    report("all others", {key: runs for key, runs in found.items() if not key[0].startswith(grids)})


if __name__ == "__main__":
    main()
