"""Steps that open alike: what one simulation says of the others holds, and says more than their own bounds."""

from __future__ import annotations

import numpy as np
import pytest

import simpar
from simpar.planner import make_problem
from simpar.planner.bound.steps import RowCharge
from simpar.planner.certify.frontier import PASSES, SWEPT, TABLED, Frontier
from simpar.planner.certify.openings import does_before
from simpar.planner.space.fit import needs
from simpar.planner.space.rows import enumerate_space
from tests.gate import some
from tests.planner.certify.test_slow_networks import HELD, drawn

FEW = {"tp": (1, 4), "pp": 4, "micro_batch": 1, "recompute": "none", "vpp": 1, "overlap_param_gather": (True, False)}
LONG = {
    **HELD, "pp": 8, "schedule": "1f1b", "zero": (0, 1), "micro_batch": 1, "recompute": "none", "vpp": 1,
    "order": "tp-cp-dp-pp", "overlap_param_gather": (True, False),
}  # fmt: skip


def long_pipelines(**more):
    """Pipelines of eight ranks over four nodes with one slow card each, where messages of stages meet."""
    cluster = simpar.Cluster("dgx-a100-80gb over 1x 10 Gb/s ethernet", nodes=4)
    training = simpar.Training(seq_len=1024, global_batch=128)
    constraints = simpar.Constraints(fixed=LONG | more, portable="any")
    return make_problem("gpt2", cluster, training, stack="megatron", constraints=constraints)


def swept(problem):
    """The frontier of all rows of a problem, each of them swept."""
    rows = enumerate_space(problem)
    frontier = Frontier.of(rows, needs(rows).needed_bytes)
    every = np.flatnonzero(~frontier.own)
    frontier._raise_passes(every)
    frontier._raise_steps(every)
    frontier._raise(every, frontier.sweeps.tables_ns(every), TABLED)
    frontier._raise(every, frontier.sweeps.of(every), SWEPT)
    assert (frontier.level[every] > PASSES).all()
    return frontier, every


@pytest.mark.parametrize("seed", some(range(30), [3, 4]))
def test_no_step_is_shorter_than_what_others_say_of_it(seed):
    """Every row is simulated, those first of which nothing is known."""
    frontier, every = swept(drawn(seed, **(FEW if seed < 15 else {"zero": (0, 1, 2, 3)})))
    steps_s, told = {}, 0
    for row in every.tolist():
        before_s = float(frontier.bound_s[row])
        if frontier.openings.told[row]:
            told += 1
            frontier._raise(np.array([row]), frontier.openings.swept_ns(frontier.sweeps, np.array([row])), SWEPT)
        steps_s[row] = frontier.simulate(row).step_time_s
        assert before_s <= steps_s[row]
        assert frontier.bound_s[row] <= steps_s[row] or not np.isfinite(frontier.bound_s[row])
    assert told or seed >= 15


@pytest.mark.parametrize(("tensor", "more"), [(2, 1.25), (1, 1.15)])
def test_one_simulation_says_more_than_bounds(tensor, more):
    """Of rows that open alike, the bounds of others rise towards their steps, which no bound exceeds."""
    frontier, every = swept(long_pipelines(tp=tensor))
    frontier.simulate(int(every[0]))
    alike = np.flatnonzero(frontier.openings.told)
    assert len(alike) == 3
    assert (frontier.level[alike] == TABLED).all(), "to be swept again"
    before_s = frontier.bound_s[alike].copy()
    frontier._raise(alike, frontier.openings.swept_ns(frontier.sweeps, alike), SWEPT)
    assert (frontier.bound_s[alike] > more * before_s).all()
    steps_s = np.array([frontier.simulate(row).step_time_s for row in alike.tolist()])
    assert (frontier.bound_s[alike] <= steps_s).all()
    assert (frontier.bound_s[alike] > 0.95 * steps_s).all()


def test_rows_that_gather_first_open_in_their_own_way():
    """Gathers beside the first forwards are before the last backward; where and when reductions run is not."""
    frontier, every = swept(long_pipelines(tp=2))
    configurations, rows = frontier.bounds.configurations, frontier.rows
    opened = {True: set(), False: set()}
    for row in every.tolist():
        gathers = rows["zero"][row] == 1 and rows["overlap_param_gather"][row]
        opened[bool(gathers)].add(does_before(configurations[int(configurations.index[row])]))
    assert [len(each) for each in opened.values()] == [1, 1]
    assert not opened[False] & opened[True]


def test_what_follows_last_backwards_shares_a_card(monkeypatch):
    """Stages of a node reduce over one card; bounds that leave that out are lower, and none exceeds its step."""
    problem = drawn(2, **FEW, schedule="1f1b", order="tp-cp-pp-dp", zero=1)
    bounds_s = swept(problem)[0].bound_s
    monkeypatch.setattr(RowCharge, "released_ns", lambda _, begun: np.zeros_like(begun))
    assert (bounds_s > 1.05 * swept(problem)[0].bound_s).any()
