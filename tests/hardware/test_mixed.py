"""Mixed clusters: groups of nodes with devices and links of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.cost.collectives.choice import collective
from simpar.cost.collectives.parameters import parameters
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster, make_mixed
from simpar.hardware.mixed import MixedCluster
from simpar.hardware.profile import MixedProfile
from simpar.units import GB, MOST_LINK_BYTES_PER_S, US

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")


def mixed(*groups: tuple[str, int], bandwidth: float | None = None, latency: float = 0.0) -> MixedCluster:
    """Groups of (profile, nodes) behind a trunk."""
    named = [{"hardware": name, "nodes": nodes} for name, nodes in groups]
    between = {"bandwidth": bandwidth, "latency": latency}
    return make_mixed(MixedProfile.model_validate({"name": "mix", "groups": named, "between": between}))


def test_ranks_run_through_the_groups() -> None:
    """Devices, nodes, domains and parts follow the groups, uneven nodes included."""
    cluster = mixed(("dgx-a100-80gb", 2), ("gcp-a3-mega", 1))
    ranks = np.arange(cluster.world_size)
    assert cluster.world_size == 24
    assert cluster.part_of(ranks).tolist() == [0] * 16 + [1] * 8
    assert cluster.node_of(ranks).tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert [device.name for device in cluster.devices] == ["a100-sxm-80gb", "h100-sxm-80gb"]
    assert cluster.device_of(ranks).tolist() == [0] * 16 + [1] * 8


def test_uneven_nodes_have_their_own_links() -> None:
    """A node of a 72-device rack beside nodes of eight: every rank has its own port, NICs follow each group's count."""
    cluster = mixed(("dgx-h100", 2), ("gb200-nvl72", 18))
    ranks = np.arange(cluster.world_size)
    assert len(np.unique(cluster.port_tx(ranks))) == cluster.world_size
    first, second = cluster.parts
    assert len(np.unique(cluster.nic_tx(ranks))) == first.nodes * first.rails + second.nodes * second.rails
    assert len(np.unique(cluster.domain_of(ranks))) == 2 + 1
    assert (cluster.owner_of(cluster.nic_tx(ranks)) <= ranks).all()


@given(op=st.sampled_from(OPS), size=st.sampled_from([1e5, 1e7, 1e9]), part=st.integers(0, 1))
@settings(max_examples=30, deadline=None)
def test_inside_a_group_nothing_changes(op: str, size: float, part: int) -> None:
    """Collectives inside a group cost what they cost on a cluster of that group alone."""
    cluster = mixed(("dgx-a100-80gb", 2), ("dgx-h100", 2))
    alone = cluster.parts[part]
    ranks = np.arange(2 if op == "send" else 16)[None, :] * (15 if op == "send" else 1)
    here = collective(op, ranks + cluster.first_rank[part], cluster, size_bytes=size)
    there = collective(op, ranks, alone, size_bytes=size)
    assert here.solo_time_s(size, cluster) == there.solo_time_s(size, alone)
    assert here.algorithm == there.algorithm


@pytest.mark.parametrize("op", OPS)
def test_groups_of_equal_nodes_are_one_cluster(op: str) -> None:
    """Across two groups of the same kind a collective costs what it costs across their nodes in one cluster."""
    cluster, plain = mixed(("dgx-a100-80gb", 1), ("dgx-a100-80gb", 1)), load_cluster("dgx-a100-80gb", 2)
    ranks = np.array([[0, 8]]) if op == "send" else np.arange(16)[None, :]
    for size in (1e6, 1e9):
        here = collective(op, ranks, cluster, size_bytes=size).solo_time_s(size, cluster)
        there = collective(op, ranks, plain, size_bytes=size).solo_time_s(size, plain)
        assert here == pytest.approx(there, rel=1e-9)


def test_the_trunk_binds() -> None:
    """A message between groups cannot be faster than the trunk; inside a group nothing is lost."""
    narrow = mixed(("dgx-a100-80gb", 2), ("dgx-h100", 2), bandwidth=1 * GB)
    size = 1e9
    across = collective("send", np.array([[0, 16]]), narrow, size_bytes=size)
    inside = collective("send", np.array([[0, 8]]), narrow, size_bytes=size)
    assert across.solo_time_s(size, narrow) == pytest.approx(size / (1 * GB), rel=0.2)
    assert across.solo_time_s(size, narrow) > size / (1 * GB)
    assert inside.solo_time_s(size, narrow) < 0.2 * size / (1 * GB)
    both = collective("send", np.array([[0, 16], [1, 17]]), narrow, size_bytes=size)
    trunk = narrow.link_of("trunk_up", np.array([0]))[0]
    assert (both.edges.link_id == trunk).sum() == 2


def test_what_spans_groups_takes_the_slower_parameters() -> None:
    """The longest latencies and smallest shares of the parts, and the trunk's latency on every step between."""
    cluster = mixed(("dgx-a100-80gb", 1), ("dgx-h100", 1), latency=7 * US)
    found, (a, b) = parameters(cluster), [parameters(part) for part in cluster.parts]
    assert found["base_us"] == max(a["base_us"], b["base_us"])
    assert found["port_efficiency"] == min(a["port_efficiency"], b["port_efficiency"])
    assert found["nic_hop_us"] == max(a["nic_hop_us"], b["nic_hop_us"]) + 7


def test_degraded_links_of_a_mixed_cluster() -> None:
    """Links of any group can be degraded by name, nodes by number through the groups."""
    cluster = mixed(("dgx-a100-80gb", 1), ("dgx-h100", 1))
    slow = cluster.with_degraded({"node:1": 0.5, "trunk_up[0]": 0.25})
    change = slow.link_capacity_bytes_per_s / cluster.link_capacity_bytes_per_s
    changed = {slow.link_name(int(link)) for link in np.flatnonzero(change < 1)}
    assert changed == {"trunk_up[0]", *(f"nic_{way}[{8 + n}]" for way in ("tx", "rx") for n in range(8))}
    with pytest.raises(UserError, match=r"nodes 0\.\.1"):
        cluster.with_degraded({"node:2": 0.5})


def test_profiles_in_files_and_their_numbers_of_nodes(tmp_path: Path) -> None:
    """A profile with groups is read like any other; more nodes come in its proportion."""
    text = "name: mix\ngroups:\n- {hardware: dgx-a100-80gb, nodes: 1}\n- {hardware: dgx-h100, nodes: 2}\n"
    (tmp_path / "mix.yaml").write_text(text)
    assert load_cluster(tmp_path / "mix.yaml").world_size == 24
    assert [part.nodes for part in load_cluster(tmp_path / "mix.yaml", 6).parts] == [2, 4]
    with pytest.raises(UserError, match="allowed: multiples of 3"):
        load_cluster(tmp_path / "mix.yaml", 4)
    with pytest.raises(UserError, match="no torus"):
        mixed(("dgx-h100", 1), ("tpu-v4-pod", 1))


def test_a_mixed_cluster_as_a_graph() -> None:
    """The parts' graphs with a trunk between them."""
    graph = mixed(("dgx-a100-80gb", 1), ("dgx-h100", 1), bandwidth=1 * GB).to_networkx()
    assert graph.edges["part0/leaf0", "trunk"]["capacity"] == 1 * GB
    assert "part1/gpu7" in graph


def test_a_trunk_left_out_never_binds_however_many_nodes_there_are() -> None:
    """Uplinks of all NICs together are on no route, unless they are degraded or said to be narrower."""
    cluster = mixed(("dgx-h100", 2048), ("dgx-a100-80gb", 2048))
    trunk = cluster.trunk_up(np.array([0, cluster.world_size - 1]))
    assert (cluster.capacity_of(trunk) > MOST_LINK_BYTES_PER_S).any()
    assert not cluster.can_bind(trunk).any()
    assert cluster.with_degraded({"trunk_up[1]": 0.1}).can_bind(trunk).tolist() == [False, True]
    assert mixed(("dgx-h100", 2), ("dgx-a100-80gb", 2), bandwidth=1e9).can_bind(trunk[:1] * 0 + 95).all()
