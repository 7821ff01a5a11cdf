"""Links have names, capacities and owners; routes are arithmetic on rank numbers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.errors import UserError
from simpar.files import bundled
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster, make_cluster
from simpar.hardware.profile import ClusterProfile
from simpar.units import GB, GIB, US
from tests.gate import some

BLOCKS = ("port_tx", "port_rx", "nic_tx", "nic_rx", "leaf_up", "leaf_down", "pcie_tx", "pcie_rx", "host_memory")


def small(nodes: int, *, per_node: int = 4, nics: int = 4, up: str = "nvswitch", **out: Any) -> Cluster:
    """Nodes of ports at 100 GB/s and NICs at 10 GB/s, two nodes to a leaf unless said otherwise."""
    network = {"kind": "ib", "nics_per_node": nics, "nic_bandwidth": 10 * GB, "latency": US, "nodes_per_leaf": 2}
    profile = ClusterProfile.model_validate(
        {
            "name": "small", "device": "l4", "devices_per_node": per_node,
            "scale_up": {"kind": up, "bandwidth": 100 * GB, "latency": US}, "scale_out": network | out,
            "host": {"memory_bytes": GIB, "memory_bandwidth": 200 * GB, "pcie_bandwidth": 25 * GB},
        }
    )  # fmt: skip
    return make_cluster(profile, nodes)


def path(cluster: Cluster, src: int, dst: int) -> list[str]:
    """Names of the links from one rank to another."""
    _, links = cluster.route(np.array([src]), np.array([dst]))
    return [cluster.link_name(link) for link in links.tolist()]


def test_ports_nics_leaves_and_host_links_have_owners() -> None:
    """Link ids of a rank have the index that its place in the cluster says."""
    cluster, ranks = small(4), np.arange(16)
    owners = {
        "port_tx": ranks, "port_rx": ranks, "nic_tx": ranks, "nic_rx": ranks, "pcie_tx": ranks, "pcie_rx": ranks,
        "leaf_up": ranks // 8 * 4 + ranks % 4, "leaf_down": ranks // 8 * 4 + ranks % 4, "host_memory": ranks // 4,
    }  # fmt: skip
    assert set(owners) == set(BLOCKS)
    for block, index in owners.items():
        names = [cluster.link_name(int(link)) for link in cluster.link_of(block, ranks)]
        assert names == [f"{block}[{i}]" for i in index.tolist()]


@pytest.mark.parametrize(("rails", "leaves"), [(True, 8), (False, 2)])
def test_uplinks_carry_what_the_nics_below_can_send(rails: bool, leaves: int) -> None:
    """With or without rails, all uplinks together have the NICs' bandwidth over the oversubscription."""
    cluster = small(4, rails=rails, oversubscription=4.0)
    assert cluster.num_leaves == leaves
    ranks = np.arange(16)
    capacity = cluster.link_capacity_bytes_per_s
    for up, nic in ((cluster.leaf_up, cluster.nic_tx), (cluster.leaf_down, cluster.nic_rx)):
        links, nics = np.unique(up(ranks)), np.unique(nic(ranks))
        assert len(links) == leaves
        assert capacity[links].sum() == pytest.approx(capacity[nics].sum() / 4)


@pytest.mark.parametrize(
    ("per_node", "nics", "rail", "gigabytes"),
    [
        (8, 4, [0, 0, 1, 1, 2, 2, 3, 3], 10), (8, 8, list(range(8)), 10), (8, 32, list(range(8)), 40),
        (8, 1, [0] * 8, 10), (8, 12, list(range(8)), 15), (8, 3, [0, 0, 0, 1, 1, 1, 2, 2], 10),
        (4, 8, [0, 1, 2, 3], 20),
    ],
)  # fmt: skip
def test_nics_are_shared_or_bundled(per_node: int, nics: int, rail: list[int], gigabytes: float) -> None:
    """Fewer NICs than devices: ranks share one. More: a rank's NICs are one link of their sum."""
    cluster = small(2, per_node=per_node, nics=nics)
    assert cluster.rail_of(np.arange(per_node)).tolist() == rail
    assert cluster.rail_of(np.arange(per_node, 2 * per_node)).tolist() == rail
    capacity = cluster.link_capacity_bytes_per_s[cluster.nic_tx(np.arange(2 * per_node))]
    assert capacity.tolist() == [gigabytes * GB] * 2 * per_node


def test_efa_boxes() -> None:
    """P4d: two GPUs a 100 Gb/s NIC. P5: four NICs of 100 Gb/s a GPU."""
    p4d, p5 = load_cluster("aws-p4d", 2), load_cluster("aws-p5", 2)
    assert p4d.nic_tx(np.array([0, 1])).tolist() == [32, 32]
    assert p4d.link_capacity_bytes_per_s[p4d.nic_tx(np.array([5]))].tolist() == [12.5 * GB]
    assert p5.link_capacity_bytes_per_s[p5.nic_tx(np.array([5]))].tolist() == [50 * GB]
    assert path(p4d, 0, 9) == ["nic_tx[0]", "nic_rx[4]"]


def test_inside_a_domain_two_ports() -> None:
    """A message in a node, or in a rack of 72, leaves one port and enters another."""
    assert path(small(2), 0, 3) == ["port_tx[0]", "port_rx[3]"]
    rack = load_cluster("gb200-nvl72", 36)
    assert path(rack, 0, 71) == ["port_tx[0]", "port_rx[71]"]
    assert rack.domain_of(np.array([71, 72])).tolist() == [0, 1]
    assert path(rack, 0, 72) == ["nic_tx[0]", "nic_rx[72]", "leaf_up[0]", "leaf_down[4]"]


def test_message_between_rails_moves_inside_the_node_first() -> None:
    """On rails, rank 0 to rank 9 crosses the port to rank 1, then rail 1: no spine."""
    assert path(load_cluster("dgx-h100", 2), 0, 9) == ["port_tx[0]", "port_rx[1]", "nic_tx[1]", "nic_rx[9]"]
    assert path(load_cluster("dgx-h100", 2), 0, 8) == ["nic_tx[0]", "nic_rx[8]"]


@pytest.mark.parametrize("up", ["nvswitch", "mesh", "pcie", "shared_memory"])
def test_only_fast_fabrics_hand_over_to_another_rail(up: str) -> None:
    """Without NVLink or xGMI a message to another rail leaves by its own NIC and crosses the spine."""
    cluster = small(2, up=up)
    if up in ("nvswitch", "mesh"):
        assert path(cluster, 0, 5) == ["port_tx[0]", "port_rx[1]", "nic_tx[1]", "nic_rx[5]"]
    else:
        assert path(cluster, 0, 5) == ["nic_tx[0]", "nic_rx[5]", "leaf_up[0]", "leaf_down[1]"]
    assert path(cluster, 0, 4) == ["nic_tx[0]", "nic_rx[4]"]


def test_pcie_box() -> None:
    """Devices on PCIe reach each other by their own lanes, and the world by the node's few NICs."""
    cluster = load_cluster("a100-pcie-8", 2)
    assert path(cluster, 0, 7) == ["port_tx[0]", "port_rx[7]"]
    assert path(cluster, 0, 15) == ["nic_tx[0]", "nic_rx[3]"]
    capacity = cluster.link_capacity_bytes_per_s
    assert capacity[cluster.port_tx(np.array([0]))] == capacity[cluster.pcie_tx(np.array([0]))]


def test_without_rails_a_pod_has_one_leaf() -> None:
    """All NICs of a pod hang on one switch: other rails are as near as the own one, other pods behind the spine."""
    cluster = small(4, rails=False)
    assert path(cluster, 0, 5) == ["nic_tx[0]", "nic_rx[5]"]
    assert path(cluster, 0, 9) == ["nic_tx[0]", "nic_rx[9]", "leaf_up[0]", "leaf_down[1]"]
    assert small(2, rails=False).num_leaves == 0
    assert small(9, nodes_per_leaf=None).num_leaves == 0


def test_leaves_join_pods() -> None:
    """Beyond one leaf's nodes a message climbs to the spine; oversubscription divides the uplinks."""
    cluster = load_cluster("meta-llama3-h100", 400)
    assert path(cluster, 3, 384 * 8 + 3) == ["nic_tx[3]", "nic_rx[3075]", "leaf_up[3]", "leaf_down[11]"]
    uplink = cluster.link_capacity_bytes_per_s[cluster.leaf_up(np.array([0]))][0]
    assert uplink == pytest.approx(384 * 50 * GB / 7)


@given(st.integers(1, 5), st.sampled_from([1, 2, 4, 8]), st.integers(1, 8), st.booleans(), st.integers(1, 3))
def test_routes_cross_what_they_should(nodes: int, per_node: int, nics: int, rails: bool, leaf: int) -> None:
    """Any pair: as many ports out as in, one NIC each way iff between nodes, up iff down, the end's own links."""
    cluster = small(nodes, per_node=per_node, nics=nics, rails=rails, nodes_per_leaf=leaf)
    ranks = np.arange(cluster.world_size)
    src, dst = (pair.ravel() for pair in np.meshgrid(ranks, ranks))
    message, links = cluster.route(src, dst)
    starts = np.array([cluster._blocks[block][0] for block in BLOCKS])
    block = np.searchsorted(starts, links, side="right") - 1
    counts = {name: np.bincount(message[block == i], minlength=len(src)) for i, name in enumerate(BLOCKS)}
    far = cluster.node_of(src) != cluster.node_of(dst)
    assert (counts["port_tx"] == counts["port_rx"]).all()
    assert (counts["nic_tx"] == far).all()
    assert (counts["nic_rx"] == far).all()
    assert (counts["leaf_up"] == counts["leaf_down"]).all()
    assert (counts["leaf_up"] <= far).all()
    arrives = links[block == BLOCKS.index("nic_rx")]
    assert (np.sort(arrives) == np.sort(cluster.nic_rx(dst[far]))).all()


def test_names_of_links_are_their_patterns() -> None:
    """A link's name degrades exactly that link."""
    cluster = load_cluster("dgx-h100", 2)
    for link in range(0, cluster.num_links, 7):
        changed = cluster.with_degraded({cluster.link_name(link): 0.5})
        ratio = changed.link_capacity_bytes_per_s / cluster.link_capacity_bytes_per_s
        assert np.flatnonzero(ratio != 1).tolist() == [link]


def test_node_pattern_degrades_its_rails() -> None:
    """``node:1`` slows the NICs of node 1, both ways; a block's name slows all of it."""
    cluster = load_cluster("dgx-h100", 4).with_degraded({"node:1": 0.5, "port_rx": 0.25})
    slowed = cluster.link_capacity_bytes_per_s[cluster.nic_tx(np.arange(32))] < 50 * GB
    assert np.flatnonzero(slowed).tolist() == list(range(8, 16))
    assert set(cluster.link_capacity_bytes_per_s[cluster.port_rx(np.arange(32))]) == {112.5 * GB}


@pytest.mark.parametrize(
    "pattern", ["nic_tx[999]", "wire[0]", "node:9", "nic_tx[-1]", "leaf_up[0]", "", "node:", f"nic_tx[{'9' * 5000}]"]
)
def test_unknown_links_are_refused(pattern: str) -> None:
    """A pattern that names no link is one clear line."""
    with pytest.raises(UserError, match="degraded link"):
        load_cluster("dgx-h100", 2).with_degraded({pattern: 0.5})


@pytest.mark.parametrize("factor", [0, -1, 1.1, float("nan"), float("inf")])
def test_factors_are_shares(factor: float) -> None:
    """A degraded link keeps a share of its capacity: more than nothing, at most all."""
    with pytest.raises(UserError, match="greater than 0, at most 1"):
        load_cluster("dgx-h100", 2).with_degraded({"nic_tx[0]": factor})


@given(st.text("node:ictx_lafup[]0123456789-", max_size=12) | st.text(max_size=8))
def test_any_pattern_is_links_or_a_user_error(pattern: str) -> None:
    """Whatever a pattern holds, it names links or is refused."""
    try:
        assert small(4).with_degraded({pattern: 0.5}).link_capacity_bytes_per_s.min() > 0
    except UserError as error:
        assert "degraded link" in str(error)


@pytest.mark.parametrize("shift", some([1, 8, 9, 4096], [1, 9]))
def test_one_hundred_thousand_routes_are_arithmetic(shift: int) -> None:
    """Routes of 131,072 messages take as many calls as those of 8,192, because nothing is searched."""

    def calls(num_nodes: int) -> int:
        cluster = load_cluster("dgx-h100", num_nodes)
        ranks = np.arange(cluster.world_size)
        made = []
        sys.setprofile(lambda _frame, event, _value: made.append(event))
        try:
            message, _ = cluster.route(ranks, (ranks + shift) % cluster.world_size)
        finally:
            sys.setprofile(None)
        assert len(np.unique(message)) == cluster.world_size
        return len(made)

    calls(1024)  # methods of dataclasses are made when they are first used
    assert calls(16384) == calls(1024)


@pytest.mark.parametrize("name", ["dgx-a100-80gb", "a100-pcie-8", "mi300x-8", "tpu-v5e-pod", "aws-p4d"])
def test_view_as_a_graph(name: str) -> None:
    """The networkx view joins all devices, and every edge has a capacity."""
    import networkx as nx

    cluster = load_cluster(name, 2)
    graph = cluster.to_networkx()
    assert nx.is_strongly_connected(graph)
    assert {f"gpu{rank}" for rank in range(cluster.world_size)} <= set(graph)
    assert all(capacity > 0 for _, _, capacity in graph.edges(data="capacity"))


def test_view_shows_leaves_and_spine() -> None:
    """Leaves hang on the spine with their uplinks; a mesh has an edge per pair of devices."""
    graph = small(4, up="mesh", oversubscription=2.0).to_networkx()
    assert graph["leaf0"]["spine"]["capacity"] == 10 * GB
    assert graph["gpu0"]["gpu3"]["capacity"] == pytest.approx(100 * GB / 3)
    assert not graph.has_edge("gpu0", "gpu4")
    assert load_cluster("laptop-cpu-4").to_networkx().number_of_nodes() == 5


@pytest.mark.parametrize("nics", [1, 2, 3, 4])
@pytest.mark.parametrize("rails", [True, False])
def test_every_link_knows_its_lowest_rank(nics: int, rails: bool) -> None:
    """Blocks, owners and capacities of links agree with the links of ranks, also where NICs are shared unevenly."""
    cluster = small(5, nics=nics, rails=rails, groups={"nodes": 4}).with_degraded({"nic_tx[0]": 0.5})
    ranks = np.arange(cluster.world_size)
    for index, block in enumerate(cluster.blocks):
        links, first = np.unique(cluster.link_of(block, ranks), return_index=True)
        assert cluster.owner_of(links).tolist() == ranks[first].tolist()
        assert (cluster.block_of(links) == index).all()
        assert (cluster.capacity_of(links) == cluster.link_capacity_bytes_per_s[links]).all()
        assert (cluster.nominal_capacity(links) >= cluster.capacity_of(links)).all()


def test_the_fabric_repeats_in_blocks() -> None:
    """Ranks that share a NIC, a node, a narrow leaf; devices with places of their own are one rigid block."""
    assert small(4, nics=2, oversubscription=2).periods == (2, 4, 8)
    assert small(4, nics=3, oversubscription=2).periods == (4, 8)
    assert small(4, nics=2).periods == (2, 4)
    assert (small(4, nics=2).rigid_ranks, small(4, nics=3).rigid_ranks) == (1, 4)
    assert small(4, nodes_per_leaf=None).periods == (1, 4)


def test_a_link_beyond_integers_is_one_line(tmp_path):
    """A capacity that engines cannot count names file, field and what is allowed."""
    text = bundled("clusters")["hgx-h100"].read_text().replace("bandwidth: 450 GB/s", "bandwidth: 1000000 GB/s")
    path = tmp_path / "fast.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"fast.yaml:\d+: scale_up.bandwidth = .*allowed: up to 500,000 GB/s"):
        load_cluster(path)


def test_uplinks_that_bind_are_counted_in_integers_and_others_need_not_be():
    """2,048 nodes of 8 x 50 GB/s under one leaf: 819 TB/s that no route feels, or 410 TB/s once oversubscribed."""
    profile = load_cluster("dgx-h100").profile
    out = profile.scale_out.model_copy(update={"rails": False, "nodes_per_leaf": 2048})
    load_cluster(profile.model_copy(update={"scale_out": out}), 4096)
    load_cluster(profile.model_copy(update={"scale_out": out.model_copy(update={"oversubscription": 2.0})}), 4096)
    degraded = load_cluster(profile.model_copy(update={"scale_out": out}), 4096)
    with pytest.raises(UserError, match=r"link leaf_up\[0\] of 819,200 GB/s"):
        degraded.with_degraded({"leaf_up[0]": 0.5})
