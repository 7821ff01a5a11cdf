"""Rows without their data parallelism."""

from dataclasses import replace

import numpy as np
import pytest

import simpar
from simpar.planner import Constraints, make_problem
from simpar.planner.bound.pipelines import Pipelines
from simpar.planner.certify.branch_and_bound import fields_of
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import SWEPT
from simpar.planner.space.jobs import RowJobs, plan_of
from simpar.program.perturbation import Perturbation
from tests.gate import some


def test_rows_of_one_pipeline_are_alike_but_for_data_parallelism(frontier, every):
    """In every axis that decides passes, messages or the order of ranks."""
    rows, pipelines = frontier.rows, frontier.bounds.pipelines
    for name in ("tp", "pp", "micro_batch", "schedule", "recompute", "order", "vpp", "sequence_parallel"):
        code = rows.code[name]
        assert np.array_equal(code[pipelines.row[pipelines.index]], code), name
    assert len(pipelines.row) <= len(every)


def test_rows_of_pipelines_are_found(frontier):
    """Also of those to which rows were moved, and without these where they were."""
    pipelines = Pipelines.of(RowJobs(frontier.rows), frontier.bounds.pipelines.prices)
    for _ in range(3):
        for which in (np.array([0]), np.arange(1, len(pipelines.row), 3), np.arange(len(pipelines.row))):
            assert pipelines.members(which).tolist() == np.flatnonzero(np.isin(pipelines.index, which)).tolist()
        pipelines.moved(np.flatnonzero(pipelines.index == pipelines.index[-1])[:2])


def test_passes_bound_no_less_than_kernels(frontier):
    """A later look is never below the one before."""
    pipelines = frontier.bounds.pipelines
    which = np.arange(len(pipelines.row))
    kernels, least = pipelines.kernels_bound_ns()
    passes = pipelines.passes_bound_ns(which)
    assert (passes >= kernels * (1 - 1e-12)).all()
    assert (least <= kernels).all()
    assert (least > 0).all()


def test_some_pipelines_are_those_of_all(frontier):
    """Bounded alone or together."""
    pipelines = frontier.bounds.pipelines
    which = np.arange(len(pipelines.row))
    whole = pipelines.passes_bound_ns(which)
    for one in which[::5]:
        assert pipelines.passes_bound_ns(np.array([one]))[0] == whole[one]


def test_a_single_stage_sends_nothing(frontier):
    """Between as many stages as there are, less one, there are hops."""
    pipelines = frontier.bounds.pipelines
    for shape, mine in pipelines.by_shape(np.arange(len(pipelines.row))):
        hops = pipelines.hops(shape, mine)
        assert hops.ahead.shape == hops.back.shape == (len(mine), len(shape.pieces) - 1)
        assert (hops.ahead >= 0).all()


ON_A_SLOW_NETWORK = {
    "micro_batch": 1, "recompute": "none", "schedule": "1f1b", "zero": 0, "cp": 1, "hsdp": 1, "tp_overlap": False,
    "sequence_parallel": False,
}  # fmt: skip


def on_a_slow_network(cards, order="tp-cp-dp-pp", tp=4, pp=4, nodes=4):
    """The frontier of a few rows on nodes that 10 Gb/s cards join."""
    constraints = Constraints(fixed={**ON_A_SLOW_NETWORK, "tp": tp, "pp": pp, "order": order})
    cluster = simpar.Cluster(f"dgx-a100-40gb over {cards}x 10 Gb/s ethernet", nodes=nodes)
    training = simpar.Training(seq_len=1024, global_batch=32)
    (field,) = fields_of(
        make_problem("gpt3-1.3b", cluster, training, stack="megatron", constraints=constraints), [nodes]
    )
    return field.frontier


@pytest.mark.parametrize("sharing", [1, 2, 4, 8])
def test_ranks_that_share_a_card_send_one_after_the_other(sharing):
    """Of 8 / n cards each serves n ranks of a stage, whose messages take n times as long as those of one."""
    frontier = on_a_slow_network(8 // sharing)
    pipelines, which = frontier.bounds.pipelines, np.array([0])
    ((shape, _),) = pipelines.by_shape(which)
    sent = pipelines.drains_s(shape, which)[0, :, 2:]  # [ranks, (out, in)] of NICs
    alone = on_a_slow_network(8).bounds.pipelines
    one = alone.drains_s(alone.shapes[int(alone.shape[0])], which)[0, :, 2:]
    assert sent == pytest.approx(sharing * one, rel=1e-9)
    assert (sent[1:-1] > 0).all()


@pytest.mark.parametrize("order", some(["tp-cp-dp-pp", "tp-cp-pp-dp"], ["tp-cp-dp-pp"]))
@pytest.mark.parametrize("sizes", some([(4, 4, 4), (1, 3, 3), (8, 2, 2), (2, 8, 4), (2, 6, 3)], [(4, 4, 4), (1, 3, 3)]))
def test_cards_that_ranks_share_bound_what_is_simulated(order, sizes):
    """No step is below the bound of its links, also where groups and domains do not line up."""
    tp, pp, nodes = sizes
    frontier = on_a_slow_network(1, order, tp, pp, nodes)
    for row in range(min(frontier.rows.count, 4)):
        while frontier.level[row] < 3:
            frontier.raise_bound(row)
        simulated = measure(frontier.rows.problem, plan_of(frontier.rows, row), {})
        assert frontier.bound_s[row] <= simulated.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", some(range(60), [2]))
def test_a_slow_rank_is_bounded_where_it_stands(seed, problem_of, frontier_of):
    """No level of bounds exceeds the simulated step, and one slow rank of many is worth most of what it costs."""
    healthy = problem_of(seed)
    rank = (7 * seed) % healthy.cluster.world_size
    slow = replace(healthy, perturbation=Perturbation(slow_ranks={rank: (1.3, 2.0, 7.0)[seed % 3]}))
    frontier, shares = frontier_of(slow, seed), []
    for row in range(frontier.rows.count):
        step_s = frontier.simulate(row).step_time_s
        while frontier.level[row] < SWEPT and np.isfinite(frontier.bound_s[row]):
            frontier.raise_bound(row)
            assert frontier.bound_s[row] <= step_s or not np.isfinite(frontier.bound_s[row])
        shares.append(frontier.bound_s[row] / step_s)
    shares = [share for share in shares if np.isfinite(share)]
    assert not shares or np.median(shares) > 0.8


@pytest.mark.parametrize(
    ("model", "rank", "factor"), some([("gpt2", 5, 3.0), ("tiny-llama", 0, 1.5), ("gpt2", 3, 1.2)], 1, tuples=True)
)
def test_pairs_of_a_slow_rank_are_bounded_where_they_stand(model, rank, factor, frontier_of):
    """The sweep of a table whose passes run together has the slow rank's own pairs: it is all but the step."""
    problem = make_problem(
        model,
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=1024, global_batch=16),
        constraints=simpar.Constraints(fixed={"schedule": "dualpipev", "pp": (2, 4), "tp": (1, 2), "zero": (0, 1)}),
        perturbation=Perturbation(slow_ranks={rank: factor}),
    )
    frontier, shares = frontier_of(problem, 0, 5), []
    for row in range(frontier.rows.count):
        while frontier.level[row] < SWEPT:
            frontier.raise_bound(row)
        shares.append(frontier.bound_s[row] / frontier.simulate(row).step_time_s)
    assert max(shares) <= 1.0 + 1e-12
    assert np.median(shares) > 0.95
