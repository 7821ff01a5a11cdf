"""Runs that a profile was learnt from: intervals of others like them follow how well they predict one another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.uncertainty.own_runs import OwnRuns, after, match_runs
from simpar.uncertainty.step_time import StepTimeError
from simpar.uncertainty.support import Traits
from simpar.uncertainty.table import LearnedErrors

HERE = Traits("nemo", "h100")
BEFORE = StepTimeError(0.08, 0.04, -0.13, 0.28)
ERRORS = LearnedErrors(weight=5, high=1.88)


def own(layouts: int, error: float, traits: Traits = HERE) -> OwnRuns:
    """Layouts on one cluster."""
    return OwnRuns(cluster="ours.yaml", traits=traits, layouts=layouts, error=error)


def test_runs_that_predict_one_another_narrow() -> None:
    """The more of them the more, and never to nothing."""
    spreads = [after(BEFORE, [own(count, 0.02)], ERRORS).spread for count in (1, 3, 10)]
    assert BEFORE.spread > spreads[0] > spreads[1] > spreads[2] > 0.02


def test_runs_that_do_not_widen() -> None:
    """Layouts that are far off when the others are learnt from leave the next one as open."""
    found = after(BEFORE, [own(3, 0.3)], ERRORS)
    assert found.spread > 0.15
    assert found.layout > BEFORE.layout


def test_the_spread_of_before_counts_as_some_layouts() -> None:
    """The mean of squares, weighted; groups of layouts count together."""
    found = after(BEFORE, [own(2, 0.02), own(1, 0.05)], ERRORS)
    expected = ((5 * 0.08**2 + 2 * 0.02**2 + 0.05**2) / 8) ** 0.5
    assert found.spread == pytest.approx(expected)
    assert (found.low, found.high) == pytest.approx((-1.88 * expected, 1.88 * expected))
    assert found.layout <= found.spread


def test_only_runs_like_a_prediction_count() -> None:
    """Not those of other bits, devices, or of no mixtures; without any nothing changes."""
    runs = [own(3, 0.02), own(2, 0.02, replace(HERE, bits=8)), own(1, 0.02, replace(HERE, mixture=True))]
    assert match_runs(HERE, runs) == runs[:1]
    assert match_runs(replace(HERE, device="b200"), runs) == []
    assert after(BEFORE, [], ERRORS) is BEFORE
