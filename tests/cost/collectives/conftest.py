"""Toy clusters on which collectives can be priced by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simpar.hardware.cluster import Cluster
from simpar.hardware.profile import ClusterProfile, Host, ScaleOut, ScaleUp
from simpar.units import GB, US

IDEAL = {
    "base_us": 0.0, "port_hop_us": 0.0, "far_hop_us": 0.0, "nic_hop_us": 0.0, "tree_hop_us": 0.0,
    "nvls_us": 0.0, "sharp_us": 0.0, "send_us": 0.0, "near_peer_us": 0.0, "peer_us": 0.0,
    "ll_hop_factor": 1.0, "ll_efficiency": 1.0, "ll128_hop_factor": 1.0, "ll128_efficiency": 1.0,
    "port_efficiency": 1.0,
    "pair_loss": 0.0, "far_port_share": 1.0, "host_bridge_share": 1e9, "host_bridge_flows": 1e-9,
    "nvls_efficiency": 1.0,
    "exchange_efficiency": 1.0, "nic_efficiency": 1.0, "exchange_nic_efficiency": 1.0, "nic_scale_loss": 0.0,
    "send_efficiency": 1.0, "p2p_channel_gb_per_s": 1000.0, "dispatch_gb_per_s": 1e6, "dispatch_far_gb_per_s": 1e6,
}  # fmt: skip

ToyMaker = Callable[..., Cluster]


def make_toy(nodes: int = 4, per_node: int = 8, **changes: Any) -> Cluster:
    """Ports of 100 GB/s, a NIC of 10 GB/s a device, nothing lost and no latency, unless changed.

    ``up`` and ``out`` change fields of the fabrics (``out=None``: no network), the rest are parameters.
    """
    up = {"kind": "nvswitch", "bandwidth": 100.0 * GB, "latency": US, **changes.pop("up", {})}
    network = changes.pop("out", {})
    out = None
    if network is not None:
        fields = {"kind": "ib", "nics_per_node": per_node, "nic_bandwidth": 10.0 * GB, "latency": US, **network}
        out = ScaleOut.model_validate(fields)
    profile = ClusterProfile(
        name="toy",
        device="h100-sxm-80gb",
        devices_per_node=per_node,
        scale_up=ScaleUp.model_validate(up),
        scale_out=out,
        host=Host(memory_bytes=1e12, memory_bandwidth=100.0 * GB, pcie_bandwidth=10.0 * GB),
        collectives={**IDEAL, **changes},
    )
    return Cluster(profile, nodes)


@pytest.fixture
def toy() -> ToyMaker:
    """The builder of toy clusters."""
    return make_toy
