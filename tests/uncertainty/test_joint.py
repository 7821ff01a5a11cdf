"""Errors of layouts together: draws against their covariance, and a measured layout against the normal closed form."""

import numpy as np
import pytest

from simpar.uncertainty.joint import (
    MEASUREMENT_SPREAD,
    QUANTILE_95,
    SHARED_VARIANCE,
    JointErrors,
    Known,
    common_spread,
    joint_errors,
)
from simpar.uncertainty.own_runs import MeasuredLayout
from simpar.uncertainty.ties import covariance

SPREAD, COMMON = 0.02, 0.06
ALIKE = {name: Known(name, {"compute": 0.9, "bubble": 0.1}) for name in "ab"}
UNLIKE = {**ALIKE, "c": Known("c", {"compute": 0.6, "exposed_dp": 0.4})}


def _measured(name, error, shares=None, kin=None):
    return MeasuredLayout(
        cluster="here", layout=name, kin=kin or name, shares=shares or UNLIKE[name].shares, step_time_s=1.0, error=error
    )


def test_draws_have_the_covariance_that_is_said_of_them():
    """To what 16,384 draws can tell of a distribution with far errors."""
    shares = np.array([[0.1, 0.0], [0.1, 0.0], [-0.2, 0.4]])
    found = JointErrors.of(shares, ["a", "b", "b"], SPREAD, COMMON)
    own = float(covariance(np.zeros((1, 1)), SPREAD, np.ones((1, 1)))[0, 0])
    of_parts = covariance(shares, SPREAD, np.zeros((3, 1)))
    shared = own * np.array([[1, 0, 0], [0, 1, SHARED_VARIANCE], [0, SHARED_VARIANCE, 1]])
    assert found.spread == pytest.approx(of_parts + shared + COMMON**2)
    assert np.cov(found.draws) == pytest.approx(found.spread, rel=0.08)
    assert found.draws.mean(axis=1) == pytest.approx(0.0, abs=1e-12)  # each with its opposite


def test_a_measured_layout_tells_of_the_others_what_they_share_with_it():
    """Layouts that are made up alike share the common factor alone: a regression on one value, by hand."""
    own, common = float(covariance(np.zeros((1, 1)), SPREAD, np.ones((1, 1)))[0, 0]), COMMON**2
    found = joint_errors(ALIKE, [_measured("a", 0.1)], SPREAD, COMMON)
    seen = own + common + MEASUREMENT_SPREAD**2
    assert found.mean == pytest.approx([0.1 * (own + common) / seen, 0.1 * common / seen])
    assert found.spread[1, 1] == pytest.approx(own + common - common**2 / seen)
    assert found.spread[0, 0] == pytest.approx(MEASUREMENT_SPREAD**2 * (own + common) / seen)
    assert np.cov(found.draws) == pytest.approx(found.spread, rel=0.08, abs=2e-6)


def test_two_at_once_are_one_after_the_other():
    """In either order."""
    errors = np.array([0.05, -0.02])
    prior = JointErrors.of(np.array([[0.1, 0.0], [0.0, 0.0], [-0.1, 0.2]]), "aba", SPREAD, COMMON)
    both = prior.after([0, 2], errors)
    for first, second in ((0, 1), (1, 0)):
        at = [0, 2]
        steps = prior.after([at[first]], errors[[first]]).after([at[second]], errors[[second]])
        assert steps.mean == pytest.approx(both.mean)
        assert steps.spread == pytest.approx(both.spread)


def test_a_layout_that_is_none_of_those_asked_about_tells_by_its_parts():
    """A run that waits for its gradients as one of them does says more of that one than of another."""
    other = _measured("z", 0.2, {"compute": 0.6, "exposed_dp": 0.4})
    found = joint_errors(UNLIKE, [other], SPREAD, COMMON)
    assert len(found.mean) == 4
    assert found.mean[2] > 0.1 > found.mean[0]


def test_a_layout_on_fewer_nodes_tells_some_of_its_own_error():
    """By hand: a regression on one run that shares the common factor and KIN of what the layout has of its own."""
    own, common = float(covariance(np.zeros((1, 1)), SPREAD, np.ones((1, 1)))[0, 0]), COMMON**2
    small = _measured("small a", 0.1, ALIKE["a"].shares, kin="a")
    found = joint_errors(ALIKE, [small], SPREAD, COMMON)
    assert found.mean[0] == pytest.approx(
        0.1 * (SHARED_VARIANCE * own + common) / (own + common + MEASUREMENT_SPREAD**2)
    )
    assert found.mean[1] == pytest.approx(0.1 * common / (own + common + MEASUREMENT_SPREAD**2))


def test_nothing_measured_moves_nothing():
    """And all layouts keep their order."""
    found = joint_errors(UNLIKE, [], SPREAD, COMMON)
    assert found.mean.tolist() == [0.0, 0.0, 0.0]


def test_the_common_part_is_what_own_errors_leave_of_an_interval():
    """And nothing where they alone are as wide."""
    whole = np.hypot(COMMON, np.sqrt(covariance(np.zeros((1, 1)), SPREAD, np.ones((1, 1)))[0, 0]))
    interval_s = (np.exp(-QUANTILE_95 * whole), np.exp(QUANTILE_95 * whole))
    assert common_spread(interval_s, SPREAD) == pytest.approx(COMMON)
    assert common_spread((0.99, 1.01), SPREAD) == 0.0
