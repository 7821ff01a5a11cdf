"""Direct messages: routes, channels, and what an all-to-all puts where."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective, collective_time_s, offers
from simpar.cost.collectives.placement import regular_shape
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster
from simpar.units import GB, US

from .conftest import make_toy


def loads(cluster: Cluster, group: np.ndarray, op: str = "all_to_all") -> dict[str, float]:
    """Coefficient by link name."""
    edges = collective(op, group[None, :], cluster, size_bytes=1e9).edges
    return {cluster.link_name(k): float(c) for k, c in zip(edges.link_id.tolist(), edges.coefficient, strict=True)}


def test_send_takes_the_route() -> None:
    """Inside a node a message crosses two ports, between nodes two NICs (and leaves where they differ)."""
    toy = make_toy(4, out={"nodes_per_leaf": 2})
    assert loads(toy, np.array([0, 1]), "send") == {"port_tx[0]": 1.0, "port_rx[1]": 1.0}
    assert loads(toy, np.array([0, 8]), "send") == {"nic_tx[0]": 1.0, "nic_rx[8]": 1.0}
    assert set(loads(toy, np.array([0, 16]), "send")) == {"nic_tx[0]", "nic_rx[16]", "leaf_up[0]", "leaf_down[8]"}


@pytest.mark.parametrize(("channels", "rate"), [(1, 14), (2, 28), (4, 50)])
def test_channels_bound_a_message_between_nodes(channels: int, rate: float) -> None:
    """A message moves at 14 GB/s a channel, until the NIC of 50 GB/s binds."""
    toy = make_toy(
        2, out={"nic_bandwidth": 50.0 * GB}, p2p_channels=float(channels), p2p_channel_gb_per_s=14.0, send_us=5.0
    )
    cost = collective("send", np.array([[0, 8]]), toy, size_bytes=1e9)
    assert cost.solo_time_s(1e9, toy) - cost.latency_s == pytest.approx(1 / rate)
    assert cost.latency_s == pytest.approx(5 * US)
    assert cost.rate_cap_bytes_per_s == channels * 14.0 * GB


def test_a_message_inside_a_node_has_no_channel_bound() -> None:
    """Inside a node only the ports bind."""
    cost = collective("send", np.array([[0, 1]]), make_toy(1, p2p_channel_gb_per_s=1.0), size_bytes=1e9)
    assert cost.rate_cap_bytes_per_s is None


def test_send_needs_a_pair() -> None:
    """A send with three members is a mistake."""
    with pytest.raises(UserError, match="a source and a destination, this group has 3"):
        collective("send", np.arange(3)[None, :], make_toy(1), size_bytes=1.0, algorithm="direct")
    with pytest.raises(UserError, match="a source and a destination"):
        collective("send", np.arange(3)[None, :], make_toy(1), size_bytes=1.0)


def test_exchange_leaves_the_node_with_its_far_share() -> None:
    """NICs carry (N-g)/N of S, ports the near share and what is forwarded to other rails."""
    toy = make_toy(4)
    found = loads(toy, np.arange(32))
    assert found["nic_tx[5]"] == found["nic_rx[0]"] == pytest.approx(24 / 32)
    assert found["port_tx[5]"] == pytest.approx(7 / 32 + 24 / 32 * 7 / 8)


def test_exchange_on_one_rail_forwards_nothing() -> None:
    """Members of one rail send straight: no port is used."""
    found = loads(make_toy(4), np.arange(3, 32, 8))
    assert found == {f"nic_{way}[{r}]": pytest.approx(3 / 4) for way in ("tx", "rx") for r in (3, 11, 19, 27)}


def test_exchange_without_rails_forwards_nothing() -> None:
    """Where NICs do not hang on rails a message leaves by its sender's own NIC."""
    found = loads(make_toy(4, out={"rails": False}), np.arange(32))
    assert found["port_tx[5]"] == pytest.approx(7 / 32)


def test_exchange_equals_its_messages() -> None:
    """Loads counted by domain and rail equal the sum over all pairs of routed messages."""
    toy = make_toy(4, out={"nodes_per_leaf": 2})
    ranks = np.arange(32)
    src, dst = (pair.ravel() for pair in np.meshgrid(ranks, ranks, indexing="ij"))
    apart = src != dst
    _, link = toy.route(src[apart], dst[apart])
    expected = np.bincount(link, minlength=toy.num_links) / 32
    edges = collective("all_to_all", ranks[None, :], toy, size_bytes=1e9).edges
    np.testing.assert_allclose(edges.coefficient, expected[edges.link_id])
    assert set(edges.link_id.tolist()) == set(np.flatnonzero(expected).tolist())


def test_channels_bound_an_exchange_of_few() -> None:
    """Two members in two nodes exchange over one connection: 28 GB/s although the NIC has 50."""
    toy = make_toy(2, out={"nic_bandwidth": 50.0 * GB}, p2p_channel_gb_per_s=14.0, p2p_channels=2.0)
    seconds = float(collective_time_s("all_to_all", 1e9, regular_shape(2, 1), toy))
    assert 1e9 / 2 / seconds == pytest.approx(28 * GB)


def test_torus_paths_have_several_links() -> None:
    """On a 4 x 4 torus a device is 2.13 links from another on average, so ports carry as much more."""
    torus = make_toy(1, 16, up={"kind": "torus", "dims": (4, 4)}, out=None)
    found = loads(torus, np.arange(16))
    assert found["port_tx[0]"] == pytest.approx(15 / 16 * 32 / 15)


def test_peers_cost_latency() -> None:
    """Every peer of an all-to-all costs its connection, far peers more than near ones."""
    toy = make_toy(2, near_peer_us=1.0, peer_us=3.0)
    assert float(collective_time_s("all_to_all", 0.0, regular_shape(2, 8), toy)) == pytest.approx((7 + 24) * US)


def test_exchange_over_pcie_forwards_nothing() -> None:
    """Devices behind PCIe hand nothing over (PXN needs NVLink), so other rails are reached through the spine."""
    out = {"nodes_per_leaf": 2}
    pcie, nvlink = (loads(make_toy(4, up={"kind": kind}, out=out), np.arange(32)) for kind in ("pcie", "nvswitch"))
    assert pcie["port_tx[5]"] == pytest.approx(7 / 32)
    assert nvlink["port_tx[5]"] == pytest.approx(7 / 32 + 24 / 32 * 7 / 8)
    assert pcie["nic_tx[5]"] == nvlink["nic_tx[5]"] == pytest.approx(24 / 32)
    assert pcie["leaf_up[0]"] == pytest.approx(2 * 23 / 32)
    assert nvlink["leaf_up[0]"] == pytest.approx(2 * 16 / 32)


def test_exchange_over_pcie_equals_its_messages() -> None:
    """Loads counted by domain and rail equal the sum over routed messages where nobody hands over."""
    toy = make_toy(4, up={"kind": "pcie"}, out={"nodes_per_leaf": 2})
    ranks = np.arange(32)
    src, dst = (pair.ravel() for pair in np.meshgrid(ranks, ranks, indexing="ij"))
    _, link = toy.route(src[src != dst], dst[src != dst])
    expected = np.bincount(link, minlength=toy.num_links) / 32
    edges = collective("all_to_all", ranks[None, :], toy, size_bytes=1e9).edges
    np.testing.assert_allclose(edges.coefficient, expected[edges.link_id])


def test_sockets_bound_what_a_card_moves_and_add_their_latency() -> None:
    """4 ranks a node, a card of 10 GB/s, threads of 2 GB/s, 30 us: by hand for a message, a ring and an exchange."""
    tcp = {"out": {"kind": "ethernet", "nics_per_node": 1, "latency": 30 * US}}
    toy = make_toy(2, 4, **tcp, socket_gb_per_s=4.0, socket_threads=0.5)
    size = 8.0 * GB
    send = float(collective_time_s("send", size, (2, 1), toy))
    assert send == pytest.approx(30 * US + size / (2 * GB))
    # a ring of 8 ranks: 7/8 of the tensor leaves a node, by one rank; one of its steps crosses
    gather = float(collective_time_s("all_gather", size, (2, 4), toy))
    assert gather == pytest.approx(30 * US + 7 / 8 * size / (2 * GB))
    # all 4 ranks send half of theirs at 2 GB/s each: 8 GB/s of the card's 10
    exchange = float(collective_time_s("all_to_all", size, (2, 4), toy))
    assert exchange == pytest.approx(30 * US + size / 2 / (2 * GB))
    faster = make_toy(2, 4, **tcp, socket_gb_per_s=4.0, socket_threads=4.0)  # now the card binds
    assert float(collective_time_s("all_gather", size, (2, 4), faster)) == pytest.approx(
        30 * US + 7 / 8 * size / (10 * GB)
    )
    rdma = make_toy(2, 4, out={"kind": "roce", "nics_per_node": 1, "latency": 30 * US})
    assert float(collective_time_s("send", size, (2, 1), rdma)) == pytest.approx(size / (10 * GB))


def test_flags_of_a_protocol_pass_the_threads_of_sockets_too() -> None:
    """Half of what LL sends are flags: where a thread binds, and no link, LL still moves half of Simple.

    So it is chosen for small messages alone, and no card is loaded four times for nothing. A card of 80 GB/s carries LL
    at 20; a thread moves 2 GB/s.
    """
    out = {"kind": "ethernet", "nics_per_node": 1, "nic_bandwidth": 80 * GB, "latency": 30 * US}
    values = {"socket_gb_per_s": 4.0, "socket_threads": 0.5, "ll_efficiency": 0.25, "ll_hop_factor": 0.25}
    toy = make_toy(2, 4, out=out, **values, tree_hop_us=20.0)
    every_line = {line.protocol: line for line in offers("send", np.array([0, 4]), toy)}
    assert every_line["simple"].seconds_per_byte == pytest.approx(1 / (2 * GB))
    assert every_line["ll"].seconds_per_byte == pytest.approx(1 / (1 * GB))
    # LL saves 15 us of hops, and loses half a nanosecond a byte
    sizes = [share * 15 * US * 2 * GB for share in (0.9, 1.1, 1e3)]
    chosen = [collective("send", np.array([[0, 4]]), toy, size_bytes=size).protocol for size in sizes]
    assert chosen == ["ll", "simple", "simple"]
