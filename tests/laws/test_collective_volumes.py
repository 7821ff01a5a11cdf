"""Closed forms of collective communication: volumes, times and steps of the textbook algorithms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.cost.collectives.choice import collective, collective_time_s
from simpar.cost.collectives.placement import regular_shape
from simpar.hardware.cluster import Cluster
from simpar.hardware.profile import ClusterProfile, Host, ScaleUp
from simpar.units import MB, US

IDEAL = {
    "base_us": 0.0, "port_hop_us": 0.0, "near_peer_us": 0.0, "port_efficiency": 1.0, "pair_loss": 0.0,
    "exchange_efficiency": 1.0, "send_efficiency": 1.0, "ll_hop_factor": 1.0, "ll_efficiency": 1.0,
    "ll128_hop_factor": 1.0, "ll128_efficiency": 1.0,
}  # fmt: skip


def switch(ports: int, **changes: float) -> Cluster:
    """One switch with ports of 1 MB/s and no overhead."""
    profile = ClusterProfile(
        name="switch",
        device="h100-sxm-80gb",
        devices_per_node=ports,
        scale_up=ScaleUp(kind="nvswitch", bandwidth=1.0 * MB, latency=0.0),
        host=Host(memory_bytes=1e9, memory_bandwidth=1e9, pcie_bandwidth=1e9),
        collectives={**IDEAL, **changes},
    )
    return Cluster(profile, 1)


def sent_bytes(op: str, members: int, size: float, algorithm: str = "auto") -> np.ndarray:
    """Bytes on the outgoing port of every rank."""
    cluster = switch(members)
    cost = collective(op, np.arange(members)[None, :], cluster, size_bytes=size, algorithm=algorithm)
    sent = np.zeros(members)
    ports = cluster.port_tx(np.arange(members))
    for link, coefficient in zip(cost.edges.link_id.tolist(), cost.edges.coefficient.tolist(), strict=True):
        if link <= ports[-1]:
            sent[link - ports[0]] = coefficient * size
    return sent


@settings(max_examples=25, deadline=None)
@given(members=st.integers(2, 64), size=st.floats(1.0, 1e12))
def test_ring_volumes(members: int, size: float) -> None:
    """A rank of a ring sends 2X(N-1)/N for an all-reduce, X(N-1)/N for its two halves."""
    share = (members - 1) / members
    np.testing.assert_allclose(sent_bytes("all_reduce", members, size, "ring"), 2 * size * share)
    np.testing.assert_allclose(sent_bytes("all_gather", members, size, "ring"), size * share)
    np.testing.assert_allclose(sent_bytes("reduce_scatter", members, size, "ring"), size * share)


@settings(max_examples=25, deadline=None)
@given(members=st.integers(2, 64), size=st.floats(1e3, 1e12))
def test_ring_time_without_latency(members: int, size: float) -> None:
    """A ring all-reduce takes 2(N-1)X / (NB)."""
    seconds = collective_time_s("all_reduce", size, regular_shape(1, members), switch(members), algorithm="ring")
    assert float(seconds) == pytest.approx(2 * (members - 1) * size / (members * MB))


@settings(max_examples=25, deadline=None)
@given(members=st.integers(2, 64), size=st.floats(1.0, 1e12))
def test_exchange_volume(members: int, size: float) -> None:
    """A rank of an all-to-all sends all but its own share."""
    np.testing.assert_allclose(sent_bytes("all_to_all", members, size), size * (members - 1) / members)


@settings(max_examples=25, deadline=None)
@given(members=st.integers(2, 64), size=st.floats(1.0, 1e12))
def test_scatter_and_gather_volumes(members: int, size: float) -> None:
    """A scatter's root sends X(N-1)/N, a gather's members X/N each and its root nothing."""
    scatter, gather = (sent_bytes(op, members, size) for op in ("scatter", "gather"))
    assert scatter[0] == pytest.approx(size * (members - 1) / members)
    assert (scatter[1:] == 0).all()
    assert gather[0] == 0
    np.testing.assert_allclose(gather[1:], size / members)


def test_broadcast_to_seven() -> None:
    """5 MB to 7 receivers over 1 MB/s ports: 35 s one by one, 15 s down a tree, 5 s along a pipeline."""
    cluster = switch(8)
    seconds = {
        name: float(collective_time_s("broadcast", 5 * MB, regular_shape(1, 8), cluster, algorithm=name))
        for name in ("star", "tree", "ring")
    }
    assert seconds == {"star": pytest.approx(35.0), "tree": pytest.approx(15.0), "ring": pytest.approx(5.0)}


@pytest.mark.parametrize("members", [2, 4, 8, 16, 32, 64])
def test_halving_doubling_steps(members: int) -> None:
    """Recursive halving and doubling takes 2 log2 N steps, and moves what a ring moves."""
    cluster = switch(members, port_hop_us=1.0)
    seconds = collective_time_s("all_reduce", 0.0, regular_shape(1, members), cluster, algorithm="halving_doubling")
    assert float(seconds) == pytest.approx(2 * math.log2(members) * US)
    moved = sent_bytes("all_reduce", members, 1e6, "halving_doubling")
    np.testing.assert_allclose(moved, sent_bytes("all_reduce", members, 1e6, "ring"))


@pytest.mark.parametrize("members", [2, 3, 5, 8, 33, 64])
def test_broadcast_tree_steps(members: int) -> None:
    """A binomial tree needs ceil(log2 N) rounds, a ring N-1 hops."""
    cluster = switch(members, port_hop_us=1.0)
    tree, ring = (
        float(collective_time_s("broadcast", 0.0, regular_shape(1, members), cluster, algorithm=name))
        for name in ("tree", "ring")
    )
    assert tree == pytest.approx(math.ceil(math.log2(members)) * US)
    assert ring == pytest.approx((members - 1) * US)


@settings(max_examples=25, deadline=None)
@given(members=st.integers(2, 64), size=st.floats(1.0, 1e12))
def test_reduce_scatter_then_all_gather_is_an_all_reduce(members: int, size: float) -> None:
    """On a ring an all-reduce costs exactly its two halves."""
    cluster, shape = switch(members, port_hop_us=1.0), regular_shape(1, members)
    whole, scatter, gather = (
        float(collective_time_s(op, size, shape, cluster, algorithm="ring"))
        for op in ("all_reduce", "reduce_scatter", "all_gather")
    )
    assert whole == pytest.approx(scatter + gather)


def test_parameter_server_is_worse_than_a_ring_by_half_the_members() -> None:
    """A server moves X(N-1) each way on one port: N/2 times a ring."""
    shape, cluster = regular_shape(1, 8), switch(8)
    server, ring = (
        float(collective_time_s("all_reduce", 1.0 * MB, shape, cluster, algorithm=name)) for name in ("star", "ring")
    )
    assert server == pytest.approx(7.0)
    assert server / ring == pytest.approx(8 / 2)
