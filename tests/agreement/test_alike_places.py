"""What folds and spaces leave out because it changes no time: wide uplinks, and whole nodes that change places."""

from dataclasses import replace

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.planner import Constraints, make_problem
from simpar.planner.space.rows import enumerate_space

PLANS = {
    "ddp": {"tp": 8, "pp": 2, "zero": 1},
    "fsdp": {"tp": 4, "zero": 3, "hsdp": 2},
    "pipeline": {"tp": 2, "pp": 4, "schedule": "interleaved", "vpp": 2, "zero": 1},
    "tp over nodes": {"tp": 16, "pp": 2, "zero": 2},
}
NODES, BATCH = 24, 96
MODEL = load_model("llama-3.2-1b")
MODEL = replace(MODEL, layers=MODEL.layers[:8])


def step_s(cluster, **plan):
    """Seconds of a step of half the layers of a small model, micro-batches of one sequence."""
    training = simpar.Training(seq_len=512, global_batch=BATCH)
    plan = simpar.Plan(micro_batch=1, **plan)
    return simpar.simulate(MODEL, cluster, plan, training, with_timeline=False).step_time_s


@pytest.mark.parametrize("name", PLANS)
def test_uplinks_as_wide_as_the_nics_below_change_nothing(name):
    """24 nodes fill no whole number of leaves of 20; uplinks that are written out give the same nanoseconds.

    Degrading an uplink by nothing makes it a link that may bind.
    """
    cluster = simpar.Cluster("dgx-a100-80gb", nodes=NODES)
    written_out = cluster.with_degraded({"leaf_up": 1.0})
    assert written_out.leaves_bind
    assert not cluster.leaves_bind
    assert step_s(cluster, **PLANS[name]) == step_s(written_out, **PLANS[name])


def test_a_narrow_uplink_binds():
    """A leaf whose uplinks lose nine tenths slows down what crosses them."""
    cluster = simpar.Cluster("dgx-a100-80gb", nodes=NODES)
    assert step_s(cluster.with_degraded({"leaf_up": 0.1}), **PLANS["ddp"]) > step_s(cluster, **PLANS["ddp"])


@pytest.mark.parametrize("name", ["ddp", "tp over nodes"])
def test_whole_nodes_may_change_places(name):
    """Where tensor-parallel groups fill nodes the order of data and pipeline ranks changes no time."""
    cluster = simpar.Cluster("dgx-a100-80gb", nodes=NODES)
    orders = ("tp-cp-dp-pp", "tp-cp-pp-dp")
    assert len({step_s(cluster, **PLANS[name], rank_order=order) for order in orders}) == 1


@pytest.mark.parametrize(
    ("tp", "links", "constraints", "orders"),
    [
        (8, {}, Constraints(), {0}),
        (4, {}, Constraints(), {0, 1}),
        (8, {"nic_tx[3]": 0.5}, Constraints(), {0, 1}),
        (8, {}, Constraints(portable="megatron"), {0, 1}),
    ],
)
def test_a_space_has_orders_where_they_matter(tp, links, constraints, orders):
    """Groups that fill nodes come in one order, unless some node differs or a target may know only the other one."""
    cluster = simpar.Cluster("dgx-h100", nodes=4).with_degraded(links)
    fixed = {"tp": tp, "pp": 2, "schedule": "1f1b", "micro_batch": 1, "zero": 1}
    rows = enumerate_space(
        make_problem(
            "llama-3.2-1b",
            cluster,
            simpar.Training(seq_len=512, global_batch=32),
            constraints=replace(constraints, fixed=fixed),
        )
    )
    assert set(rows.code["order"].tolist()) == orders
