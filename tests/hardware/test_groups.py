"""Three levels of switches, dragonflies and rails that nothing joins: routes by distance, capacities, closed forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import simpar
from simpar.cost.collectives.choice import collective
from simpar.errors import UserError
from simpar.files import bundled
from simpar.hardware.catalogue import load_cluster, make_mixed
from simpar.hardware.cluster import Cluster
from simpar.hardware.levels import Level
from simpar.hardware.profile import MixedProfile
from simpar.units import GB
from tests.cost.collectives.conftest import make_toy
from tests.hardware.test_cluster import path, small

NIC = 10 * GB
TREE = {"nodes": 4, "oversubscription": 3.0}
DRAGONFLY = {"nodes": 4, "kind": "dragonfly"}


def rate_bytes_per_s(cluster: Cluster, op: str, group: np.ndarray) -> float:
    """The size of an operation over the time that its busiest link needs, without what latencies and NICs take."""
    edges = collective(op, group[None, :], cluster, size_bytes=1e9, algorithm="direct").edges
    above = [cluster.blocks.index(name) for name in ("leaf_up", "leaf_down", "group_up", "group_down")]
    chosen = np.isin(cluster.block_of(edges.link_id), above)
    return float(1 / (edges.coefficient[chosen] / cluster.capacity_of(edges.link_id[chosen])).max())


def test_a_message_climbs_as_far_as_it_must() -> None:
    """In a tree of three levels: a port, a NIC, a leaf, a group, by distance; on a rail all the way."""
    tree = small(12, groups=TREE)
    assert path(tree, 0, 1) == ["port_tx[0]", "port_rx[1]"]
    assert path(tree, 0, 4) == ["nic_tx[0]", "nic_rx[4]"]
    assert path(tree, 0, 8) == ["nic_tx[0]", "nic_rx[8]", "leaf_up[0]", "leaf_down[4]"]
    climb = ["nic_tx[0]", "nic_rx[32]", "leaf_up[0]", "leaf_down[16]", "group_up[0]", "group_down[8]"]
    assert path(tree, 0, 32) == climb
    assert path(small(4, groups=TREE), 0, 12) == ["nic_tx[0]", "nic_rx[12]", "leaf_up[0]", "leaf_down[4]"]


@pytest.mark.parametrize("rails", [True, False])
def test_links_out_of_a_group_carry_its_leaves_over_the_oversubscription(rails: bool) -> None:
    """Of 4 nodes with 4 NICs at 10 GB/s: 160 GB/s, over 2 of the leaves, over 3 of the group."""
    tree, ranks = small(12, groups=TREE, oversubscription=2.0, rails=rails), np.arange(48)
    for block in ("group_up", "group_down"):
        links = np.unique(tree.link_of(block, ranks))
        assert len(links) == tree.num_groups == (12 if rails else 3)
        assert tree.link_capacity_bytes_per_s[links].sum() == pytest.approx(3 * 160 * GB / 2 / 3)
        assert (
            tree.owner_of(links) == np.array([ranks[tree.link_of(block, ranks) == link].min() for link in links])
        ).all()


@pytest.mark.parametrize(("apart", "rate"), [(8, NIC / 2), (16, NIC / 6)])
def test_two_nodes_reach_each_other_by_distance_when_all_do(apart: int, rate: float) -> None:
    """Ranks swap with those so far away: the leaf's uplinks bind within a group, those of the group beyond."""
    tree = small(8, groups=TREE, oversubscription=2.0)
    sources = np.arange(32)
    message, links = tree.route(sources, sources ^ apart)
    load = np.bincount(links, minlength=tree.num_links)
    slowest = (load[links] / tree.capacity_of(links)).max()
    assert 1 / slowest == pytest.approx(rate)
    assert len(np.unique(message)) == 32


@pytest.mark.parametrize(("leaf", "group"), [(1.0, 4.0), (2.0, 1.0), (2.0, 3.0), (8.0, 1.0)])
def test_an_all_to_all_over_levels_takes_the_narrowest(leaf: float, group: float) -> None:
    """S from every member: over leaves of r1 it is NIC N / far / r1, over groups of r2 on top NIC N / far / (r1 r2)."""
    tree = make_toy(
        8, out={"nodes_per_leaf": 2, "oversubscription": leaf, "groups": {"nodes": 4, "oversubscription": group}}
    )
    nic = float(tree.nominal_capacity(tree.nic_tx(np.zeros(1, dtype=np.int64)))[0])
    members = tree.world_size
    beyond_leaf, beyond_group = (members - members // 4) / members, (members - members // 2) / members
    expected = min(nic / leaf / beyond_leaf, nic / leaf / group / beyond_group)
    assert rate_bytes_per_s(tree, "all_to_all", np.arange(members)) == pytest.approx(expected)


def test_an_all_to_all_in_a_tree_equals_its_messages() -> None:
    """Loads counted by group equal the sum over all pairs of routed messages."""
    tree = make_toy(8, out={"nodes_per_leaf": 2, "groups": {"nodes": 4}})
    ranks = np.arange(tree.world_size)
    src, dst = (pair.ravel() for pair in np.meshgrid(ranks, ranks))
    _, links = tree.route(src, dst)
    edges = collective("all_to_all", ranks[None, :], tree, size_bytes=1e9, algorithm="direct").edges
    block = tree.blocks.index("group_up")
    summed = np.bincount(links, minlength=tree.num_links)[edges.link_id] / len(ranks)
    mine = tree.block_of(edges.link_id) == block
    assert mine.any()
    assert edges.coefficient[mine] == pytest.approx(summed[mine])


@pytest.mark.parametrize(("groups", "reached", "links"), [(2, 1, 1.0), (3, 1, 4 / 3), (3, 2, 1.0), (9, 1, 16 / 9)])
def test_detours_of_a_dragonfly(groups: int, reached: int, links: float) -> None:
    """Two groups have one way; of G groups a pair has 1 / (G - 1) straight and shares the rest by halves."""
    level = Level("group_up", "group_down", np.asarray, np.asarray, groups)
    assert level.detour(reached) == pytest.approx(links)


def test_detours_fill_all_links() -> None:
    """What a group sends straight takes one of its links, what makes a detour one of its own and one of a third."""
    for groups in range(2, 12):
        for reached in range(1, groups):
            sent = 1 / float(Level("u", "d", np.asarray, np.asarray, groups).detour(reached))
            straight = reached / (groups - 1)
            assert straight + 2 * (sent - straight) == pytest.approx(1.0)


def test_a_dragonfly_is_as_fast_as_a_tree_for_all_and_slower_for_pairs() -> None:
    """An all-to-all uses every link straight; neighbours use a detour for most of what they send."""
    out = {"nodes_per_leaf": 2, "groups": {"nodes": 2}}
    tree = make_toy(6, out=out)
    fly = make_toy(6, out={**out, "groups": {"nodes": 2, "kind": "dragonfly"}})
    everyone = np.arange(tree.world_size)
    assert rate_bytes_per_s(fly, "all_to_all", everyone) == rate_bytes_per_s(tree, "all_to_all", everyone)
    pair = np.array([0, 2 * 8])
    assert rate_bytes_per_s(tree, "send", pair) / rate_bytes_per_s(fly, "send", pair) == pytest.approx(4 / 3)
    assert fly.leaves_bind
    assert not tree.leaves_bind


def test_rails_that_nothing_joins_are_changed_inside_the_node() -> None:
    """Whatever joins its devices; on NVLink messages take that way in any case."""
    assert path(small(2, up="pcie", rail_only=True), 0, 5) == ["port_tx[0]", "port_rx[1]", "nic_tx[1]", "nic_rx[5]"]
    assert path(small(2, up="pcie"), 0, 5) == ["nic_tx[0]", "nic_rx[5]", "leaf_up[0]", "leaf_down[1]"]
    assert path(small(2, rail_only=True), 0, 5) == path(small(2), 0, 5)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"groups": {"nodes": 3}}, "groups.nodes = 3: allowed: multiples of 2, the nodes of a leaf"),
        ({"groups": TREE, "nodes_per_leaf": None}, "groups.nodes = 4: allowed: with nodes_per_leaf"),
        ({"rail_only": True, "rails": False}, "rail_only = true: allowed: with rails = true"),
        ({"groups": {"nodes": 4, "oversubscription": 0.5}}, "greater than or equal to 1"),
    ],
)
def test_fabrics_that_cannot_be_are_refused(out: dict[str, object], message: str) -> None:
    """What contradicts itself is named with what is allowed."""
    with pytest.raises(ValueError, match=message):
        small(8, **out)


def test_a_group_has_whole_domains_and_one_kind_of_nodes(tmp_path: Path) -> None:
    """A rack of 18 trays in groups of 12, and groups of leaves beside other nodes, are one line each."""
    text = bundled("clusters")["gb200-nvl72"].read_text()
    rack = tmp_path / "rack.yaml"
    rack.write_text(text.replace("nodes_per_leaf: 18", "nodes_per_leaf: 6\n  groups: {nodes: 12}"))
    with pytest.raises(UserError, match=r"scale_out.groups.nodes = 12: allowed: multiples of 18, of a domain"):
        load_cluster(rack)
    ours = tmp_path / "ours.yaml"
    ours.write_text("name: ours\nlike: dgx-h100\nscale_out:\n  groups: {nodes: 64}\n")
    mixed = MixedProfile.model_validate({"name": "m", "groups": [{"hardware": str(ours)}, {"hardware": "hgx-h200"}]})
    with pytest.raises(UserError, match=r"allowed: profiles of one kind of nodes .* no groups of leaves"):
        make_mixed(mixed)


def test_segments_of_racks_are_smaller_domains(tmp_path: Path) -> None:
    """Sixteen of the eighteen trays of a rack: rank 64 is the first of the next one."""
    ours = tmp_path / "ours.yaml"
    ours.write_text("name: ours\nlike: gb200-nvl72\nscale_up:\n  domain: 64\n")
    racks = load_cluster(ours, 32)
    assert path(racks, 0, 63) == ["port_tx[0]", "port_rx[63]"]
    assert path(racks, 0, 64) == ["nic_tx[0]", "nic_rx[64]"]
    assert len(np.unique(racks.domain_of(np.arange(128)))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tree", "dragonfly"])
def test_a_step_is_slower_over_narrower_levels_and_the_same_by_every_engine(tmp_path: Path, kind: str) -> None:
    """Nothing changes where no level binds; a narrow one shows, and engines that share links agree on it."""
    training = {"seq_len": 1024, "global_batch": 32}

    def step_s(groups: str, engine: str = "auto") -> float:
        ours = tmp_path / "ours.yaml"
        ours.write_text(f"name: ours\nlike: dgx-h100\nscale_out:\n  nodes_per_leaf: 1\n{groups}")
        return simpar.simulate("gpt2", simpar.Cluster(str(ours), nodes=4), {}, training, engine=engine).step_time_s

    narrow = f"  groups: {{nodes: 2, oversubscription: 64, kind: {kind}}}\n"
    assert step_s("  groups: {nodes: 2}\n") == step_s("")
    assert step_s(narrow) > 1.2 * step_s("")
    assert step_s(narrow, "event") == pytest.approx(step_s(narrow, "reference"), rel=1e-9)


def test_a_degraded_link_out_of_a_group_is_named_by_its_index() -> None:
    """Its capacity, and that the level then binds."""
    tree = small(8, groups={"nodes": 4}).with_degraded({"group_up[2]": 0.5})
    links = tree.link_of("group_up", np.arange(32))
    assert tree.leaves_bind
    halved = tree.link_capacity_bytes_per_s[links] == 4 * NIC / 2
    assert halved.tolist() == [rank < 16 and rank % 4 == 2 for rank in range(32)]


def test_the_graph_has_spines_and_a_core() -> None:
    """Leaves of a group hang on its spines, with all uplinks of a group towards the core together."""
    graph = small(8, groups=TREE).to_networkx()
    assert graph["leaf0"]["spine0"]["capacity"] == pytest.approx(2 * NIC)
    assert graph["spine1"]["core"]["capacity"] == pytest.approx(160 * GB / 3)
