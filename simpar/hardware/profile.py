"""Cluster profiles: what a node is made of and how nodes are joined."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simpar.units import Bytes, BytesPerS, Count, Seconds, UsdPerHour, Watts


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScaleUp(_Part):
    """The fabric inside a domain of devices: a switch, PCIe, a mesh, a torus, or shared memory.

    ``bandwidth`` is per device and direction. ``domain`` devices reach each other without a NIC (default: a
    node). ``dims`` are the sides of a torus.
    """

    kind: Literal["nvswitch", "mesh", "pcie", "torus", "shared_memory"]
    bandwidth: BytesPerS
    latency: Seconds
    domain: Count | None = None
    nvls: bool = False
    dims: tuple[Count, ...] = ()


class ScaleOut(_Part):
    """The network between nodes.

    ``nic_bandwidth`` is per NIC and direction. With ``rails`` the i-th NIC of every node hangs on the same leaf;
    ``nodes_per_leaf`` left out means one non-blocking switch. ``oversubscription`` divides a leaf's uplinks.
    """

    kind: Literal["ib", "roce", "efa", "tcpxo", "ethernet"]
    nics_per_node: Count
    nic_bandwidth: BytesPerS
    latency: Seconds
    nodes_per_leaf: Count | None = None
    oversubscription: float = Field(1.0, ge=1, allow_inf_nan=False)
    rails: bool = True
    sharp: bool = False


class Host(_Part):
    """The host side of a node: memory, and the PCIe link of each device."""

    memory_bytes: Bytes
    memory_bandwidth: BytesPerS
    pcie_bandwidth: BytesPerS
    nvme_bandwidth: BytesPerS | None = None
    power: Watts = 0.0


class ClusterProfile(_Part):
    """A kind of cluster; the number of nodes is the user's choice.

    ``collectives`` holds the fitted parameters that :mod:`simpar.cost.collectives` reads.
    """

    name: str
    device: str
    devices_per_node: Count
    scale_up: ScaleUp
    scale_out: ScaleOut | None = None
    host: Host
    price_per_device_hour: UsdPerHour | None = None
    collectives: dict[str, float] = Field(default_factory=dict)
    provenance: str = ""
    sources: tuple[str, ...] = ()
