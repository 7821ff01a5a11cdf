"""What a collective takes alone is one number: in the Program, and for searches, schedules and slices of tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simpar
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.emission.collective_prices import Added, Prices
from simpar.simulation import lower_job, make_job
from simpar.stacks.stack import load_stack

CLUSTER = simpar.Cluster("dgx-h100", nodes=2)
STACK = load_stack("megatron")
LAUNCH = STACK.launch.model_copy(update={"message_s": 3e-6, "dispatch_s": 50e-6})
JOB = make_job(
    "gpt2",
    CLUSTER,
    simpar.Plan(tp=2, pp=2, reduce_dtype="fp8"),
    simpar.Training(seq_len=1024, global_batch=16),
    STACK.model_copy(update={"launch": LAUNCH}),
)
LOWERED = lower_job(JOB, CLUSTER, contention=False)
RANK = int(LOWERED.maker.network.quotient.representative_rank[0])


def group_of(kind: str):
    """The group of the first class's representative."""
    groups = JOB.layout.mesh.groups("tp" if kind == "tp" else ("dp", "cp"))
    return groups[(groups == RANK).any(axis=1)][0]


@given(
    size=st.floats(1.0, 1e10),
    count=st.integers(1, 4),
    where=st.sampled_from([("tp", "all_gather"), ("tp", "reduce_scatter"), ("dp", "all_reduce")]),
)
def test_the_network_and_its_prices_agree_to_the_nanosecond(size, count, where):
    """With links of its own: latency, what a stack adds to calls and bytes, and draining at the slowest link's rate."""
    kind, op = where
    prices = Prices(CLUSTER.in_training, LOWERED.maker.network.added)
    price = prices.of(op, group_of(kind), kind)
    assert price.private
    use = CollectiveUse(kind, op, size, count)
    assert price.use_ns(use) == LOWERED.maker.network.solo_ns(0, use)


@given(sizes=st.lists(st.floats(0.0, 1e9), min_size=1, max_size=8))
def test_arrays_of_sizes_are_priced_like_each_of_them(sizes):
    """One size is an array of one."""
    price = Prices(CLUSTER.in_training).of("all_reduce", np.arange(16))
    assert price.time_ns(np.array(sizes)).tolist() == [int(price.time_ns(size)) for size in sizes]


def test_what_a_stack_adds():
    """Messages are agreed on, tensor-parallel collectives dispatched, copies quantised; nothing else is longer."""
    added = Added(1.0, 2.0, {"all_gather": 3.0})
    assert added.of_call("send", "pp+1") == (1.0, 0.0)
    assert added.of_call("all_gather", "tp") == (2.0, 0.0)
    assert added.of_call("all_gather", "tp_1") == (2.0, 0.0)
    assert added.of_call("all_gather", "edp_shard") == (0.0, 3.0)
    assert added.of_call("reduce_scatter", "dp") == (0.0, 0.0)
    assert added.of_call("all_to_all", "ep") == (0.0, 0.0)


@pytest.mark.parametrize("nic", ["dgx-h100", "a100-pcie-8"])
def test_links_are_private_where_every_device_has_its_own(nic):
    """A NIC of each device is; one that several share is not."""
    cluster = simpar.Cluster(nic, nodes=2)
    own = cluster.rails == cluster.profile.devices_per_node
    assert Prices(cluster).of("all_reduce", np.array([0, 8])).private == own
