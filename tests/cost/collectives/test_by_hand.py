"""One number by hand for every algorithm: bytes on links, and hops in sequence, inside a node, across and mixed.

Groups: ``inside``, eight devices of one node; ``across``, one device on each of four nodes; ``mixed``, four devices on
each of two nodes. Bytes are per byte of the collective's size, as its source counts them.
"""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.algorithms import ALGORITHMS
from simpar.cost.collectives.choice import occupied_s_per_byte
from simpar.cost.collectives.lines import Line, lines, list_considered, raw_costs, unit_loads
from simpar.cost.collectives.parameters import parameters
from simpar.cost.collectives.placement import place

from .conftest import make_toy

GROUPS = {
    "inside": list(range(8)), "across": [0, 8, 16, 24], "mixed": [0, 1, 2, 3, 8, 9, 10, 11],
    "near pair": [0, 1], "far pair": [0, 8], "other rail": [0, 9], "three": [0, 1, 2],
}  # fmt: skip
FILL = 3 / 7
"""Of the devices of a node beside one, those that take part in ``mixed``."""
Sums = dict[str, float]


def priced(algorithm: str, op: str, where: str, *, nvls: bool = False) -> tuple[dict[str, list[float]], Sums]:
    """Bytes on the links of each kind that carry any, in the order of ranks; and hops in sequence that occur."""
    cluster = make_toy(4, up={"nvls": nvls}, out={"sharp": True})
    placed = place(np.array([GROUPS[where]]), cluster)
    assert ALGORITHMS[algorithm].refuses(op, placed) is None
    edges = unit_loads(op, placed, ALGORITHMS[algorithm])
    loads: dict[str, list[float]] = {}
    for link, load in zip(edges.link_id.tolist(), edges.coefficient.tolist(), strict=True):
        loads.setdefault(cluster.link_name(link).partition("[")[0], []).append(load)
    hops = ALGORITHMS[algorithm].hops(op, placed.shape)
    return loads, {name: count for name, count in hops.items() if count}


# Of equal members: what each port and each NIC carries, in either direction (0: nothing).
EVEN = [
    # ring, Patarasuk and Yuan: 2 (N - 1) steps of S / N
    ("ring", "all_reduce", "inside", 14 / 8, 0, {"port_hop_us": 14}),
    ("ring", "all_reduce", "across", 0, 6 / 4, {"nic_hop_us": 6}),
    # 12 of the steps inside a node of which 3 of 7 neighbours take part; one of four channels leaves by each NIC
    ("ring", "all_reduce", "mixed", 14 / 8, 14 / 8 / 4, {"far_hop_us": 12 * FILL, "nic_hop_us": 2}),
    ("ring", "all_gather", "inside", 7 / 8, 0, {"port_hop_us": 7}),
    ("ring", "reduce_scatter", "across", 0, 3 / 4, {"nic_hop_us": 3}),
    ("ring", "broadcast", "mixed", 1, 1 / 4, {"far_hop_us": 6 * FILL, "nic_hop_us": 1}),
    # tree: a chain in a node, up and down. Between nodes two trees, each of half: the busiest of four nodes sends to a
    # parent and two children in one, and to a parent in the other
    ("tree", "all_reduce", "inside", 14 / 8, 0, {"port_hop_us": 14}),
    ("tree", "all_reduce", "across", 0, (3 + 1) / 2, {"tree_hop_us": 4}),
    ("tree", "all_reduce", "mixed", 6 / 4, 1 / 4, {"port_hop_us": 6, "tree_hop_us": 2}),
    # halving and doubling, Rabenseifner: S/2 + S/4 + S/8, and back
    ("halving_doubling", "all_reduce", "inside", 14 / 8, 0, {"port_hop_us": 6}),
    ("halving_doubling", "all_reduce", "across", 0, 6 / 4, {"tree_hop_us": 4}),
    # S/2 + S/4 in the node, then S/8 of every member to the other node
    ("halving_doubling", "all_reduce", "mixed", 6 / 4, 2 / 8, {"port_hop_us": 4, "tree_hop_us": 2}),
    ("halving_doubling", "all_gather", "mixed", 3 / 4, 1 / 8, {"port_hop_us": 2, "tree_hop_us": 1}),
    # hierarchical, Jia et al.: reduce-scatter of 4, all-reduce of S/4 between 2, all-gather of 4
    ("hierarchical", "all_reduce", "mixed", 6 / 4, 2 * (1 / 2) / 4, {"port_hop_us": 6, "nic_hop_us": 2}),
    ("hierarchical", "reduce_scatter", "mixed", 3 / 4, (1 / 2) / 4, {"port_hop_us": 3, "nic_hop_us": 1}),
    # NVLS: the share is read reduced, and stored once for all
    ("nvls", "all_reduce", "inside", 1 + 1 / 8, 0, {"nvls_us": 1}),
    ("nvls", "all_reduce", "mixed", 1 + 1 / 4, 1 / 4, {"nvls_us": 1, "tree_hop_us": 2}),
    # SHARP: a node sends S up once and gets it once; the node's own reduction by ring, or by its switch
    ("sharp", "all_reduce", "across", 0, 1, {"sharp_us": 1}),
    ("sharp", "all_reduce", "mixed", 6 / 4, 1 / 4, {"sharp_us": 1, "nvls_us": 1}),
    ("sharp+nvls", "all_reduce", "across", 0, 1, {"sharp_us": 1}),
    ("sharp+nvls", "all_reduce", "mixed", 1 + 1 / 4, 1 / 4, {"sharp_us": 1, "nvls_us": 1}),
    # all-to-all: S/N to each of the others; to a node's other rails by way of a neighbour (3/8 more on a port)
    ("direct", "all_to_all", "inside", 7 / 8, 0, {"port_hop_us": 1, "near_peer_us": 7}),
    ("direct", "all_to_all", "across", 0, 3 / 4, {"tree_hop_us": 1, "peer_us": 3}),
    ("direct", "all_to_all", "mixed", 3 / 8 + 3 / 8, 4 / 8, {"tree_hop_us": 1, "near_peer_us": 3, "peer_us": 4}),
    ("direct", "permute", "inside", 1, 0, {"port_hop_us": 1, "send_us": 1}),
    ("direct", "permute", "across", 0, 1, {"tree_hop_us": 1, "send_us": 1}),
    # Bruck: in each of log2 N rounds half of all blocks
    ("bruck", "all_to_all", "inside", 3 / 2, 0, {"port_hop_us": 3}),
    ("bruck", "all_to_all", "across", 0, 2 / 2, {"tree_hop_us": 2}),
]


@pytest.mark.parametrize(("algorithm", "op", "where", "port", "nic", "hops"), EVEN)
def test_equal_members(algorithm: str, op: str, where: str, port: float, nic: float, hops: Sums) -> None:
    """Every member's port and NIC carry the same, sent and received."""
    name, _, switch = algorithm.partition("+")
    loads, counted = priced(name, op, where, nvls=bool(switch) or name == "nvls")
    members, of_link = len(GROUPS[where]), {"port": port, "nic": nic}
    kinds = {f"{link}_{way}": load for link, load in of_link.items() if load for way in ("tx", "rx")}
    assert loads.keys() == kinds.keys()
    for kind, load in kinds.items():
        assert loads[kind] == pytest.approx([load] * members, rel=1e-11), kind
    assert counted == pytest.approx(hops, rel=1e-12)


# Of unequal members: what each link carries, by rank, of those that carry anything.
UNEVEN = [
    # binomial: 0 sends to 1, 2 and 4, 2 to 3, 4 to 5 and 6, 6 to 7
    ("tree", "broadcast", "inside", {"port_hop_us": 3},
     {"port_tx": [3, 1, 2, 1], "port_rx": [1] * 7}),
    ("tree", "broadcast", "across", {"tree_hop_us": 2}, {"nic_tx": [2, 1], "nic_rx": [1] * 3}),
    # the first node sends S over its four NICs, then 0 to 1 and 2, 2 to 3, and so in the other node
    ("tree", "broadcast", "mixed", {"port_hop_us": 2, "tree_hop_us": 1},
     {"port_tx": [2, 1, 2, 1], "port_rx": [1] * 6, "nic_tx": [1 / 4] * 4, "nic_rx": [1 / 4] * 4}),
    ("tree", "reduce", "inside", {"port_hop_us": 3}, {"port_tx": [1] * 7, "port_rx": [3, 1, 2, 1]}),
    # star: the root sends to all others
    ("star", "broadcast", "inside", {"port_hop_us": 1}, {"port_tx": [7], "port_rx": [1] * 7}),
    ("star", "broadcast", "across", {"tree_hop_us": 1}, {"nic_tx": [3], "nic_rx": [1] * 3}),
    # 3 neighbours, and 3 messages that neighbours send on from the rails of 9, 10 and 11; one by its own NIC
    ("star", "broadcast", "mixed", {"tree_hop_us": 1},
     {"port_tx": [6], "port_rx": [2] * 3, "nic_tx": [1] * 4, "nic_rx": [1] * 4}),
    # 9, 10 and 11 hand their eighths to 8, on the rail of the root, whose NIC sends all four
    ("star", "gather", "mixed", {"tree_hop_us": 1},
     {"port_tx": [1 / 8] * 6, "port_rx": [3 / 8, 3 / 8], "nic_tx": [4 / 8], "nic_rx": [4 / 8]}),
    ("star", "all_reduce", "inside", {"port_hop_us": 2}, {"port_tx": [7] + [1] * 7, "port_rx": [7] + [1] * 7}),
    ("direct", "send", "near pair", {"port_hop_us": 1, "send_us": 1}, {"port_tx": [1], "port_rx": [1]}),
    ("direct", "send", "far pair", {"tree_hop_us": 1, "send_us": 1}, {"nic_tx": [1], "nic_rx": [1]}),
    # handed to the neighbour on the receiver's rail
    ("direct", "send", "other rail", {"tree_hop_us": 1, "send_us": 1},
     {"port_tx": [1], "port_rx": [1], "nic_tx": [1], "nic_rx": [1]}),
    # 3 hands to 0, which sends to 8; 11 hands to 8, which sends to 0
    ("direct", "permute", "mixed", {"tree_hop_us": 1, "send_us": 1},
     {"port_tx": [1] * 8, "port_rx": [1] * 8, "nic_tx": [1, 1], "nic_rx": [1, 1]}),
    # S/2 a round, 1, 2 and 4 places on. To the other node go 3 and 11 (by the NICs of 0 and 8), then 2, 3, 10 and 11
    # (by those of 0, 1, 8 and 9), then all, each by its own; the rest, and what is handed over, is one message a port
    ("bruck", "all_to_all", "mixed", {"tree_hop_us": 3},
     {"port_tx": [1] * 8, "port_rx": [1] * 8, "nic_tx": [1.5, 1, 0.5, 0.5] * 2, "nic_rx": [1.5, 1, 0.5, 0.5] * 2}),
    # of 8 experts a token has 2, here on 2 of the ranks: all copies but one in eight, or in four, leave
    ("dispatch", "dispatch 2 8 1 1", "inside", {"port_hop_us": 1, "near_peer_us": 7},
     {"port_tx": [7 / 8] * 8, "port_rx": [7 / 8] * 8}),
    ("dispatch", "dispatch 2 8 1 1", "across", {"tree_hop_us": 1, "peer_us": 3},
     {"nic_tx": [3 / 4] * 4, "nic_rx": [3 / 4] * 4}),
    # the other node has one of the two with 1 - C(4, 2) / C(8, 2) = 11/14, for 2 copies; there, and here, three of four
    # copies are passed on
    ("dispatch", "dispatch 2 8 1 1", "mixed", {"tree_hop_us": 1, "near_peer_us": 3, "peer_us": 1},
     {"port_tx": [3 / 4] * 8, "port_rx": [3 / 4] * 8, "nic_tx": [11 / 28] * 8, "nic_rx": [11 / 28] * 8}),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "op", "where", "hops", "links"), UNEVEN)
def test_unequal_members(algorithm: str, op: str, where: str, hops: Sums, links: dict[str, list[float]]) -> None:
    """Roots, and devices that pass on what crosses rails, carry more."""
    loads, counted = priced(algorithm, op, where)
    assert loads.keys() == links.keys()
    for kind, expected in links.items():
        assert loads[kind] == pytest.approx(expected, rel=1e-11), kind
    assert counted == hops


@pytest.mark.parametrize(
    ("algorithm", "op", "where"),
    [
        ("halving_doubling", "all_reduce", "three"), ("hierarchical", "all_reduce", "inside"),
        ("hierarchical", "all_reduce", "across"), ("nvls", "all_reduce", "across"), ("sharp", "all_reduce", "inside"),
    ],
)  # fmt: skip
def test_groups_that_an_algorithm_cannot_serve(algorithm: str, op: str, where: str) -> None:
    """No number is missing above: these have no such form."""
    placed = place(np.array([GROUPS[where]]), make_toy(4, up={"nvls": True}, out={"sharp": True}))
    assert ALGORITHMS[algorithm].refuses(op, placed)


def test_every_algorithm_has_its_numbers_everywhere() -> None:
    """Inside, across and mixed, where it can serve such a group."""
    here = {(name.partition("+")[0], where) for name, _, where, *_ in (*EVEN, *UNEVEN)}
    cluster = make_toy(4, up={"nvls": True}, out={"sharp": True})
    for name, algorithm in ALGORITHMS.items():
        for where in ("inside", "across", "mixed"):
            placed = place(np.array([GROUPS[where]]), cluster)
            if any(algorithm.refuses(op, placed) is None for op in algorithm.OPS):
                assert (name, where) in here


def test_rates_of_channels_and_multiprocessors() -> None:
    """Two channels of 14 GB/s a message between nodes, and so for each of 8 that all send; a dispatch in two passes."""
    across, mixed = (place(np.array([GROUPS[where]]), make_toy(4)).shape for where in ("across", "mixed"))
    values = {
        "p2p_channels": 2.0, "p2p_channel_gb_per_s": 14.0, "dispatch_gb_per_s": 400.0, "dispatch_far_gb_per_s": 200.0,
    }  # fmt: skip
    direct, dispatch = ALGORITHMS["direct"], ALGORITHMS["dispatch"]
    assert direct.rate_cap("permute", across, values) == 28e9
    assert direct.rate_cap("all_to_all", mixed, values) == 8 * 28e9
    # 11/7 copies by node for 2 by rank: 1 / (1/400 + (11/14)/200) = 400 x 7/18 GB/s
    cap = dispatch.rate_cap("dispatch 2 8 1 1", mixed, values)
    assert cap == pytest.approx(400e9 * 7 / 18, rel=1e-12)
    inside = place(np.array([GROUPS["inside"]]), make_toy(4)).shape
    assert (
        direct.rate_cap("all_to_all", inside, values) is dispatch.rate_cap("dispatch 2 8 1 1", inside, values) is None
    )


@pytest.mark.parametrize(
    ("op", "where", "automatic"),
    [
        ("all_reduce", "inside", {"ring", "nvls"}), ("all_reduce", "near pair", {"ring"}),
        ("all_reduce", "three", {"ring", "nvls"}), ("all_reduce", "far pair", {"ring", "tree", "sharp"}),
        ("all_reduce", "across", {"ring", "tree", "sharp"}), ("all_reduce", "mixed", {"ring", "tree", "nvls", "sharp"}),
        ("all_gather", "inside", {"ring"}), ("all_gather", "far pair", {"ring", "halving_doubling"}),
        ("reduce_scatter", "across", {"ring", "halving_doubling"}), ("reduce_scatter", "mixed", {"ring"}),
        ("broadcast", "mixed", {"ring"}), ("scatter", "mixed", {"star"}), ("all_to_all", "mixed", {"direct"}),
    ],
)  # fmt: skip
def test_what_the_library_takes_by_itself(op: str, where: str, automatic: set[str]) -> None:
    """Trees and SHARP between nodes, NVLS from three devices of a node on, PAT with one device a node."""
    placed = place(np.array([GROUPS[where]]), make_toy(4, up={"nvls": True}, out={"sharp": True}))
    assert {each.NAME for each in list_considered(op, placed)} == automatic


@pytest.mark.parametrize(
    ("algorithm", "op", "group", "crossing"),
    [
        # the second node sends to the third and the fourth to the first: 2 x 3/4 each
        ("ring", "all_reduce", [0, 8, 16, 24], 1.5),
        # a quarter to each of two nodes under the other leaf, from both nodes of a leaf
        ("direct", "all_to_all", [0, 8, 16, 24], 2 * 2 / 4),
        # two of three copies that leave cross: 2/3 of 3/4, from both
        ("dispatch", "dispatch 2 8 1 1", [0, 8, 16, 24], 2 * 2 / 3 * 3 / 4),
        ("dispatch", "dispatch 2 8 1 1", [0, 16], 1 / 2),
    ],
)
def test_links_of_leaves(algorithm: str, op: str, group: list[int], crossing: float) -> None:
    """Two nodes under each leaf: bytes up from one and down to the other."""
    cluster = make_toy(4, out={"nodes_per_leaf": 2})
    edges = unit_loads(op, place(np.array([group]), cluster), ALGORITHMS[algorithm])
    leaves = np.array(["leaf" in cluster.link_name(link) for link in edges.link_id.tolist()])
    assert leaves.sum() == 4
    np.testing.assert_allclose(edges.coefficient[leaves], crossing, rtol=1e-11)


def test_what_is_lost_of_ports_and_nics() -> None:
    """Shares of 0.8 and 0.9, less pair losses, losses for every doubling beyond two, and losses of gathers alone.

    Inside: 0.8 (1 - 0.2 (2/8)^2) 0.95^2. Mixed: 0.8 (1 - 0.2 (2/4)^2) 0.5 0.95 of a port, and no doubling of nodes;
    across: 0.9 x 0.97, of a gather 0.9 x 0.97 x 0.99. Latency: 20 us, 3 a member, 4 where there are several nodes, and
    hops of 2 us a port or 10 us a network card.
    """
    values = {
        **parameters(make_toy(1)), "port_efficiency": 0.8, "nic_efficiency": 0.9, "pair_loss": 0.2,
        "port_scale_loss": 0.05, "nic_scale_loss": 0.03, "gather_scale_loss": 0.01, "gather_share": 0.7,
        "far_port_share": 0.5, "base_us": 20.0, "member_us": 3.0, "far_member_us": 4.0, "port_hop_us": 2.0,
        "nic_hop_us": 10.0, "ll_hop_factor": 0.5, "ll_efficiency": 0.25,
    }  # fmt: skip

    def ring(op: str, where: str) -> dict[str, Line]:
        (placed,) = raw_costs(op, place(np.array([GROUPS[where]]), make_toy(4)), "ring")
        return {line.protocol: line for line in lines(placed, values)}

    inside, mixed, across = (ring("all_reduce", where) for where in ("inside", "mixed", "across"))
    port = 0.8 * (1 - 0.2 / 16) * 0.95**2
    assert inside["simple"].port_share == pytest.approx(port)
    assert inside["simple"].seconds_per_byte == pytest.approx(14 / 8 / (100e9 * port))
    assert inside["simple"].latency_s == pytest.approx((20 + 8 * 3 + 14 * 2) * 1e-6)
    assert inside["ll"].latency_s == pytest.approx((20 + 8 * 3 + 14 * 2 * 0.5) * 1e-6)
    assert inside["ll"].port_share == pytest.approx(port / 4)
    assert mixed["simple"].port_share == pytest.approx(0.8 * (1 - 0.2 / 4) * 0.5 * 0.95)
    assert mixed["simple"].nic_share == pytest.approx(0.9)
    assert across["simple"].nic_share == pytest.approx(0.9 * 0.97)
    assert across["simple"].latency_s == pytest.approx((20 + 4 * 4 + 6 * 10) * 1e-6)
    assert ring("all_gather", "across")["simple"].nic_share == pytest.approx(0.9 * 0.97 * 0.99)
    assert ring("all_gather", "inside")["simple"].port_share == pytest.approx(0.7 * port)
    # members that are late delay each gibibyte once
    assert inside["simple"].rate_cap_bytes_per_s == pytest.approx(2**30 / (8 * 3e-6))


def test_a_bridge_between_sockets() -> None:
    """Of a PCIe node of eight: f flows reach 0.6 f / (f + 0.5) of a port together.

    A ring of eight crosses with one flow, 0.4. Two rings of every second device share it: 0.6 x 2 / 2.5 / 2 = 0.24. An
    all-to-all of eight has 16 flows, 0.6 x 16 / 16.5, for 16/7 of what a port sends. Four neighbours do not cross.
    """
    toy = make_toy(1, up={"kind": "pcie"})
    values = {**parameters(toy), "host_bridge_share": 0.6, "host_bridge_flows": 0.5}

    def share(op: str, group: list[int], algorithm: str) -> float:
        (placed,) = raw_costs(op, place(np.array([group]), toy), algorithm)
        return {line.protocol: line for line in lines(placed, values)}["simple"].port_share

    assert share("all_reduce", list(range(8)), "ring") == pytest.approx(0.4)
    assert share("all_reduce", [0, 2, 4, 6], "ring") == pytest.approx(0.24)
    assert share("all_to_all", list(range(8)), "direct") == pytest.approx(0.6 * 16 / 16.5 * 7 / 16)
    assert share("all_reduce", [0, 1, 2, 3], "ring") == 1.0


def test_links_of_a_mesh_and_of_a_torus() -> None:
    """Four of eight devices use three of the seven links of a mesh port; eight in a circle are 16/7 links apart."""
    mesh, circle = (make_toy(1, up={"kind": "mesh"}), make_toy(1, up={"kind": "torus", "dims": [8]}))
    (placed,) = raw_costs("all_reduce", place(np.array([[0, 1, 2, 3]]), mesh), "ring")
    assert {line.port_share for line in lines(placed, parameters(mesh))} == {3 / 7}
    edges = unit_loads("all_to_all", place(np.array([GROUPS["inside"]]), circle), ALGORITHMS["direct"])
    # 1 + 2 + 3 + 4 + 3 + 2 + 1 hops of S/8
    assert edges.coefficient.tolist() == pytest.approx([16 / 8] * 16)


def test_a_collective_disturbs_kernels_while_its_bytes_pass_a_port() -> None:
    """An all-reduce passes them twice, a gather once: 1/50 and 1/100 of a nanosecond a byte at 100 GB/s."""
    toy = make_toy(1)
    assert occupied_s_per_byte("all_reduce", toy) == pytest.approx(1 / 50e9)
    assert occupied_s_per_byte("all_gather", toy) == pytest.approx(1 / 100e9)
