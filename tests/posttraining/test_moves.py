"""Bytes of new weights between layouts: what a device has it does not receive, and nothing is lost."""

from dataclasses import replace

import numpy as np
import pytest

import simpar
from simpar.cost.collectives.parameters import parameters
from simpar.plan.post_training import Rollout, WeightMoves
from simpar.posttraining.engine import ServingEngine
from simpar.posttraining.moves import DENSE, Resharding
from simpar.posttraining.weight_flows import NewWeights, updates_of
from simpar.simulation import make_job

MODEL, BYTES = "llama-3-8b", 2 * simpar.Model("llama-3-8b").num_parameters()


def resharding(plan, rollout, *, nodes=1, split=False, others=None, model=MODEL, **moves):
    """New weights from a plan on some nodes to replicas there or, split, on others (as many, if not said)."""
    cluster = simpar.Cluster("dgx-h100", nodes)
    training = simpar.Training(seq_len=2048, global_batch=64)
    layout = make_job(simpar.Model(model), cluster, simpar.Plan(**plan), training).layout
    pool = simpar.Cluster("dgx-h100", others or nodes) if split else cluster
    served = ServingEngine.of(simpar.Model(model), pool, Rollout(**rollout), 2048)
    return Resharding(layout, served, cluster, pool, WeightMoves(**moves), not split)


def seconds(*moved):
    """What new weights take, to all pools at once."""
    return NewWeights(updates_of(moved), tuple(one.is_same_pool for one in moved)).time_s


def test_the_rows_hold_the_model():
    """Two bytes a parameter; a tied table counts once."""
    for model in (MODEL, "qwen2.5-0.5b", "mixtral-8x7b"):
        whole = resharding({"tp": 2}, {"tp": 2}, model=model).received.whole
        assert whole == 2 * simpar.Model(model).num_parameters()


def test_equal_layouts_move_nothing():
    """Tensor parallelism of the same degree leaves every part where it is."""
    received = resharding({"tp": 8}, {"tp": 8}, method="resharded").received
    assert (received.from_node, received.into_node) == (0, 0)
    assert received.own == received.needed


@pytest.mark.parametrize(("trained", "served"), [(8, 4), (8, 1), (4, 8), (2, 1)])
def test_parts_come_from_the_node(trained, served):
    """Of 1/r of the model a device has what its part of 1/t covers of it, at least for the first rank."""
    received = resharding({"tp": trained}, {"tp": served}, method="resharded").received
    assert received.into_node == 0
    assert received.needed == pytest.approx(BYTES / served)
    assert received.from_node <= BYTES / served
    assert received.from_node >= max(0.0, BYTES / served - BYTES / trained) * (1 - 1e-9)


def test_shards_over_two_nodes_come_half_over_the_network():
    """Under ZeRO-3 on 16 devices a node holds half of the model; the other half enters once."""
    received = resharding({"zero": 3}, {"tp": 8}, nodes=2, method="resharded").received
    assert received.into_node == pytest.approx(BYTES / 2, rel=1e-3)
    assert received.own + received.from_node == pytest.approx(received.needed, rel=1e-3)


def test_split_pools_send_the_model_into_every_node():
    """Whatever the replicas of a node keep, together they need all of it, once."""
    for rollout in ({"tp": 1}, {"tp": 8}):
        for method in ("gathered", "resharded"):
            received = resharding({"zero": 3}, rollout, nodes=2, split=True, method=method).received
            assert received.into_node == pytest.approx(BYTES)
            assert received.own == 0
            kept = BYTES / rollout["tp"] if method == "resharded" else BYTES
            assert received.from_node == pytest.approx(kept)


def test_stages_and_experts_have_their_own_parts():
    """What all devices of a replica keep adds up to the model, and to what trained ones hold."""
    moved = resharding({"tp": 2, "pp": 2, "ep": 2}, {"tp": 4, "pp": 2}, model="mixtral-8x7b")
    for grid in (DENSE, 1):
        cells = moved.row_bytes[grid][:, None] / moved.columns[grid]
        assert (moved.served.of(grid).sum(axis=0) * cells).sum() == pytest.approx(moved.row_bytes[grid].sum())
        held = moved.trained.of(grid).sum(axis=0)
        assert np.allclose(held[cells[:, 0] > 0], held[cells[:, 0] > 0][0])


@pytest.mark.parametrize("trained", [1, 2])
def test_nodes_pass_on_what_is_broadcast(trained):
    """A node more costs a hop of the ring, for weights leave the first node once: W / (NICs of a node)."""
    few, many = (resharding({"zero": 3}, {"tp": 8}, nodes=trained, split=True, others=n) for n in (1, 16))
    said = parameters(few.targets)
    assert many.received.from_others == pytest.approx(16 * BYTES)
    assert seconds(many) - seconds(few) == pytest.approx(15 * said["nic_hop_us"] * 1e-6, rel=1e-6)
    copied = (2.0 * few.received.from_node + 2.0 * few.received.needed) / few.engine.kernels.bandwidth
    inside = BYTES / (450e9 * said["send_efficiency"])
    network = BYTES / (8 * 50e9 * said["nic_efficiency"])
    hops = (said["base_us"] + said["nic_hop_us"]) * 1e-6
    assert seconds(few) == pytest.approx(max(inside, network) + copied + hops, abs=3e-9)


def test_parts_of_replicas_leave_the_training_nodes_one_by_one():
    """Sixteen nodes that receive parts of their own take sixteen times W of the NICs of two."""
    sent = {n: resharding({"zero": 3}, {"tp": 8}, nodes=2, split=True, others=n, method="resharded") for n in (16, 32)}
    rate = 8 * 50e9 * parameters(sent[16].targets)["nic_efficiency"]
    assert seconds(sent[32]) - seconds(sent[16]) == pytest.approx(16 * BYTES / 2 / rate, rel=1e-6)


def test_a_slow_network_of_the_first_node_holds_a_broadcast_up():
    """The ring is as fast as its slowest node."""
    moved = resharding({"zero": 3}, {"tp": 8}, nodes=2, split=True, others=4)
    out = moved.sources.profile.scale_out.model_copy(update={"nic_bandwidth": 5e9})
    profile = moved.sources.profile.model_copy(update={"scale_out": out})
    slow = replace(moved, sources=simpar.Cluster(profile, 2))
    rate = parameters(slow.sources)["nic_efficiency"] * 8 * 5e9
    assert seconds(slow) == pytest.approx(BYTES / rate, rel=0.1)
    assert seconds(slow) > BYTES / rate


@pytest.mark.parametrize("nics", [1, 8, 16])
def test_a_rank_that_broadcasts_alone_has_the_nics_of_its_device(nics):
    """One of eight, two of sixteen, or the only one of the node; all ranks together have those of the node."""
    moved = resharding({"zero": 3}, {"tp": 8}, nodes=2, split=True, others=4, senders="rank")
    profile = moved.sources.profile
    out = profile.scale_out.model_copy(update={"nics_per_node": nics})
    sources = simpar.Cluster(profile.model_copy(update={"scale_out": out}), 2)
    alone = replace(moved, sources=sources)
    rate = max(1, nics // 8) * 50e9 * parameters(sources)["nic_efficiency"]
    receives = 8 * 50e9 * parameters(moved.targets)["nic_efficiency"]
    link, taken = NewWeights(updates_of([alone]), (False,)).slowest
    ports = BYTES / (450e9 * parameters(sources)["send_efficiency"])
    assert taken == pytest.approx(max(BYTES / min(rate, receives), ports))
    assert link == ("NICs out of training node 0" if nics == 1 else "NICs of the rank that sends")
    together = replace(alone, moves=WeightMoves())
    assert seconds(together) <= seconds(alone)


def test_engines_on_the_node_that_trains_receive_over_its_links():
    """No NIC is passed, whoever sends."""
    for senders in ("ranks", "rank"):
        moved = resharding({"zero": 3}, {"tp": 8}, split=True, senders=senders)
        near = replace(moved, is_same_node=True)
        inside = BYTES / (450e9 * parameters(moved.targets)["send_efficiency"])
        copied = (2.0 * near.received.from_node + 2.0 * near.received.needed) / near.engine.kernels.bandwidth
        assert seconds(near) == pytest.approx(inside + copied, rel=1e-3)
        assert seconds(near) <= seconds(moved)


def test_fewer_values_and_other_roads():
    """Changed values carry their positions; a hundredth of them is sent with 6 bytes for 2."""
    usual, few = ({"method": "resharded", "changed": changed} for changed in (1.0, 0.01))
    whole, part = (resharding({"zero": 3}, {"tp": 8}, nodes=2, split=True, **each) for each in (usual, few))
    assert part.received.into_node == pytest.approx(0.03 * whole.received.into_node)
    assert seconds(part) < seconds(whole)
    host = resharding({"zero": 3}, {"tp": 8}, nodes=2, split=True, through="host", **usual)
    assert seconds(host) >= host.received.needed / 64e9
