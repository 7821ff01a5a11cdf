"""What collectives take from the kernels beside them.

Their copies hold multiprocessors and memory bandwidth by the byte, so a collective that waits for a NIC disturbs the
kernels beside it less than one at the scale-up rate. Its share is the time that its bytes take at that rate.
"""

from __future__ import annotations

from simpar.hardware.cluster import Cluster

PASSES = {"all_reduce": 2.0}


def occupied_s_per_byte(op: str, cluster: Cluster) -> float:
    """Seconds a byte of the whole tensor for which an operation holds its share of the device at the full rate."""
    return PASSES.get(op, 1.0) / cluster.profile.scale_up.bandwidth
