"""The cost of a checkpoint, the best interval, and the share of useful time: closed forms.

Notation of the literature, all in seconds: M is the mean time between interruptions, w the time that a checkpoint
blocks training, D the work between two checkpoints, R the time from an interruption until work resumes.
"""

import math

from simpar.architectures.graph import ModelGraph
from simpar.cost.memory.widths import kept_widths
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.hardware.operation import Operation
from simpar.layout.layout import Layout
from simpar.stacks.stack import Stack


@dataclass(frozen=True)
class CheckpointCost:
    """One checkpoint: bytes, s that it blocks training, s until it is complete after that, and s to load it."""

    size_bytes: float
    blocking_s: float
    background_s: float
    load_s: float


def checkpoint_bytes(graph: ModelGraph, layout: Layout, stack: Stack) -> float:
    """Bytes of a checkpoint: stored weights, and states of the trained ones; adapters are saved alone.

    ``graph`` has frozen what the layout freezes. For matrix optimizers, the states of matrices count for all
    parameters and those of factors for none.
    """
    widths, trained = kept_widths(layout, stack), graph.num_trained_parameters()
    frozen = 0 if layout.lora_rank is not None else graph.num_parameters() - trained
    return trained * (widths.stored + widths.states) + frozen * widths.stored


def _network_rate(cluster: Cluster) -> float:
    """Bytes/s of one device's share of its node's network."""
    profile, out = cluster.profile, cluster.profile.scale_out
    if out is None:
        return profile.host.pcie_bandwidth
    return out.nics_per_node * out.nic_bandwidth / profile.devices_per_node


def checkpoint_cost(size_bytes: float, cluster: Cluster, operation: Operation) -> CheckpointCost:
    """The cost of a checkpoint on a cluster; every device writes an equal share.

    Copies go over PCIe to the host, to storage at its guaranteed bandwidth, or to another node's memory at the rate of
    a device's share of the network.
    """
    share = size_bytes / cluster.world_size
    stored = size_bytes / (cluster.nodes * operation.storage_per_node)
    snapshot = share / min(part.profile.host.pcie_bandwidth for part in cluster.parts)
    if operation.checkpoint == "sync":
        return CheckpointCost(size_bytes, stored, 0.0, stored)
    if operation.checkpoint == "async":
        return CheckpointCost(size_bytes, snapshot, stored, stored)
    rate = min(_network_rate(part) for part in cluster.parts)
    return CheckpointCost(size_bytes, snapshot, share / rate, share / rate + snapshot)


def young(w: float, m: float) -> float:
    """The work between checkpoints that loses least time, to first order: sqrt(2 w M) [Young 1974]."""
    return math.sqrt(2.0 * w * m)


def daly(w: float, m: float) -> float:
    """The work between checkpoints that loses least time, to higher order [Daly 2006, equation 37].

    sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + (w / 2M) / 9) - w for w < 2M, else M.
    """
    if w >= 2.0 * m:
        return m
    ratio = w / (2.0 * m)
    return young(w, m) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - w


def efficiency(d: float, w: float, m: float, r: float) -> float:
    """The share of useful time, for exponential interruptions that may also strike during a restart.

    D / (M exp(R / M) (exp((D + w) / M) - 1)) [Daly 2006, equation 20].
    """
    return d / (m * math.exp(r / m) * math.expm1((d + w) / m))
