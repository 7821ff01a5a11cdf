"""Intervals of errors that were calibrated."""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from calibrate_uncertainty import shortest


def test_the_shortest_interval_leaves_out_the_longer_tail() -> None:
    """Of ten errors, nine lie in 0 .. 8, without the one far below; of their opposites, without the one far above."""
    errors = np.array([8.0, -9.0, *range(8)], dtype=np.float64)
    assert shortest(errors, np.ones(10), 0.9) == (0.0, 8.0)
    assert shortest(-errors, np.ones(10), 0.9) == (-8.0, 0.0)


def test_heavy_errors_are_kept() -> None:
    """An error that weighs a fifth is in every interval of nine tenths; all of them are in that of all."""
    errors, weight = np.arange(9.0), np.array([2.0, *[1.0] * 8])
    assert shortest(errors, weight, 0.9) == (0.0, 7.0)
    assert shortest(errors, weight, 1.0) == (0.0, 8.0)
