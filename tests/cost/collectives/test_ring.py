"""Ring: volumes, bandwidth and steps in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective, collective_time_s
from simpar.cost.collectives.placement import GroupShape, regular_shape
from simpar.hardware.catalogue import load_cluster
from simpar.program.emission.collective_prices import Prices
from simpar.units import GB, US

from .conftest import make_toy


@pytest.mark.parametrize(
    ("op", "volume"),
    [("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("broadcast", 1), ("reduce", 1)],
)
def test_volume_on_ports(op: str, volume: float) -> None:
    """In one node every port carries 2(N-1)/N, (N-1)/N or 1 byte per byte, each way."""
    cost = collective(op, np.arange(8)[None, :], make_toy(1), size_bytes=1e9, algorithm="ring")
    np.testing.assert_allclose(cost.edges.coefficient, volume, rtol=1e-11)
    assert len(cost.edges.link_id) == 16


def test_bandwidth_is_that_of_the_devices_in_a_node() -> None:
    """Between nodes a group moves at NIC bandwidth times its devices in one node: the g x B rule."""
    toy = make_toy(4)
    for per_node in (1, 2, 4, 8):
        members = 4 * per_node
        seconds = collective_time_s("all_gather", 1e9, regular_shape(4, per_node), toy, algorithm="ring")
        bus = 1e9 * (members - 1) / members / float(seconds)
        assert bus == pytest.approx(min(per_node * 10, 100) * GB)


def test_latency_counts_steps() -> None:
    """An all-reduce takes 2(N-1) steps, of which 2(n-1) cross the network."""
    toy = make_toy(4, port_hop_us=1.0, far_hop_us=2.0, nic_hop_us=10.0)
    one = collective_time_s("all_reduce", 0.0, regular_shape(1, 8), toy, algorithm="ring")
    four = collective_time_s("all_reduce", 0.0, regular_shape(4, 8), toy, algorithm="ring")
    assert float(one) == pytest.approx(14 * US)
    assert float(four) == pytest.approx((2 * 28 * 2 + 2 * 3 * 10) * US)


@pytest.mark.parametrize("size_bytes", [1e3, 1e6, 8 * 2**19, 1e8])
def test_a_chain_is_filled_hop_by_hop(size_bytes: float) -> None:
    """Each of n-1 network hops of a broadcast waits for 512 KiB on every NIC, or for all data where these are less."""
    toy, rate = make_toy(4), 8 * 10 * GB
    fill = 3 * min(size_bytes, 8 * 2**19) / rate
    every = np.arange(32)
    for op in ("broadcast", "reduce"):
        seconds = collective_time_s(op, size_bytes, regular_shape(4, 8), toy, algorithm="ring")
        assert float(seconds) == pytest.approx(size_bytes / rate + fill)
        price = Prices(toy).of(op, every)
        assert int(price.time_ns(size_bytes)) == pytest.approx(1e9 * (size_bytes / rate + fill), abs=2, rel=1e-9)
    inside = collective_time_s("broadcast", size_bytes, regular_shape(1, 8), toy, algorithm="ring")
    assert float(inside) == pytest.approx(size_bytes / (100 * GB))


def test_one_device_a_node_has_no_steps_inside() -> None:
    """A ring with one member a node crosses the network in every step and loads no port."""
    toy = make_toy(4, far_hop_us=5.0, nic_hop_us=10.0)
    assert float(collective_time_s("all_gather", 0.0, regular_shape(4, 1), toy, algorithm="ring")) == pytest.approx(
        30 * US
    )
    cost = collective("all_gather", np.arange(0, 32, 8)[None, :], toy, size_bytes=1e9, algorithm="ring")
    assert {toy.link_name(link).split("[")[0] for link in cost.edges.link_id.tolist()} == {"nic_tx", "nic_rx"}


def test_leaf_links_carry_only_boundaries() -> None:
    """With 2 nodes under a leaf, 4 nodes in a ring cross each leaf once up and once down, per rail."""
    toy = make_toy(4, out={"nodes_per_leaf": 2})
    cost = collective("all_gather", np.arange(32)[None, :], toy, size_bytes=1e9, algorithm="ring")
    leaf = [
        c
        for link, c in zip(cost.edges.link_id.tolist(), cost.edges.coefficient.tolist(), strict=True)
        if toy.link_name(link).startswith("leaf")
    ]
    assert len(leaf) == 2 * 2 * 8
    np.testing.assert_allclose(leaf, 31 / 32 / 8)


def test_shared_nics_add_up() -> None:
    """Two members of a node behind one NIC put twice the bytes on it."""
    alone = make_toy(2)
    shared = make_toy(2, out={"nics_per_node": 4})
    group = np.array([[0, 1, 8, 9]])
    single = collective("all_gather", group, alone, size_bytes=1e9, algorithm="ring").solo_time_s(1e9, alone)
    double = collective("all_gather", group, shared, size_bytes=1e9, algorithm="ring").solo_time_s(1e9, shared)
    assert double == pytest.approx(2 * single)


def test_mesh_uses_the_links_to_its_members() -> None:
    """In a mesh of 8, a pair has one of a port's seven links."""
    mesh = make_toy(1, up={"kind": "mesh"})
    seconds = [float(collective_time_s("all_gather", 1e9, regular_shape(1, n), mesh)) for n in (2, 8)]
    assert seconds[0] == pytest.approx(0.5 / 100 * 7)
    assert seconds[1] == pytest.approx(7 / 8 / 100)


def test_a_mesh_of_one_device_has_no_links_to_lack() -> None:
    """One device a node: whatever joins its devices, groups across nodes run at the speed of the NICs."""
    seconds = [
        float(collective_time_s("all_gather", 1e9, regular_shape(4, 1), make_toy(4, 1, up={"kind": kind})))
        for kind in ("mesh", "nvswitch")
    ]
    assert seconds[0] == seconds[1] == pytest.approx(3 / 4 / 10)


def test_pcie_slows_down_across_sockets() -> None:
    """On PCIe a group on more than half of a node shares the link between sockets."""
    pcie = make_toy(1, up={"kind": "pcie"}, host_bridge_share=0.5)
    half, whole = (float(collective_time_s("all_gather", 1e9, regular_shape(1, n), pcie)) for n in (4, 8))
    assert half == pytest.approx(3 / 4 / 100)
    assert whole == pytest.approx(7 / 8 / 50)


def test_groups_that_cross_sockets_share_the_bridge() -> None:
    """On a PCIe node a group in one half is as fast as its ports; interleaved groups divide what the bridge carries.

    One flow does not fill it, an all-to-all does.
    """
    node = load_cluster("a100-pcie-8", 1)

    def bus(stride: int, members: int, op: str = "all_gather") -> float:
        shape = GroupShape(1, members, members, members, stride=stride)
        return 8 * (members - 1) / members / float(collective_time_s(op, 8e9, shape, node))

    assert bus(1, 8) < 0.7 * bus(1, 4)
    assert bus(2, 4) == pytest.approx(7.3, rel=0.1)  # GB/s, as SimuMax publishes them
    assert bus(4, 2) == pytest.approx(3.95, rel=0.1)
    assert bus(1, 8) == pytest.approx(12.4, rel=0.1)
    assert bus(1, 8, "all_to_all") == pytest.approx(8.26, rel=0.1)
    assert bus(4, 2) < bus(2, 4) < bus(1, 8)
