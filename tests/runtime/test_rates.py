"""Learning rates by step."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.runtime.job import Learning
from simpar.runtime.rates import rate


def rates(steps, **fields):
    """The rates of a whole run."""
    learning = Learning(learning_rate=1.0, **fields)
    return [rate(learning, step, steps) for step in range(steps)]


def test_a_warm_up_rises_by_equal_parts():
    """The rate is the full one at its last step."""
    assert rates(6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_cosine_falls_to_the_least_rate():
    """Half of it at half time, the least rate at the last step."""
    found = rates(9, schedule="cosine", warmup_steps=1, least_rate=0.2)
    assert found[0] == 1.0
    assert found[4] == pytest.approx(0.6)
    assert found[-1] == pytest.approx(0.2)
    assert found[2] == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)


def test_a_line_falls_by_equal_parts():
    """From the full rate to none."""
    assert rates(4, schedule="linear") == [0.75, 0.5, 0.25, 0.0]


def test_wsd_is_stable_until_its_decay():
    """The last tenth of the steps, or as many as are asked for."""
    assert rates(20, schedule="wsd") == [1.0] * 18 + [0.5, 0.0]
    assert rates(4, schedule="wsd", decay_steps=2) == [1.0, 1.0, 0.5, 0.0]


@given(
    st.sampled_from(["constant", "cosine", "linear", "wsd"]), st.integers(1, 40), st.integers(0, 40),
    st.integers(1, 60), st.just(0.0) | st.floats(1e-3, 1),
)  # fmt: skip
def test_rates_stay_between_the_least_and_the_full_one(schedule, steps, warmup, asked, least):
    """And never rise after the warm-up; a longer run with the same schedule begins in the same way."""
    fields = {"schedule": schedule, "warmup_steps": warmup, "schedule_steps": asked, "least_rate": least}
    found = rates(steps, **fields)
    assert all(0 < each <= 1 or least == 0 for each in found)
    after = found[warmup:]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(after))
    assert min([*after, 1.0]) >= min(least, 1.0) - 1e-12
    assert rates(steps + 5, **fields)[:steps] == found
