"""What measuring a layout is worth: against the closed form of two layouts, and the laws of any."""

from math import log
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.uncertainty.experiments import Decision
from simpar.uncertainty.joint import MEASUREMENT_SPREAD, JointErrors, Known, joint_errors
from simpar.uncertainty.own_runs import MeasuredLayout
from simpar.uncertainty.ties import DRAWS, OWN_SPREAD, WIDE_FACTOR, WIDE_PERIOD

SPREAD = 0.05
NORMAL = NormalDist()


def _alike(count, common=0.0):
    """Layouts that differ in their own errors alone."""
    return JointErrors.of(np.zeros((count, 1)), [str(at) for at in range(count)], SPREAD, common)


def _gain(apart, deviation, told):
    """Mean of what a normal error exceeds a difference by where the measured one, told to a part, exceeds it."""
    seen = float(np.hypot(deviation, MEASUREMENT_SPREAD))
    least = apart / told
    return deviation**2 / seen * NORMAL.pdf(least / seen) - apart * NORMAL.cdf(-least / seen)


@pytest.mark.parametrize("apart", [0.0, 0.01, 0.05, 0.1])
def test_one_of_two_layouts_is_worth_what_its_error_exceeds_their_difference_by(apart):
    """The other is chosen where the measured one turns out longer; a fifth of errors are four times as large."""
    decision = Decision(np.array([1.0, np.exp(apart)]), _alike(2), [0], np.array([1.0]))
    own = OWN_SPREAD * SPREAD
    variance = (1 + (WIDE_FACTOR**2 - 1) / WIDE_PERIOD) * own**2
    told = variance / (variance + MEASUREMENT_SPREAD**2)
    expected = (1 - 1 / WIDE_PERIOD) * _gain(apart, own, told) + _gain(apart, WIDE_FACTOR * own, told) / WIDE_PERIOD
    [(option, gain)] = decision.worth_measuring(1)
    assert option == 0
    assert gain == pytest.approx(expected, abs=4 * np.sqrt(variance / DRAWS))


def test_what_all_err_by_hides_in_one_measurement_and_not_in_two():
    """A common factor makes a single run tell little; a second one of the other layout tells it apart."""
    steps = np.array([1.0, 1.02])
    alone = Decision(steps, _alike(2), [0, 1], np.ones(2)).worth_measuring(2)
    hidden = Decision(steps, _alike(2, common=0.5), [0, 1], np.ones(2)).worth_measuring(2)
    assert hidden[0][1] < 0.3 * alone[0][1]
    assert hidden[1][1] == pytest.approx(alone[1][1], rel=0.1)


def test_a_cheaper_layout_that_tells_about_as_much_is_taken():
    """The same one on fewer nodes shares most of its own error; one that is alike in its parts alone does not."""
    shares = {"x": 1.0}
    steps, costs = np.array([1.0, 1.01]), np.array([100.0, 1.0])
    layouts = {"a": Known("a", shares), "b": Known("b", shares), "small a": Known("a", shares)}
    small = Decision(steps, joint_errors(layouts, [], SPREAD, 0.0), [0, 2], costs)
    assert small.worth_measuring(1)[0][0] == 1  # the second option
    layouts["small a"] = Known("c", shares)
    other = Decision(steps, joint_errors(layouts, [], SPREAD, 0.0), [0, 2], costs)
    assert other.worth_measuring(1)[0][0] == 0


def test_what_is_known_is_worth_nothing_more():
    """A layout that was measured has noise left, and a decision that nothing can change asks for no run."""
    errors = _alike(2).after([0, 1], np.zeros(2))
    assert Decision(np.array([1.0, 1.2]), errors, [0, 1], np.ones(2)).worth_measuring(3) == []
    far = Decision(np.array([1.0, 9.0]), _alike(2), [0, 1], np.ones(2))
    assert far.worth_measuring(3) == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1.0, 1.2), min_size=2, max_size=5), st.integers(1, 4), st.floats(0.0, 0.2))
def test_more_runs_never_gain_less(steps, most, common):
    """Gains are those of all runs up to one, grow with each, and no run is named twice."""
    known = MeasuredLayout(cluster="", layout="l0", kin="l0", shares={"x": 1.0}, step_time_s=1.0, error=0.02)
    shares = {f"l{at}": Known(f"l{at}", {"x": 1 / (1 + at), "y": at / (1 + at)}) for at in range(len(steps))}
    errors = joint_errors(shares, [known], SPREAD, common)
    options = list(range(1, len(steps)))
    decision = Decision(np.array(steps), errors, options, np.arange(1.0, len(steps)))
    found = decision.worth_measuring(most)
    gains = [gain for _, gain in found]
    assert gains == sorted(gains)
    assert len({option for option, _ in found}) == len(found) <= min(most, len(options))
    assert all(0 < gain < log(1.2) + 1.0 for gain in gains)
    assert decision.worth_measuring(most) == found
