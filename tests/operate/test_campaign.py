"""The Monte Carlo campaign against closed forms, laws and itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.hardware.operation import SlowNodes
from simpar.hardware.reliability import Rate
from simpar.operate.campaign import CampaignParameters, run_campaign
from simpar.operate.checkpoint import efficiency
from simpar.units import DAY_S, HOUR_S
from tests.gate import some

NONE = SlowNodes()


def setting(**changes):
    """Thirty days with cheap checkpoints; nodes always at hand."""
    base = {
        "length_s": 30 * DAY_S, "interval_s": 600.0, "blocking_s": 10.0, "background_s": 0.0, "detection_s": 100.0,
        "restart_s": 200.0, "repair_s": DAY_S, "spares": None, "slow": NONE, "slow_per_s": 0.0,
    }  # fmt: skip
    return CampaignParameters(**{**base, **changes})


def failing(hours, **changes):
    """One cause with a mean time between failures."""
    return (Rate("gpu", 1 / (hours * HOUR_S), **{"takes_node": True, "planned": False, **changes}),)


def shares(campaign, length):
    """Mean useful share."""
    return float((campaign.useful_s / length).mean())


@pytest.mark.parametrize("hours", some([0.5, 2.0, 10.0], [2.0, 10.0]))
@pytest.mark.parametrize("blocking", [1.0, 60.0])
def test_efficiency_is_dalys_closed_form(hours, blocking):
    """Exponential failures, also during recovery: D / (M exp(R / M) (exp((D + w) / M) - 1))."""
    s = setting(blocking_s=blocking)
    found = run_campaign(s, failing(hours), 400, seed=1)
    expected = efficiency(s.interval_s, blocking, hours * HOUR_S, s.detection_s + s.restart_s)
    assert shares(found, s.length_s) == pytest.approx(expected, rel=4e-3)


def test_failures_are_poisson():
    """As many as the rate says, whatever the job does; variance as large as the mean."""
    s = setting()
    counts = run_campaign(s, failing(3.0), 4000, seed=2).interruptions["gpu"]
    expected = s.length_s / (3 * HOUR_S)
    assert counts.mean() == pytest.approx(expected, rel=0.01)
    assert counts.var() == pytest.approx(expected, rel=0.1)


def test_causes_share_interruptions_by_their_rates():
    """Competing causes: each has its own rate's part."""
    rates = (*failing(4.0), Rate("software", 1 / (8 * HOUR_S), takes_node=False, planned=False))
    found = run_campaign(setting(), rates, 2000, seed=3).interruptions
    assert found["gpu"].mean() / found["software"].mean() == pytest.approx(2.0, rel=0.02)


@settings(max_examples=25)
@given(
    st.floats(0.2, 100.0),
    st.floats(0.0, 300.0),
    st.floats(0.0, 900.0),
    st.sampled_from([None, 0, 1, 3]),
    st.integers(0, 99),
)
def test_every_second_is_accounted_for(hours, blocking, background, spares, seed):
    """Useful work and losses sum to the campaign, none is negative."""
    s = setting(blocking_s=blocking, background_s=min(background, 600.0), spares=spares, length_s=5 * DAY_S)
    found = run_campaign(s, failing(hours), 20, seed=seed)
    total = found.useful_s + sum(found.losses_s.values())
    np.testing.assert_allclose(total, s.length_s, rtol=1e-9)
    assert all((column >= -1e-6).all() for column in (found.useful_s, *found.losses_s.values()))


def test_nothing_fails_nothing_is_lost():
    """Without interruptions only checkpoints cost: D / (D + w)."""
    found = run_campaign(setting(), (), 3, seed=0)
    assert shares(found, 30 * DAY_S) == pytest.approx(600 / 610, rel=1e-4)
    assert found.interruptions == {}


def test_planned_stops_lose_no_work():
    """A checkpoint comes first, and nobody has to notice anything."""
    found = run_campaign(setting(), failing(5.0, planned=True, takes_node=False), 200, seed=4)
    assert found.losses_s["lost work"].max() == 0.0
    assert found.losses_s["detection"].max() == 0.0
    assert found.losses_s["restart"].mean() > 0


def test_unfinished_checkpoints_are_not_used():
    """While a checkpoint is written in the background, a failure goes back one more."""
    at_once, late = (run_campaign(setting(background_s=b), failing(2.0), 400, seed=5) for b in (0.0, 590.0))
    quick, slow = (found.losses_s["lost work"].mean() for found in (at_once, late))
    m, cycle = 2 * HOUR_S, 610.0
    early = (1 - math.exp(-590.0 / m)) / (1 - math.exp(-cycle / m))  # share of failures before it is complete
    failures = at_once.interruptions["gpu"].mean()
    assert slow - quick == pytest.approx(failures * early * 600.0 * math.exp(-cycle / m), rel=0.15)


def test_spares_that_run_out_make_the_job_wait():
    """No spares: every failure waits for its repair. Enough spares: as if there were always a node."""
    waits = {
        n: run_campaign(setting(spares=n), failing(6.0), 100, seed=6).losses_s["waiting for nodes"].mean()
        for n in (0, 1, 40, None)
    }
    assert waits[0] > waits[1] > 0
    assert waits[40] == waits[None] == 0.0
    nothing = run_campaign(setting(spares=0), failing(6.0), 400, seed=7)
    cycle = 6 * HOUR_S + DAY_S + 300.0
    assert nothing.interruptions["gpu"].mean() == pytest.approx(30 * DAY_S / cycle, rel=0.1)


def test_slow_nodes_cost_their_slowdown_until_found():
    """Detection time x (1 - 1 / slowdown) for each."""
    slow = SlowNodes(per_node_day=1.0, slowdown=2.0, detection=3600.0)
    s = setting(slow=slow, slow_per_s=1 / DAY_S)
    found = run_campaign(s, (), 300, seed=8)
    events = found.interruptions["slow node"].mean()
    assert found.losses_s["slow nodes"].mean() == pytest.approx(events * 1800.0, rel=0.02)


def test_the_seed_decides_everything():
    """The same seed gives the same columns, another one others; more repetitions do not need more memory of time."""
    first, again, other = (run_campaign(setting(), failing(3.0), 50, seed=s) for s in (11, 11, 12))
    np.testing.assert_array_equal(first.useful_s, again.useful_s)
    assert not np.array_equal(first.useful_s, other.useful_s)
