"""Tokens that cross the network once a node and are forwarded inside it."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective
from simpar.hardware.catalogue import load_cluster
from simpar.plan.routing import Routing

from .conftest import ToyMaker

HIDDEN, TOKENS = 7168, 4096


def test_inside_a_domain_it_is_an_all_to_all(toy: ToyMaker) -> None:
    """Every link carries what an all-to-all of as many bytes puts there."""
    here, group = toy(2), np.arange(8)[None, :]
    ours, theirs = (collective(op, group, here, size_bytes=1e9) for op in ("dispatch 8 256 1 1", "all_to_all"))
    assert ours.edges.link_id.tolist() == theirs.edges.link_id.tolist()
    np.testing.assert_allclose(ours.edges.coefficient, theirs.edges.coefficient)


def test_copies_on_the_links_of_a_drawn_routing(toy: ToyMaker) -> None:
    """Four nodes of four: every link carries what tokens that draw their experts put there."""
    here, group, routing = toy(4, 4), np.arange(16), Routing(4, 32)
    found = collective(routing.op, group[None, :], here, size_bytes=1e9)
    draw, count = np.random.default_rng(0), 4000
    loads = np.zeros(here.num_links)
    for sender in group:
        experts = draw.random((count, 32)).argsort(axis=1)[:, :4]
        held = np.zeros((count, 16), dtype=bool)
        held[np.arange(count)[:, None], experts // 2] = True
        for node in range(4):
            gateway = node * 4 + sender % 4
            tokens = held[:, node * 4 : node * 4 + 4]
            if node != sender // 4:
                loads[[here.nic_tx(sender), here.nic_rx(gateway)]] += tokens.any(axis=1).sum()
            for at, many in enumerate(tokens.sum(axis=0)):
                if node * 4 + at != gateway:
                    loads[[here.port_tx(gateway), here.port_rx(node * 4 + at)]] += many
    copies = 16 * routing.holds(1 / 16) * count
    used = np.flatnonzero(loads)
    assert used.tolist() == found.edges.link_id.tolist()
    np.testing.assert_allclose(found.edges.coefficient, loads[used] / copies, rtol=0.05)


def test_domains_of_unequal_size(toy: ToyMaker) -> None:
    """What leaves all NICs arrives at all NICs, and no node receives more copies of a token than one."""
    here, group = toy(3), np.array([0, 1, 2, 3, 8, 9, 16])
    edges = collective("dispatch 4 28 1 1", group[None, :], here, size_bytes=1e9).edges
    load = dict(zip(edges.link_id.tolist(), edges.coefficient.tolist(), strict=True))
    sent, received = (sum(load[int(link(rank))] for rank in group) for link in (here.nic_tx, here.nic_rx))
    assert sent == pytest.approx(received)


@pytest.mark.parametrize(("ranks", "limited", "gb_per_s"), [(32, 4, 57.5), (64, 8, 50.5)])
def test_published_bandwidth_between_nodes(ranks: int, limited: int, gb_per_s: float) -> None:
    """DeepEP, README of April 2025: dispatch and combine of 4,096 tokens on nodes with 8 NICs of 400 Gb/s.

    It counts one copy a node, the own one too. On 16 ranks its kernels are not bound by NICs (43 GB/s).
    """
    cluster, routing = load_cluster("dgx-h100", ranks // 8), Routing(8, 256, 4, limited)
    size = 2.0 * TOKENS * HIDDEN * ranks * routing.holds(1 / ranks)
    cost = collective(routing.op, np.arange(ranks)[None, :], cluster, size_bytes=size)
    counted = 2.0 * TOKENS * HIDDEN * ranks / 8 * routing.holds(8 / ranks)
    assert counted / cost.solo_time_s(size, cluster) / 1e9 == pytest.approx(gb_per_s, rel=0.06)


@pytest.mark.parametrize(("tokens", "dispatch_us", "combine_us"), [(4096, 1860, 3634), (8192, 3586, 7073)])
def test_measured_on_four_nodes(tokens: int, dispatch_us: float, combine_us: float) -> None:
    """NVIDIA AIConfigurator, h100_sxm, DeepEP on 20 SMs: tokens in 8 bits and scales out, 16 bits back.

    Both with their notices: 59 and 106 us of 4,096 tokens, 68 and 161 of 8,192.
    """
    cluster, routing = load_cluster("dgx-h100", 4), Routing(8, 256)
    for width, measured_us in ((HIDDEN * (1 + 4 / 128), dispatch_us), (2 * HIDDEN, combine_us)):
        size = width * tokens * 32 * routing.holds(1 / 32)
        cost = collective(routing.op, np.arange(32)[None, :], cluster, size_bytes=size)
        assert cost.solo_time_s(size, cluster) * 1e6 == pytest.approx(measured_us, rel=0.09)


@pytest.mark.parametrize(("tokens", "both_us"), [(4096, 3043), (8192, 5720)])
def test_on_two_nodes_multiprocessors_are_the_limit(tokens: int, both_us: float) -> None:
    """The same source on two nodes: dispatch and combine together, which NICs alone would do in two thirds of it."""
    cluster, routing = load_cluster("dgx-h100", 2), Routing(8, 256)
    found_s = 0.0
    for width in (HIDDEN * (1 + 4 / 128), 2.0 * HIDDEN):
        size = width * tokens * 16 * routing.holds(1 / 16)
        cost = collective(routing.op, np.arange(16)[None, :], cluster, size_bytes=size)
        assert cost.rate_cap_bytes_per_s is not None
        found_s += cost.solo_time_s(size, cluster)
    assert found_s * 1e6 == pytest.approx(both_us, rel=0.1)


def test_a_dispatch_inside_a_domain_has_ports_alone(toy: ToyMaker) -> None:
    """Libraries differ there; that of NVLink racks is not held to what another needs to reach a network."""
    cost = collective("dispatch 8 256 1 1", np.arange(8)[None, :], toy(1), size_bytes=1e9)
    assert cost.rate_cap_bytes_per_s is None
