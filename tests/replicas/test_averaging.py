"""Local SGD and DiLoCo: rounds are sums and maxima that numpy can do, and traffic is divided by the period."""

import numpy as np
import pytest

import simpar
from simpar.layout.layout import Layout
from simpar.replicas.setting import LocalSteps, replica_of_rank


def test_a_round_is_the_slowest_replica_and_the_average(step_of):
    """Step time by hand: the maximum over replicas of their summed local steps, and an all-reduce, per round."""
    period, rounds = 5, 32
    found = step_of(sync="local-sgd", sync_every=period, sigma=0.2)
    quiet = step_of(sync="local-sgd", sync_every=period)
    local_ns = round((quiet.step_time_s - quiet.cooperation.exchange_s) * 1e9)
    steps = LocalSteps(np.full(16, local_ns), np.arange(16), sigma=0.2, seed=7).steps_ns(period * rounds)
    slowest = steps.reshape(16, rounds, period).sum(axis=2).max(axis=0).sum()
    expected = slowest / (rounds * period) / 1e9 + quiet.cooperation.exchange_s
    assert found.step_time_s == pytest.approx(expected, rel=1e-6)


def test_averaging_every_step_costs_an_all_reduce_a_step(step_of):
    """With a period of 1 messages are those of the parameters; longer periods divide them."""
    every = step_of(sync="local-sgd", sync_every=1).cooperation
    seldom = step_of(sync="local-sgd", sync_every=10).cooperation
    assert seldom.exchange_s == pytest.approx(every.exchange_s / 10, rel=1e-6)
    assert seldom.exchanged_bytes == pytest.approx(every.exchanged_bytes / 10)
    parameters = simpar.Model("gpt2").num_parameters()
    assert every.exchanged_bytes == pytest.approx(2 * parameters, rel=1e-3)  # bf16


def test_long_rounds_average_jitter_out(step_of):
    """The price of waiting for the slowest of a round falls with the period: maxima of sums against sums of maxima."""
    waits = [step_of(sync="local-sgd", sync_every=h, sigma=0.2).cooperation.waiting_s for h in (1, 4, 16, 64)]
    assert waits[0] > waits[1] > waits[2] > waits[3] > 0


def test_diloco_keeps_an_outer_state_and_sends_a_wide_change(step_of):
    """Two fp32 values a parameter more memory, fp32 on the wire, an outer update in the step."""
    inner = step_of(sync="local-sgd", sync_every=50)
    outer = step_of(sync="diloco", sync_every=50)
    parameters = simpar.Model("gpt2").num_parameters()
    more = outer.memory.static_memory_bytes - inner.memory.static_memory_bytes
    assert more == pytest.approx(8 * parameters, rel=1e-3)
    assert outer.cooperation.exchanged_bytes == pytest.approx(2 * inner.cooperation.exchanged_bytes)
    assert outer.cooperation.local_step_s > inner.cooperation.local_step_s
    assert outer.cooperation.statistics is None


def test_natural_periods_stand_in_the_plan(step_of):
    """What the plan leaves open is decided and written down."""
    assert step_of(sync="diloco").setup.plan["data_parallel"]["sync_every"] == 500
    assert step_of(sync="local-sgd").setup.plan["data_parallel"]["sync_every"] == 8
    assert step_of(sync="ssp").setup.plan["data_parallel"]["staleness"] == 3
    assert step_of(sync="asp").setup.plan["data_parallel"]["servers"] == 2  # one a node


def test_islands_share_inside_and_average_across(step_of):
    """With ZeRO-3 and hsdp replicas are shard groups: they gather inside a step and average between steps."""
    islands = step_of(zero=3, hsdp=2, sync="diloco", sync_every=100)
    assert islands.cooperation.replicas == 2
    assert "all_gather" in islands.communication["dp"].algorithm
    together = step_of(zero=3, hsdp=2)
    assert islands.step_time_s < together.step_time_s


@pytest.mark.parametrize(
    ("plan", "members"),
    [
        (simpar.Plan(tp=2, dp=4, pp=2), [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]),
        (simpar.Plan(dp=4, zero=3, hsdp=2), [[0, 1], [2, 3]]),
        (simpar.Plan(cp=2, dp=2, sync="asp"), [[0, 1], [2, 3]]),
        (simpar.Plan(cp=2, dp=2, rank_order="tp-dp-cp-pp", sync="asp"), [[0, 2], [1, 3]]),
    ],
)
def test_ranks_belong_to_the_replica_that_holds_their_share(plan, members):
    """A replica is every rank that one copy of the states is spread over."""
    of_rank = replica_of_rank(Layout.of(plan))
    assert [np.flatnonzero(of_rank == replica).tolist() for replica in range(len(members))] == members
