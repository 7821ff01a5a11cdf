"""What a checkpoint costs, how often to take one, and what share of time is left: closed forms.

Notation of the literature: M mean time between interruptions, w time that a checkpoint blocks training, D work
between two checkpoints, R time from an interruption until work goes on, all in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simpar.cost.memory.widths import kept_widths
from simpar.cost.stack import Stack
from simpar.hardware.cluster import Cluster
from simpar.hardware.operation import Operation
from simpar.models.graph import ModelGraph
from simpar.plan.plan import Plan


@dataclass(frozen=True)
class Saving:
    """One checkpoint: bytes, s that it blocks training, s until it is complete after that, s to read it back."""

    size_bytes: float
    blocking_s: float
    background_s: float
    load_s: float


def checkpoint_bytes(graph: ModelGraph, plan: Plan, stack: Stack) -> float:
    """Bytes of a checkpoint: weights as they are stored, and states of those that are trained. Adapters go alone.

    ``graph`` has frozen what the resolved plan freezes. Of matrix optimizers the states of matrices count for all
    parameters, factors of theirs for none.
    """
    widths, trained = kept_widths(plan, stack), graph.num_trained_parameters()
    frozen = 0 if plan.tuning.lora_rank is not None else graph.num_parameters() - trained
    return trained * (widths.stored + widths.states) + frozen * widths.stored


def _network_rate(cluster: Cluster) -> float:
    """Bytes/s of a device's share of its node's network."""
    profile, out = cluster.profile, cluster.profile.scale_out
    if out is None:
        return profile.host.pcie_bandwidth
    return out.nics_per_node * out.nic_bandwidth / profile.devices_per_node


def saving(size_bytes: float, cluster: Cluster, operation: Operation) -> Saving:
    """What a checkpoint costs on a cluster; every device writes an equal share.

    Copies go over PCIe to the host, to storage at the bandwidth that nodes can count on, and to another node's
    memory at the rate of a device's share of the network.
    """
    share = size_bytes / cluster.world_size
    stored = size_bytes / (cluster.nodes * operation.storage_per_node)
    snapshot = share / min(part.profile.host.pcie_bandwidth for part in cluster.parts)
    if operation.checkpoint == "sync":
        return Saving(size_bytes, stored, 0.0, stored)
    if operation.checkpoint == "async":
        return Saving(size_bytes, snapshot, stored, stored)
    rate = min(_network_rate(part) for part in cluster.parts)
    return Saving(size_bytes, snapshot, share / rate, share / rate + snapshot)


def young(w: float, m: float) -> float:
    """Work between checkpoints that loses least, to first order: sqrt(2 w M) [Young 1974]."""
    return math.sqrt(2.0 * w * m)


def daly(w: float, m: float) -> float:
    """Work between checkpoints that loses least, to higher order [Daly 2006, equation 37].

    sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + (w / 2M) / 9) - w for w < 2M, else M.
    """
    if w >= 2.0 * m:
        return m
    ratio = w / (2.0 * m)
    return young(w, m) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - w


def efficiency(d: float, w: float, m: float, r: float) -> float:
    """Share of time that is work kept, for exponential interruptions that may also strike while restarting.

    D / (M exp(R / M) (exp((D + w) / M) - 1)) [Daly 2006, equation 20].
    """
    return d / (m * math.exp(r / m) * math.expm1((d + w) / m))
