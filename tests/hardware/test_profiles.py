"""Every profile that ships: loads, states its sources, is physically plausible, routes everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.kernels import KernelModel
from simpar.errors import UserError
from simpar.files import bundled
from simpar.hardware.cluster import Cluster, load_cluster
from simpar.hardware.device import load_device
from simpar.units import GB, GIB, TERA


def cluster_of(name: str, nodes: int = 2) -> Cluster:
    """Two nodes where the profile has a network, else one."""
    try:
        return load_cluster(name, nodes)
    except UserError:
        return load_cluster(name, 1)


@pytest.mark.parametrize("name", bundled("devices"))
def test_device_is_plausible(name: str) -> None:
    """Rates, memory and bandwidth are in the range of real devices, and sources are given."""
    device = load_device(name)
    assert device.name == name
    assert device.sources
    assert all(0.1 * TERA < rate < 20_000 * TERA for rate in device.peak_flop_per_s.values())
    assert 8 * GIB < device.memory_bytes < 400 * GIB
    assert 20 * GB < device.memory_bandwidth < 10_000 * GB
    assert KernelModel(device).gemm_time_s(4096, 4096, 4096) > 0
    if device.kernels:
        assert device.provenance or device.kind == "cpu"


@pytest.mark.parametrize("name", bundled("clusters"))
def test_cluster_routes_between_all_ranks(name: str) -> None:
    """Every pair of ranks is joined by links of positive capacity, both ways by as many."""
    cluster = cluster_of(name)
    assert cluster.profile.name == name
    assert cluster.profile.sources
    assert (cluster.link_capacity_bytes_per_s > 0).all()
    ranks = np.arange(min(cluster.world_size, 32))
    src, dst = (pair.ravel() for pair in np.meshgrid(ranks, ranks))
    apart = src != dst
    there, links = cluster.route(src[apart], dst[apart])
    back, _ = cluster.route(dst[apart], src[apart])
    assert (np.bincount(there, minlength=apart.sum()) > 0).all()
    assert (np.bincount(there) == np.bincount(back)).all()
    assert links.max(initial=0) < cluster.num_links


def test_names_of_links_are_their_patterns() -> None:
    """A link's name degrades exactly that link."""
    cluster = load_cluster("dgx-h100", 2)
    for link in range(0, cluster.num_links, 7):
        changed = cluster.with_degraded({cluster.link_name(link): 0.5})
        ratio = changed.link_capacity_bytes_per_s / cluster.link_capacity_bytes_per_s
        assert np.flatnonzero(ratio != 1).tolist() == [link]


def test_node_pattern_degrades_its_rails() -> None:
    """``node:1`` slows the NICs of node 1, both ways."""
    cluster = load_cluster("dgx-h100", 4).with_degraded({"node:1": 0.5})
    slowed = cluster.link_capacity_bytes_per_s[cluster.nic_tx(np.arange(32))] < 50 * GB
    assert np.flatnonzero(slowed).tolist() == list(range(8, 16))


@pytest.mark.parametrize("pattern", ["nic_tx[999]", "wire[0]", "node:9", "nic_tx[-1]"])
def test_unknown_links_are_refused(pattern: str) -> None:
    """A pattern that names no link is one clear line."""
    with pytest.raises(UserError, match="degraded link"):
        load_cluster("dgx-h100", 2).with_degraded({pattern: 0.5})


def test_message_between_rails_moves_inside_the_node_first() -> None:
    """On rails, rank 0 to rank 9 crosses the port to rank 1, then rail 1: no spine."""
    cluster = load_cluster("dgx-h100", 2)
    _, links = cluster.route(np.array([0]), np.array([9]))
    assert sorted(map(cluster.link_name, links.tolist())) == [
        "nic_rx[9]",
        "nic_tx[1]",
        "port_rx[1]",
        "port_tx[0]",
    ]


def test_leaves_join_pods() -> None:
    """Beyond one leaf's nodes a message climbs to the spine; oversubscription divides the uplinks."""
    cluster = load_cluster("meta-llama3-h100", 400)
    _, links = cluster.route(np.array([0]), np.array([384 * 8]))
    names = [cluster.link_name(link).split("[")[0] for link in links.tolist()]
    assert "leaf_up" in names
    assert "leaf_down" in names
    uplink = cluster.link_capacity_bytes_per_s[cluster.leaf_up(np.array([0]))][0]
    assert uplink == pytest.approx(384 * 50 * GB / 7)


def test_torus_takes_the_short_way_round() -> None:
    """On a 4 x 4 x 4 torus, three steps one way are one step the other."""
    cluster = load_cluster("tpu-v4-4x4x4", 1)
    _, links = cluster.route(np.array([0]), np.array([3]))
    assert len(links) == 2


def test_network_of_one_hundred_thousand_ranks_is_arithmetic() -> None:
    """Routes of 131,072 messages come from arithmetic on rank numbers."""
    cluster = load_cluster("dgx-h100", 16384)
    ranks = np.arange(cluster.world_size)
    message, _ = cluster.route(ranks, (ranks + 8) % cluster.world_size)
    assert len(np.unique(message)) == cluster.world_size


def test_view_as_a_graph() -> None:
    """The networkx view joins all devices through switches and leaves."""
    import networkx as nx

    graph = load_cluster("dgx-a100-80gb", 2).to_networkx()
    assert nx.has_path(graph, "gpu0", "gpu15")
    assert all(capacity > 0 for _, _, capacity in graph.edges(data="capacity"))


@pytest.mark.parametrize("nodes", [0, -1, 10**9])
def test_impossible_numbers_of_nodes(nodes: int) -> None:
    """Numbers of nodes out of range are refused."""
    with pytest.raises(UserError, match="nodes = "):
        load_cluster("dgx-h100", nodes)


def test_box_without_network_is_one_node() -> None:
    """A laptop cannot have two nodes."""
    with pytest.raises(UserError, match="no network between nodes"):
        load_cluster("laptop-cpu", 2)
