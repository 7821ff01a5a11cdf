"""Laws of max-min sharing, and how changes of capacity are ordered."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.engine.sharing import LinkChange, as_rates, max_min_rates
from simpar.program.ir.flow import COEFFICIENT_ONE, NO_CAP, fixed_point
from simpar.units import GB, KB

SEEDS = st.integers(0, 2**32 - 1)
LAWS = settings(max_examples=100, deadline=None)


def random_flows(seed):
    """Routes, caps and link rates; few distinct numbers, so that links tie."""
    draw = np.random.default_rng(seed)
    num_links = int(draw.integers(1, 6))
    rates = draw.choice([10**6, 2 * 10**6, 3 * 10**6], num_links).tolist()
    routes, caps = {}, {}
    for flow in range(int(draw.integers(1, 10))):
        links = draw.choice(num_links, size=int(draw.integers(1, num_links + 1)), replace=False)
        coefficients = fixed_point(draw.choice([0.5, 1.0, 1.5, 1 / 3], size=len(links)))
        routes[flow] = list(zip(links.tolist(), coefficients.tolist(), strict=True))
        caps[flow] = int(draw.choice([NO_CAP, NO_CAP, 10**5, 5 * 10**5]))
    return routes, caps, rates


def load(routes, rates, link):
    """Fixed-point bytes a second on a link."""
    return sum(rates[f] * c for f, route in routes.items() for at, c in route if at == link)


@given(seed=SEEDS)
@LAWS
def test_no_link_carries_more_than_it_can(seed):
    """Rates times coefficients sum to at most the capacity, and no flow passes its cap."""
    routes, caps, link_rate = random_flows(seed)
    rates = max_min_rates(routes, caps, link_rate)
    assert all(load(routes, rates, at) <= rate * COEFFICIENT_ONE for at, rate in enumerate(link_rate))
    assert all(0 < rates[flow] <= caps[flow] for flow in routes)


@given(seed=SEEDS)
@LAWS
def test_every_flow_is_bound_by_something(seed):
    """Each flow has its cap, or a full link on which nobody is faster: the definition of max-min fairness."""
    routes, caps, link_rate = random_flows(seed)
    rates = max_min_rates(routes, caps, link_rate)
    for flow, route in routes.items():
        bound = rates[flow] == caps[flow]
        for link, _ in route:
            others = [f for f in routes if any(at == link for at, _ in routes[f])]
            spare = link_rate[link] * COEFFICIENT_ONE - load(routes, rates, link)
            fastest = max(rates[f] for f in others) == rates[flow]
            bound |= fastest and spare < sum(c for f in others for at, c in routes[f] if at == link)
        assert bound


@given(seed=SEEDS)
@LAWS
def test_rates_are_those_of_exact_arithmetic(seed):
    """Integer water-filling stays within a thousandth of the rational solution."""
    routes, caps, link_rate = random_flows(seed)
    rates = max_min_rates(routes, caps, link_rate)
    exact = fill_exactly(routes, caps, link_rate)
    assert all(abs(rates[flow] - exact[flow]) * 1000 < exact[flow] for flow in routes)


def fill_exactly(routes, caps, link_rate):
    """Raise all rates together until something binds, with rational numbers."""
    rate = dict.fromkeys(routes, Fraction(0))
    growing = set(routes)
    while growing:
        rooms = [caps[flow] - rate[flow] for flow in growing]
        for link, capacity in enumerate(link_rate):
            total = sum(c for f in growing for at, c in routes[f] if at == link)
            if total:
                rooms.append((capacity * COEFFICIENT_ONE - load(routes, rate, link)) / Fraction(total))
        for flow in growing:
            rate[flow] += min(rooms)
        full = {at for at, r in enumerate(link_rate) if load(routes, rate, at) == r * COEFFICIENT_ONE}
        growing -= {f for f in growing if rate[f] == caps[f] or any(at in full for at, _ in routes[f])}
    return rate


@given(seed=SEEDS)
@LAWS
def test_equal_flows_may_count_as_one(seed):
    """Three equal flows get what one with three times the coefficients gets: why folding is exact."""
    routes, caps, link_rate = random_flows(seed)
    many = {(f, copy): route for f, route in routes.items() for copy in range(3)}
    rates = max_min_rates(dict(enumerate(many.values())), {i: caps[f] for i, (f, _) in enumerate(many)}, link_rate)
    as_one = max_min_rates({f: [(at, 3 * c) for at, c in r] for f, r in routes.items()}, caps, link_rate)
    assert all(rates[i] == as_one[f] for i, (f, _) in enumerate(many))


@given(seed=SEEDS)
@LAWS
def test_order_of_flows_does_not_matter(seed):
    """Flows listed backwards get the same rates."""
    routes, caps, link_rate = random_flows(seed)
    backwards = dict(reversed(routes.items()))
    assert max_min_rates(backwards, caps, link_rate) == max_min_rates(routes, caps, link_rate)


def test_a_dead_link_stops_only_its_flows():
    """The capacity that stopped flows leave goes to the others, capped or not."""
    one = COEFFICIENT_ONE
    routes = {0: [(0, one), (1, one)], 1: [(1, one)], 2: [(1, one)]}
    assert max_min_rates(routes, {0: NO_CAP, 1: NO_CAP, 2: 30}, [0, 100]) == {0: 0, 1: 70, 2: 30}


def test_changes_are_ordered_and_the_last_of_an_instant_wins():
    """Two changes of one link at one time: the later in the sequence."""
    changes = [LinkChange(20, 0, GB), LinkChange(10, 1, GB), LinkChange(20, 0, 2 * GB)]
    assert as_rates(changes) == [(10, 1, GB // KB), (20, 0, 2 * GB // KB)]


@pytest.mark.parametrize("change", [LinkChange(-1, 0, GB), LinkChange(1, 0, -GB)])
def test_negative_changes_are_refused(change):
    """Neither a time before the beginning nor a negative capacity means anything."""
    with pytest.raises(ValueError, match="negative"):
        as_rates([change])
