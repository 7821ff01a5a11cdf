"""How tokens spread over expert ranks."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.models.catalogue import load_model
from simpar.plan.plan import Experts, Plan
from simpar.plan.routing import expected_maximum, fullest_load, has_sampled_loads, sampled_loads

GRAPH = load_model("qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("count", "mean"), [(1, 0.0), (2, 1 / sqrt(pi)), (3, 1.5 / sqrt(pi)), (10, 1.53875), (100, 2.50759)]
)
def test_the_largest_of_normals(count: int, mean: float) -> None:
    """Closed forms for two and three, tables beyond [Harter 1961, Biometrika 48, table 1]."""
    assert expected_maximum(count) == pytest.approx(mean, abs=1e-4)


@given(cv=st.floats(0, 2), ep=st.sampled_from([1, 2, 8, 64]))
def test_more_spread_more_on_the_fullest(cv: float, ep: int) -> None:
    """A forced balance is 1; the fullest rank gets more with the spread, and nothing is fuller than all."""
    load = fullest_load(128, Experts(expert_imbalance=cv), ep)
    assert load >= 1
    assert fullest_load(128, Experts(expert_imbalance=2 * cv), ep) >= load
    assert fullest_load(128, Experts(), ep) == 1


def test_arrays_of_ranks() -> None:
    """Columns of layouts give what single plans give."""
    choice = Experts(expert_imbalance=0.5)
    many = fullest_load(128, choice, np.array([1, 8, 64]))
    assert many.tolist() == [fullest_load(128, choice, ep) for ep in (1, 8, 64)]


def test_capacity_is_what_every_rank_works_on() -> None:
    """Padding to 1.25 times the mean costs 1.25 times, whatever the balance."""
    assert fullest_load(128, Experts(capacity_factor=1.25, expert_imbalance=1.0), 8) == 1.25
    assert not has_sampled_loads(Plan(ep=8, capacity_factor=1.0, expert_imbalance=1.0, expert_load="sampled"))


def test_the_expectation_is_the_mean_of_the_samples() -> None:
    """Over many seeds the fullest sampled rank is, on average, the expected one; loads always sum to the ranks."""
    plan = Plan(ep=8, expert_imbalance=0.4, expert_load="sampled")
    loads = np.array([sampled_loads(GRAPH, plan, seed) for seed in range(400)])
    assert loads.sum(axis=1) == pytest.approx(8)
    expected = fullest_load(128, plan.experts, 8)
    assert loads.max(axis=1).mean() - 1 == pytest.approx(expected - 1, rel=0.1)


def test_samples_are_seeded() -> None:
    """The same seed gives the same loads."""
    plan = Plan(ep=8, expert_imbalance=0.4, expert_load="sampled")
    assert sampled_loads(GRAPH, plan, 3).tolist() == sampled_loads(GRAPH, plan, 3).tolist()
    assert sampled_loads(GRAPH, plan, 3).tolist() != sampled_loads(GRAPH, plan, 4).tolist()
