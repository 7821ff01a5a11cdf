"""What Slurm knows: nodes with their GPUs and memory, the tree of switches, lists of hosts."""

import pytest

from simpar.errors import UserError
from simpar.hardware.machine.slurm import devices_called, hosts_of, is_tree, read_nodes, read_tree
from tests.hardware.machine.samples import node

TREE = """# two leaves
switchname=s1 nodes=n[01-16]
SwitchName=s2 Nodes=n[17-32] LinkSpeed=1
SwitchName=top Switches=s[1-2]
"""


def test_nodes_with_gpus_count_and_the_rest_is_listed():
    """Devices, the least memory, names; a login node and those that are down are said."""
    text = node("n1") + node("n2", memory=2050000, state="IDLE+DRAIN") + node("login", "(null)", 64000)
    found = read_nodes(text, "nodes.txt")
    assert {key: fact.value for key, fact in found.facts.items()} == {
        "devices_per_node": 8,
        "host.memory_bytes": "2050000 MiB",
    }
    assert found.devices == ("h200-sxm",)
    assert found.nodes == {"n1", "n2"}
    said = "\n".join(found.unread)
    assert "1 nodes without GPUs" in said
    assert "1 of 2 nodes are down" in said
    assert "2050000 MiB and 2060000 MiB" in said


def test_several_kinds_of_nodes_need_a_partition():
    """Each kind is a profile of its own; an unknown partition is named with those that are."""
    text = node("n1") + node("old1", "gpu:a100:4", partitions="old")
    with pytest.raises(UserError, match="1 nodes with 8 x h200, 1 nodes with 4 x a100"):
        read_nodes(text, "x")
    assert read_nodes(text, "x", "old").facts["devices_per_node"].value == 4
    with pytest.raises(UserError, match="allowed: all, old, train"):
        read_nodes(text, "x", "new")


@pytest.mark.parametrize(
    ("gres", "count"),
    [("gpu:8", 8), ("gpu", 1), ("gpu:nvidia_h100_80gb_hbm3:4(S:0,1)", 4), ("craynetwork:2,gpu:h100:2", 2)],
)
def test_gres_as_slurm_writes_it(gres, count):
    """With and without a type, sockets with commas, other resources beside."""
    assert read_nodes(node("n1", gres), "x").facts["devices_per_node"].value == count


def test_parts_of_gpus_are_no_gpus():
    """A node that is cut by MIG is left out and said; where there is no other, that is an error."""
    cut = node("n1", "gpu:nvidia_a100_3g.39gb:2(S:0)")
    assert any("2 parts of GPUs" in line for line in read_nodes(cut + node("n2"), "x").unread)
    with pytest.raises(UserError, match="no node with GPUs"):
        read_nodes(cut, "x")


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("nvidia_h100_80gb_hbm3", {"h100-sxm-80gb", "h100-pcie"}), ("a100-sxm4-40gb", {"a100-sxm-40gb"}),
        ("h100-pcie", {"h100-pcie"}), ("nvidia_b200", {"b200-sxm", "b200-sxm-limited", "b200-sxm-throttled"}),
        ("rtx_4090", {"rtx-4090"}), ("tesla", set()),
    ],
)  # fmt: skip
def test_types_of_gres_and_shipped_devices(name, device):
    """All that a name may mean; size and form rule out what they contradict."""
    assert set(devices_called(name)) == device


def test_the_tree_says_how_many_nodes_a_leaf_has():
    """Of the nodes with GPUs alone where they are known; what joins leaves is left open."""
    found = read_tree(TREE, "topology.conf")
    assert found.facts["scale_out.nodes_per_leaf"].value == 16
    assert len(found.nodes) == 32
    assert any("oversubscription" in line for line in found.unread)
    known = frozenset({"n01", "n02", "n17"})
    found = read_tree(TREE, "topology.conf", known)
    assert found.facts["scale_out.nodes_per_leaf"].value == 2
    assert found.nodes == known
    assert any("leaf switches differ (1 with 1, 1 with 2)" in line for line in found.unread)
    assert any(line.startswith("29 of 32 nodes below leaf switches are not among") for line in found.unread)


def test_a_tree_as_scontrol_shows_it():
    """Switches above the leaves name nodes, too, and blocks their place; lines of a file may go on in the next."""
    shown = (
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-8]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[9-16]\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-16] Switches=s[0-1]\n"
    )
    assert read_tree(shown, "x").facts["scale_out.nodes_per_leaf"].value == 8
    split = "SwitchName=s0 \\\n  Nodes=n[1-4]\nSwitchName=s1 Nodes=n[5-8]\nSwitchName=top \\\n Switches=s[0-1]"
    assert read_tree(split, "x").facts["scale_out.nodes_per_leaf"].value == 4
    with pytest.raises(UserError, match="x:2: node is not a parameter"):
        read_tree("SwitchName=s0 Nodes=n1\nSwitchName=s1 \\\n Node=n2\n", "x")
    blocks = (
        "BlockName=b1 BlockIndex=0 Nodes=n[1-18] BlockSize=18\nBlockName=b2 BlockIndex=1 Nodes=n[19-36] BlockSize=18\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-36] BlockSize=36\n"
    )
    assert any("blocks of 18 nodes" in line for line in read_tree(blocks, "x").unread)


def test_blocks_are_said_and_not_taken_for_racks():
    """A block is a domain only where NVLink joins it."""
    found = read_tree("BlockName=b1 Nodes=t[01-18]\nBlockName=b2 Nodes=t[19-36]\nBlockSizes=18,36\n", "x")
    assert not found.facts
    assert any("blocks of 18 nodes" in line for line in found.unread)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SwitchName=s1 Nodes=n[3-1]", r"x:1: \[3-1\] is not a range"),
        ("SwitchName=s1 Nodes=n[1", "is not a list of hosts"),
        ("SwitchName=s1 Nodes=n[1-999999999]", "is not a range of hosts"),
        ("SwitchName=s1 Nodes=n[1-999]m[1-999]", "more than 200,000 hosts"),
        ("SwitchName=s1 Node=n1", "node is not a parameter"),
        ("SwitchName=s1", "wants SwitchName or BlockName"),
    ],
)
def test_trees_that_are_not_understood_are_refused(text, words):
    """At their line."""
    with pytest.raises(UserError, match=words):
        read_tree(text, "x")


def test_lists_of_hosts():
    """Ranges as wide as they are written, several in a name."""
    assert list(hosts_of("n[08-10],login,r[1-2]c[3,5]", "x")) == [
        "n08", "n09", "n10", "login", "r1c3", "r1c5", "r2c3", "r2c5",
    ]  # fmt: skip


YAML_TREE = """
---
- topology: old
  cluster_default: false
  flat: true
- topology: main
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf[1-2]
      - switch: leaf1
        nodes: n[01-04]
      - switch: leaf2
        nodes: n[05-06]
"""


def test_topology_yaml():
    """The tree of the default topology, as topology.conf tells it; blocks and flat ones."""
    assert is_tree(YAML_TREE)
    result = read_tree(YAML_TREE, "topology.yaml")
    assert (result.kind, result.facts["scale_out.nodes_per_leaf"].value, len(result.nodes)) == ("topology.yaml", 4, 6)
    assert any("1 topologies beside main" in line for line in result.unread)
    blocks = "- topology: b\n  block:\n    block_sizes: [4]\n    blocks:\n      - block: b1\n        nodes: n[1-18]\n"
    assert any("blocks of 18 nodes" in line for line in read_tree(blocks, "x").unread)
    assert any("names no switches" in line for line in read_tree("- topology: f\n  flat: true\n", "x").unread)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- topology: a\n  tree: 5\n", "x: topology a: tree.switches: wants a list"),
        ("- topology: a\n  tree:\n    switches:\n      - switch: s\n", "switch s wants nodes or children"),
        ("- topology: a\n  tree: [\n", "x:3: not valid YAML"),
        (YAML_TREE.replace("n[05-06]", "n[05-"), "is not a list of hosts"),
    ],
)
def test_damaged_topology_yaml(text, words):
    """One line with the place."""
    with pytest.raises(UserError, match=words):
        read_tree(text, "x")


@pytest.mark.parametrize(
    ("gres", "message"), [("gpu:h100:99999999999", "99999999999 GPUs of a node"), ("gpu:h100:0", "no node with GPUs")]
)
def test_numbers_of_gpus_that_no_node_has(gres, message):
    """They were written into a profile."""
    with pytest.raises(UserError, match=message):
        read_nodes(node("n1", gres=gres), "nodes.txt")
