"""Errors of runs left out, kept beside the runs that they follow from."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import calibrate_uncertainty

from simpar.uncertainty.support import Evidence, Traits


def test_folds_are_made_once_for_the_same_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read where the file of runs is the same, and made anew where it is another or there is none."""
    made = []

    def folds_of(_: object) -> list[calibrate_uncertainty.Fold]:
        made.append(len(made))
        evidence = (Evidence("a source", "llama", 3, Traits("fsdp", "h100-sxm-80gb"), False),)
        return [calibrate_uncertainty.Fold("source a", np.array([1]), np.array([0.5 + len(made)]), evidence)]

    monkeypatch.setattr(calibrate_uncertainty, "folds_of", folds_of)
    runs = tmp_path / "runs.pkl"
    runs.write_bytes(b"some runs")
    first, again = (calibrate_uncertainty.kept_folds([], runs) for _ in range(2))
    assert (len(made), again[0].errors.tolist(), again[0].evidence) == (1, [1.5], first[0].evidence)
    runs.write_bytes(b"other runs")
    assert calibrate_uncertainty.kept_folds([], runs)[0].errors.tolist() == [2.5]
    assert calibrate_uncertainty.kept_folds([], None)[0].errors.tolist() == [3.5]
