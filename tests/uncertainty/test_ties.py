"""Near ties: the probability of being the best and expected regret against closed forms, and laws of any layouts."""

from __future__ import annotations

from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.uncertainty.ties import (
    DRAWS,
    OWN_SPREAD,
    PART_SPREAD,
    REGRET_SHARE,
    REGRET_TOLERANCE,
    TIE_SHARE,
    WIDE_FACTOR,
    WIDE_PERIOD,
    Standing,
    limit_s,
    rank_layouts,
)

SURE = 4 * 0.5 / sqrt(DRAWS)
"""Four standard deviations of a probability from draws."""
SPREAD = 0.02
LAYOUTS = st.lists(
    st.tuples(st.floats(0.5, 2.0), st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3)), min_size=1, max_size=6
)


def _standing(layouts: list[tuple[float, list[float]]], spread: float = SPREAD) -> Standing:
    """That of layouts given by their steps and shares of three parts, which are made to sum to the step."""
    step_s = np.array([step for step, _ in layouts])
    parts = np.array([parts for _, parts in layouts])
    return rank_layouts(step_s, parts / parts.sum(axis=1)[:, None] * step_s[:, None], spread)


def test_two_equal_layouts_made_up_of_other_parts_are_each_the_best_half_of_the_time() -> None:
    """By symmetry; and each loses as much as the other."""
    found = rank_layouts(np.ones(2), np.eye(2), SPREAD)
    assert found.best_probability == pytest.approx([0.5, 0.5], abs=1e-12)
    assert found.expected_regret[0] == pytest.approx(found.expected_regret[1], rel=0.05)


def test_the_same_layout_twice_loses_nothing_and_shares_the_probability() -> None:
    """What is alike in the step and all its parts errs together."""
    found = rank_layouts(np.ones(2), np.full((2, 2), 0.5), SPREAD)
    assert found.best_probability.tolist() == [0.5, 0.5]
    assert found.expected_regret.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("share", [0.1, 0.15, 0.4])
@pytest.mark.parametrize("slower", [0.002, 0.01, 0.05])
def test_two_layouts_have_the_probability_of_normal_errors(share: float, slower: float) -> None:
    """The difference of their errors is normal, one time in FAR with FURTHER times the deviation."""
    step_s = np.array([1.0, 1.0 + slower])
    shares = np.array([[0.9, 0.1], [1 - share, share]])
    found = rank_layouts(step_s, shares * step_s[:, None], SPREAD)
    apart = SPREAD * sqrt(2 * (PART_SPREAD * (share - 0.1)) ** 2 + 2 * OWN_SPREAD**2)
    usual, far = (NormalDist().cdf(log(1 + slower) / (apart * more)) for more in (1, WIDE_FACTOR))
    expected = usual + (far - usual) / WIDE_PERIOD
    assert found.best_probability == pytest.approx([expected, 1 - expected], abs=SURE)


def test_the_expected_regret_of_two_equal_layouts_is_that_of_a_folded_lognormal() -> None:
    """E[max(exp(d), 1)] - 1 for a normal d of deviation s is exp(s^2 / 2) cdf(s) - 1 / 2."""
    found = rank_layouts(np.ones(2), np.array([[0.5, 0.5], [0.4, 0.6]]), SPREAD)
    apart = SPREAD * sqrt(2 * (PART_SPREAD * 0.1) ** 2 + 2 * OWN_SPREAD**2)
    usual, far = (exp(s * s / 2) * NormalDist().cdf(s) - 0.5 for s in (apart, WIDE_FACTOR * apart))
    assert found.expected_regret == pytest.approx([usual + (far - usual) / WIDE_PERIOD] * 2, rel=0.05)


@given(LAYOUTS)
@settings(deadline=None, max_examples=30)
def test_probabilities_sum_to_one_and_regrets_are_no_gains(layouts: list[tuple[float, list[float]]]) -> None:
    """Whatever the layouts are; the same input gives the same bytes, and the likeliest is tied with itself."""
    found, again = _standing(layouts), _standing(layouts)
    assert found.best_probability.sum() == pytest.approx(1.0, abs=1e-12)
    assert (found.expected_regret >= 0).all()
    assert found.best_probability.tobytes() == again.best_probability.tobytes()
    assert found.expected_regret.tobytes() == again.expected_regret.tobytes()
    assert found.tied[found.best_probability.argmax()]


@given(LAYOUTS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=30)
def test_the_order_of_layouts_does_not_matter(layouts: list[tuple[float, list[float]]], random: object) -> None:
    """A permutation of layouts is one of what is said of them."""
    order = list(range(len(layouts)))
    random.shuffle(order)  # type: ignore[attr-defined]
    found, moved = _standing(layouts), _standing([layouts[at] for at in order])
    assert moved.best_probability == pytest.approx(found.best_probability[order], abs=1e-12)
    assert moved.expected_regret == pytest.approx(found.expected_regret[order], rel=1e-9)


def test_without_an_error_the_shortest_is_the_best() -> None:
    """Regrets are then what others are longer."""
    found = _standing([(1.0, [1, 2, 3]), (1.1, [3, 2, 1]), (1.2, [1, 1, 1])], spread=0.0)
    assert found.best_probability.tolist() == [1.0, 0.0, 0.0]
    assert found.expected_regret == pytest.approx([0.0, 0.1, 0.2])
    assert found.choice([(9,), (0,), (0,)]) == 0


def test_the_choice_loses_the_least_and_is_the_simplest_of_what_loses_as_little() -> None:
    """Complexity decides within ALIKE or ALIKE_SHARE, and of layouts that are tied alone."""
    likely, half, unlikely = 0.5, 0.4, TIE_SHARE * 0.5 - 0.1
    odds = np.array([likely, half, unlikely])
    assert Standing(odds, np.array([0.01, 0.01 + REGRET_TOLERANCE / 2, 0.0])).choice([(2,), (1,), (0,)]) == 1
    assert Standing(odds, np.array([0.01, 0.01 + 2 * REGRET_TOLERANCE, 0.0])).choice([(2,), (1,), (0,)]) == 0
    assert Standing(odds, np.array([0.02, 0.01, 0.0])).choice([(1,), (1,), (0,)]) == 1
    large = 10 * REGRET_TOLERANCE / REGRET_SHARE
    assert Standing(odds, large * np.array([1, 1 + REGRET_SHARE / 2, 0])).choice([(2,), (1,), (0,)]) == 1
    assert Standing(odds, large * np.array([1, 1 + REGRET_SHARE * 2, 0])).choice([(2,), (1,), (0,)]) == 0


def test_one_more_layout_is_tied_up_to_the_limit_and_not_beyond() -> None:
    """Made up like the likeliest best; alone, it is tied where it is the best one time in four."""
    parts = np.array([[0.9, 0.1]])
    limit = limit_s(np.ones(1), parts, SPREAD)
    deviation = OWN_SPREAD * sqrt(2) * SPREAD
    below = sum(
        weight * NormalDist().cdf(-log(limit) / (deviation * size))
        for weight, size in ((1 - 1 / WIDE_PERIOD, 1.0), (1 / WIDE_PERIOD, WIDE_FACTOR))
    )
    assert below == pytest.approx(TIE_SHARE / (1 + TIE_SHARE), abs=SURE)
    for factor, is_tied in ((0.999, True), (1.001, False)):
        both = np.array([1.0, factor * limit])
        assert rank_layouts(both, np.vstack([parts, both[1] * parts]), SPREAD).tied[-1] == is_tied
    assert limit_s(np.ones(1), parts, 0.5 * SPREAD) < limit
    assert limit_s(np.array([1.0, 1.1]), np.vstack([parts, 1.1 * parts]), SPREAD) == pytest.approx(limit, rel=0.003)
