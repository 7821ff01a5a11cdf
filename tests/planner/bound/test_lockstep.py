"""Groups that act at the same instants share their NICs: bounds know it, and stay below what is simulated."""

import random

import numpy as np
import pytest

import simpar
from simpar.errors import UserError
from simpar.planner import make_problem
from simpar.planner.certify.frontier import Frontier
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.simulation import make_job, outline_job
from tests.gate import some

NETWORKS = {
    "one card": ("dgx-a100-40gb over 1x 10 Gb/s ethernet", {}),
    "two cards": ("dgx-a100-40gb over 2x 25 Gb/s ethernet", {}),
    "three cards": ("dgx-a100-40gb over 3x 25 Gb/s ethernet", {}),
    "PCIe": ("a100-pcie-8 over 1x 25 Gb/s ethernet", {}),
    "islands": ("dgx-h100", {"nodes_per_leaf": 2, "oversubscription": 16.0}),
    "uneven islands": ("dgx-h100", {"nodes_per_leaf": 3, "oversubscription": 16.0}),
}
MODELS = ("gpt2", "llama-3.2-1b", "olmoe-1b-7b")
STACKS = ("megatron", "fsdp", "torchtitan", "deepspeed", "nanotron")


def cluster_of(network, nodes):
    """Nodes that a slow network joins."""
    name, changed = NETWORKS[network]
    cluster = simpar.Cluster(name, nodes=nodes)
    if not changed:
        return cluster
    out = cluster.profile.scale_out.model_copy(update=changed)
    return simpar.Cluster(cluster.profile.model_copy(update={"scale_out": out, "name": network}), nodes=nodes)


def frontier_on(network, nodes, seed, count, **fixed):
    """The frontier of a few random rows."""
    rng = random.Random(seed)
    problem = make_problem(
        rng.choice(MODELS),
        cluster_of(network, nodes),
        simpar.Training(seq_len=512, global_batch=rng.choice((16, 32))),
        stack=rng.choice(STACKS),
        constraints=simpar.Constraints(fixed=fixed, portable="any"),
    )
    rows = enumerate_space(problem)
    rows.keep_only(sorted(rng.sample(range(rows.count), min(count, rows.count))))
    return Frontier.of(rows, needs(rows).needed_bytes)


def simulated_s(frontier, row):
    """What the public call says of a row's plan, without the overhead of a step; None if it is not built."""
    problem = frontier.rows.problem
    plan = plan_of(frontier.rows, row)
    try:
        result = simpar.simulate(problem.graph, problem.cluster, plan, problem.training, stack=problem.stack)
    except UserError:
        return None
    return result.step_time_s - problem.stack.launch.step_overhead_s


def bounds_s(frontier, row):
    """Seconds by passes, whole steps, the table, and the sweep."""
    pipelines, one = frontier.bounds.pipelines, np.array([row])
    of_passes = pipelines.passes_bound_ns(pipelines.index[one])
    every = (of_passes, frontier.bounds.of(one), frontier.sweeps.tables_ns(one), frontier.sweeps.of(one))
    return [float(each[0]) / 1e9 for each in every]


CASES = [(network, nodes, seed) for seed in range(6) for network in NETWORKS for nodes in (2, 3, 4)]


@pytest.mark.parametrize(("network", "nodes", "seed"), some(CASES, [("two cards", 2, 0)], tuples=True))
def test_bounds_hold_on_slow_networks(network, nodes, seed):
    """No step is below any bound, also where cards are shared unevenly and where leaves cut across groups."""
    frontier, checked = frontier_on(network, nodes, 97 * seed + nodes, 4), 0
    for row in range(frontier.rows.count):
        if (exact := simulated_s(frontier, row)) is not None:
            assert max(bounds_s(frontier, row)) <= exact * (1 + 1e-12), plan_of(frontier.rows, row)
            checked += 1
    assert checked or frontier.rows.count == 0


PLAIN = {
    "cp": 1, "micro_batch": 1, "recompute": "none", "zero": 0, "hsdp": 1, "sequence_parallel": False,
    "tp_overlap": False, "overlap_grad_reduce": True, "overlap_param_gather": True, "order": "tp-cp-dp-pp",
}  # fmt: skip


def on_a_card(tp, pp, schedule, vpp):
    """One row of GPT-2 on four nodes with one card each."""
    problem = make_problem(
        "gpt3-1.3b",
        cluster_of("one card", 4),
        simpar.Training(seq_len=1024, global_batch=32),
        stack="megatron",
        constraints=simpar.Constraints(
            fixed={**PLAIN, "tp": tp, "pp": pp, "vpp": vpp, "schedule": schedule}, portable="any"
        ),
    )
    rows = enumerate_space(problem)
    assert rows.count == 1
    return Frontier.of(rows, needs(rows).needed_bytes)


def test_messages_of_tensor_ranks_take_turns_on_a_card():
    """Four nodes of a stage each: all eight ranks send 1/8 of an activation at once, so that all of it passes one card.

    b s h bytes x 2 over 1.25 GB/s: 1024 x 2048 x 2 / 1.25e9 = 3.36 ms, at 100 % of the card's bandwidth or less.
    """
    frontier = on_a_card(8, 4, "1f1b", 1)
    pipelines, which = frontier.bounds.pipelines, np.array([0])
    ((shape, _),) = pipelines.by_shape(which)
    hops = pipelines.hops(shape, which)
    least_ns = 1024 * 2048 * 2 / 1.25e9 * 1e9
    assert (hops.ahead > 0.999 * least_ns).all()
    assert (hops.ahead < 1.3 * least_ns).all()


@pytest.mark.parametrize(
    ("tp", "pp", "schedule", "vpp"), some([(8, 2, "1f1b", 1), (8, 4, "1f1b", 1), (2, 8, "1f1b", 1)], 1, tuples=True)
)
def test_bounds_know_most_of_what_cards_cost(tp, pp, schedule, vpp):
    """Within 10 % of the step, where without company they are below 75 % of it."""
    frontier = on_a_card(tp, pp, schedule, vpp)
    exact = simulated_s(frontier, 0)
    alone = on_a_card(tp, pp, schedule, vpp)
    alone.bounds.pipelines.blocks.lockstep.__dict__["happens"] = False
    assert max(bounds_s(alone, 0)) < 0.75 * exact
    assert 0.9 * exact < max(bounds_s(frontier, 0)) <= exact


@pytest.mark.parametrize(
    ("network", "seed"), some([(one, seed) for seed in range(4) for one in NETWORKS], 1, tuples=True)
)
def test_all_groups_of_a_plan_are_among_those_of_its_mesh(network, seed):
    """What may change places on a mesh is decided with every group that a Program of one of its plans has."""
    frontier = frontier_on(network, 4, seed, 5)
    lockstep, problem = frontier.bounds.pipelines.blocks.lockstep, frontier.rows.problem
    for row in range(frontier.rows.count if lockstep.happens else 0):
        job = make_job(problem.graph, problem.cluster, plan_of(frontier.rows, row), problem.training, problem.stack)
        known = lockstep.on(lockstep.mesh_of(row))
        if outline_job(job, problem.cluster).maker.schedule.num_ranks != job.layout.mesh.pp:
            continue  # a pipeline with two ends is bounded by its own Program
        for kind in outline_job(job, problem.cluster).maker.network.kinds:
            for op in kind.ops:
                assert known.kinds_of(op, kind.groups[0], directed=kind.directed), (kind.name, op, job.layout.mesh)
