"""How tokens spread over expert ranks."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.architectures.catalogue import load_model
from simpar.plan.choices.experts import DecidedExperts
from simpar.plan.routing import (
    Routing,
    excess_of_fullest,
    expected_maximum,
    has_sampled_loads,
    max_rank_arrivals,
    max_rank_load,
    max_rank_load_deviation,
    maximum_moments,
    sample_loads,
)
from tests.gate import some

GRAPH = load_model("qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("count", "mean"), [(1, 0.0), (2, 1 / sqrt(pi)), (3, 1.5 / sqrt(pi)), (10, 1.53875), (100, 2.50759)]
)
def test_the_largest_of_normals(count: int, mean: float) -> None:
    """Closed forms for two and three, tables beyond [Harter 1961, Biometrika 48, table 1]."""
    assert expected_maximum(count) == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize(("count", "variance"), [(1, 1.0), (2, 1 - 1 / pi), (5, 0.44753), (10, 0.34434), (20, 0.27570)])
def test_the_variance_of_the_largest_of_normals(count: int, variance: float) -> None:
    """Closed forms for one and two, tables beyond [Sarhan and Greenberg 1956, Ann. Math. Stat. 27]."""
    assert maximum_moments(count)[1] == pytest.approx(variance, abs=1e-4)


@pytest.mark.parametrize(
    ("experts", "ep", "copies", "imbalance"),
    [
        (64, 8, 4096, (0.0, 0.0)), (64, 8, 512, (0.2, 0.0)), (64, 8, 65536, (0.14, 0.13)),
        (256, 32, 8192, (0.3, 0.05)), (64, 2, 1024, (0.1, 0.0)), (128, 16, 256, (0.1, 0.03)),
    ],
)  # fmt: skip
def test_the_fullest_of_ranks_is_as_sampled(experts: int, ep: int, copies: int, imbalance: tuple[float, float]) -> None:
    """Counts drawn from a multinomial under popularities that are drawn too: mean and deviation of the fullest."""
    draws, rng = 6000, np.random.default_rng(7)
    spread = (imbalance[0] + imbalance[1] * rng.choice([-1, 1], draws))[:, None]
    popularity = np.maximum(1.0 + spread * rng.standard_normal((draws, experts)), 1e-6)
    share = (popularity / popularity.sum(axis=1, keepdims=True)).reshape(draws, ep, -1).sum(axis=2)
    found = rng.multinomial(ep * copies, share).max(axis=1) / copies - 1.0
    mean, deviation = excess_of_fullest(experts, ep, copies, imbalance)
    assert found.mean() == pytest.approx(mean, rel=0.05)
    assert found.std() == pytest.approx(deviation, rel=0.06)


def test_what_the_fullest_rank_has_for_arrays_is_that_for_each() -> None:
    """Columns of layouts; a rank alone has all tokens whatever their experts."""
    ranks, copies = np.array([1, 2, 8, 64]), np.array([4096, 2048, 512, 64])
    many = np.array(excess_of_fullest(64, ranks, copies, (0.14, 0.13)))
    each = [
        [float(one) for one in excess_of_fullest(64, ep, count, (0.14, 0.13))]
        for ep, count in zip(ranks.tolist(), copies.tolist(), strict=True)
    ]
    assert many.T.tolist() == each
    assert many[:, 0].tolist() == [0.0, 0.0]
    assert (np.diff(many[0]) > 0).all()


@given(cv=st.floats(0, 2), ep=st.sampled_from([1, 2, 8, 64]))
def test_more_spread_more_on_the_fullest(cv: float, ep: int) -> None:
    """A forced balance is 1; the fullest rank gets more with the spread, and nothing is fuller than all."""
    load = max_rank_load(Routing(8, 128), DecidedExperts(expert_imbalance=cv), ep)
    assert load >= 1
    assert max_rank_load(Routing(8, 128), DecidedExperts(expert_imbalance=2 * cv), ep) >= load
    assert max_rank_load(Routing(8, 128), DecidedExperts(), ep) == 1


def test_arrays_of_ranks() -> None:
    """Columns of layouts give what single plans give."""
    choice = DecidedExperts(expert_imbalance=0.5)
    many = max_rank_load(Routing(8, 128), choice, np.array([1, 8, 64]))
    assert many.tolist() == [max_rank_load(Routing(8, 128), choice, ep) for ep in (1, 8, 64)]


def test_capacity_is_what_every_rank_works_on() -> None:
    """Padding to 1.25 times the mean costs 1.25 times, whatever the balance."""
    assert max_rank_load(Routing(8, 128), DecidedExperts(capacity_factor=1.25, expert_imbalance=1.0), 8) == 1.25
    padded = DecidedExperts(capacity_factor=1.0, expert_imbalance=1.0, expert_load="sampled")
    assert not has_sampled_loads(padded, 8)


def test_the_expectation_is_the_mean_of_the_samples() -> None:
    """Over many seeds the fullest sampled rank is, on average, the expected one; loads always sum to the ranks."""
    choice = DecidedExperts(expert_imbalance=0.4, expert_load="sampled")
    loads = np.array([sample_loads(GRAPH, choice, 8, seed) for seed in range(400)])
    assert loads.sum(axis=1) == pytest.approx(8)
    expected = max_rank_load(Routing(8, 128), choice, 8)
    assert loads.max(axis=1).mean() - 1 == pytest.approx(expected - 1, rel=0.1)


def test_samples_are_seeded() -> None:
    """The same seed gives the same loads."""
    choice = DecidedExperts(expert_imbalance=0.4, expert_load="sampled")
    assert sample_loads(GRAPH, choice, 8, 3).tolist() == sample_loads(GRAPH, choice, 8, 3).tolist()
    assert sample_loads(GRAPH, choice, 8, 3).tolist() != sample_loads(GRAPH, choice, 8, 4).tolist()


@pytest.mark.parametrize("routing", [Routing(8, 256), Routing(8, 256, 4, 8), Routing(6, 160, 3, 8)])
@pytest.mark.parametrize("parts", some([2, 4, 8, 16, 32], [4, 16]))
def test_parts_that_hold_any_of_a_tokens_experts(routing: Routing, parts: int) -> None:
    """As many as drawing groups, and experts among theirs, finds."""
    draw, count = np.random.default_rng(parts), 20_000
    order = draw.random((count, routing.groups)).argsort(axis=1)
    allowed = np.repeat(order < routing.chosen, routing.experts // routing.groups, axis=1)
    keys = np.where(allowed, draw.random((count, routing.experts)), 2.0)
    experts = keys.argsort(axis=1)[:, : routing.topk]
    held = np.zeros((count, parts), dtype=bool)
    held[np.arange(count)[:, None], experts // (routing.experts // parts)] = True
    assert parts * routing.holds(1 / parts) == pytest.approx(held.sum(axis=1).mean(), rel=0.01)


def test_the_name_of_a_dispatch_says_how_tokens_are_routed() -> None:
    """A routing comes back from it; without numbers everything goes everywhere once."""
    routing = Routing(8, 256, 4, 8)
    assert Routing.of_op(routing.op) == routing == Routing.of_dims(load_model("deepseek-v3").dims)
    assert Routing.of_op("dispatch").holds(0.25) == 0.25


MEASURED = {  # (experts, exponent): time of power-law over balanced routing by ranks
    (256, 1.01): {16: 1.66, 32: 2.28, 64: 3.57, 128: 5.03, 256: 6.54},
    (256, 1.2): {16: 2.07, 32: 3.28, 64: 5.53, 128: 8.85, 256: 14.45},
    (128, 1.01): {16: 1.87, 32: 2.79, 64: 4.60, 128: 7.50},
    (128, 1.2): {16: 2.21, 32: 3.82, 64: 6.81, 128: 12.27},
}
"""NVIDIA AIConfigurator, SGLang's fused experts (Triton), 16,384 tokens, top 8: medians over H100, H200, B200, GB200.

Its kernels activate and add up the rows of all tokens on every rank, so a fixed part of their time does not grow.
"""


@pytest.mark.parametrize("case", MEASURED)
def test_loads_of_a_power_law_are_as_measured(case: tuple[int, float]) -> None:
    """Time beyond balanced routing grows as the load of the fullest rank does: by half of it to 0.85."""
    experts, exponent = case
    choice = DecidedExperts(expert_imbalance=exponent, expert_distribution="power_law")
    for ranks, ratio in MEASURED[case].items():
        load = max_rank_load(Routing(8, experts), choice, ranks)
        assert 0.5 < (ratio - 1) / (load - 1) < 0.85, (ranks, load)


FEW_RANKS = {  # (exponent, ranks): load of the fullest rank in 16-bit and in 8-bit kernels
    (1.01, 2): (1.13, 1.17), (1.01, 4): (1.27, 1.30), (1.01, 8): (1.45, 1.39),
    (1.2, 2): (1.18, 1.22), (1.2, 4): (1.44, 1.43), (1.2, 8): (1.79, 1.80),
}  # fmt: skip
"""The same database, medians of 66 to 121 shapes of at least 8,192 tokens (benchmarks/check_routing_law.py)."""


def test_loads_on_few_ranks_are_as_measured() -> None:
    """Without what kernels do for every token that arrives, loads of 2 to 8 ranks are those of the law; 256 experts."""
    for (exponent, ranks), measured in FEW_RANKS.items():
        choice = DecidedExperts(expert_imbalance=exponent, expert_distribution="power_law")
        assert max_rank_load(Routing(8, 256), choice, ranks) == pytest.approx(np.mean(measured), rel=0.1)


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_the_fullest_rank_receives_a_token_once(ranks: int) -> None:
    """Tokens drawn to unlike experts: those that reach the fullest rank, beside its rows; none twice."""
    routing, draw = Routing(8, 256), np.random.default_rng(ranks)
    popular = 0.5 * draw.standard_normal(256)
    chosen = np.argpartition(-(popular + draw.gumbel(size=(20_000, 256))), 8, axis=1)[:, :8] // (256 // ranks)
    rows = np.bincount(chosen.ravel(), minlength=ranks) / chosen.size * ranks
    fullest = int(rows.argmax())
    reached = (chosen == fullest).any(axis=1).mean() / np.mean(
        [(chosen == rank).any(axis=1).mean() for rank in range(ranks)]
    )
    assert max_rank_arrivals(routing, rows[fullest], ranks) == pytest.approx(reached, rel=0.03)
    assert max_rank_arrivals(routing, 1.0, ranks) == 1.0
    assert max_rank_arrivals(Routing(1, 256), 1.7, ranks) == pytest.approx(1.7)
    assert max_rank_arrivals(routing, np.array([1.0, 2.0]), ranks)[1] < 2.0


def test_a_power_law_of_all_experts_on_a_rank_is_balanced() -> None:
    """One rank has all tokens; more ranks and larger exponents are less even; none has more than every token once."""
    routing = Routing(8, 128)
    choices = [DecidedExperts(expert_imbalance=a, expert_distribution="power_law") for a in (1.0, 1.0001, 1.2)]
    loads = [[max_rank_load(routing, choice, ranks) for ranks in (1, 8, 64, 128)] for choice in choices]
    assert all(row == sorted(row) and row[0] == pytest.approx(1) for row in loads)
    assert loads[0] == pytest.approx(loads[1], rel=0.002)
    assert all(low < high < 128 / 8 * 1.1 for low, high in zip(loads[1][1:], loads[2][1:], strict=True))


@pytest.mark.parametrize(("kind", "imbalance"), [("normal", 0.3), ("power_law", 1.2)])
def test_drawn_loads_spread_as_said(kind: str, imbalance: float) -> None:
    """The fullest of drawn loads has the mean and the deviation that are reported; all loads average to one."""
    choice = DecidedExperts(expert_imbalance=imbalance, expert_distribution=kind, expert_load="sampled")
    drawn = np.array([sample_loads(GRAPH, choice, 16, seed) for seed in range(400)])
    routing = Routing.of_dims(GRAPH.dims)
    assert drawn.mean(axis=1) == pytest.approx(1.0)
    assert drawn.max(axis=1).mean() == pytest.approx(max_rank_load(routing, choice, 16), rel=0.07)
    assert drawn.max(axis=1).std() == pytest.approx(max_rank_load_deviation(routing, choice, 16), rel=0.35)
