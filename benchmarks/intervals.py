"""How sure the constants of profiles are: intervals beside a fit, and the file that travels with simpar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simpar import files
from simpar.hardware.intervals import FILE

Floats = NDArray[np.float64]
NINE_IN_TEN = 1.645
STEP = 1e-3
RIDGE = 1e-9  # where no row tells anything, the interval is all that is possible


def deviations(residuals: Callable[[Floats], Floats], point: Floats, groups: Sequence[object], far: float) -> Floats:
    """Standard deviations of the coordinates of a robust least-squares fit (soft L1 from ``far`` on).

    The larger of two: as if every row erred on its own, and as if rows of a group erred together (the sandwich of
    Liang and Zeger 1986, with G / (G - 1) for G groups). Rows behind the groups are a prior's, each on its own.
    """
    left = residuals(point)
    table = np.stack(
        [(residuals(point + step) - residuals(point - step)) / (2 * STEP) for step in STEP * np.eye(len(point))], axis=1
    )
    weight = 1.0 / np.sqrt(1.0 + (left / far) ** 2)
    sure = np.linalg.inv((table * weight[:, None]).T @ table + RIDGE * np.eye(len(point)))
    rows = len(groups)
    noise = np.sum(weight[:rows] * left[:rows] ** 2) / max(rows - len(point), 1)
    scores = (weight * left)[:rows, None] * table[:rows]
    of_group: dict[object, Floats] = {}
    for group, score in zip(groups, scores, strict=True):
        of_group[group] = of_group.get(group, np.zeros(len(point))) + score
    together = np.array(list(of_group.values()))
    shared = together.T @ together * len(together) / max(len(together) - 1, 1)
    return np.asarray(np.sqrt(np.maximum(np.diag(sure) * noise, np.diag(sure @ shared @ sure))))


def write_intervals(kind: str, found: Mapping[str, Mapping[str, tuple[float, float]]]) -> None:
    """Put intervals of profiles of a kind into the file that travels with simpar; those of other fits stay."""
    path = Path(FILE)
    known = json.loads(path.read_text()) if path.exists() else {}
    kept = known.get(kind, {})
    for profile, values in found.items():
        ours = {name: [float(f"{end:.3g}") for end in ends] for name, ends in values.items()}
        kept[profile] = {**kept.get(profile, {}), **ours}
    known[kind] = {profile: dict(sorted(values.items())) for profile, values in sorted(kept.items()) if values}
    files.write_atomic(path, json.dumps(dict(sorted(known.items())), indent=1) + "\n")
