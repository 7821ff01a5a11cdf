"""Copies between a device and its host or the host's drives, and updates on the host's processors.

Not collectives, but priced like them: bytes on links that others share. A copy crosses the device's PCIe link, the
link of its PCIe switch and the host's memory; drives read and write through host memory; an update streams its
states through it. So two devices behind a switch, all devices of a node, and copies beside an update contend.
"""

import numpy as np

from simpar.cost.collectives.lines import Line
from simpar.cost.collectives.traffic import Edges, concatenate
from simpar.hardware.cluster import Cluster
from simpar.units import US, Ints

NAME = "copy"
LINKS = {
    "to_host": ("pcie_tx", "switch_up", "host_memory"),
    "to_device": ("pcie_rx", "switch_down", "host_memory"),
    "host_update": ("host_memory",),
    "from_nvme": ("nvme_read", "host_memory"),
    "to_nvme": ("nvme_write", "host_memory"),
}
LATENCY_S = 10 * US
"""Launch and completion of one copy, an assumption that only copies below a megabyte feel."""


def loads(op: str, ranks: Ints, cluster: Cluster) -> Edges:
    """Bytes on links per byte of size, for the devices int64[G]; an update reaches a share of the host's memory."""
    share = cluster.profile.host.update_efficiency if op == "host_update" else 1.0
    index, each = np.arange(len(ranks)), np.full(len(ranks), 1.0 / share)
    return concatenate([Edges(index, cluster.link_of(link, ranks), each) for link in LINKS[op]])


def line(op: str, rank: int, cluster: Cluster) -> Line:
    """Time of one transfer alone on undamaged links."""
    edges = loads(op, np.array([rank]), cluster)
    slope = float((edges.coefficient / cluster.nominal_capacity(edges.link_id)).max())
    return Line(NAME, "dma", LATENCY_S, slope)
