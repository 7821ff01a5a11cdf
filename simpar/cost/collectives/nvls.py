"""NVLS: the switch reduces and multicasts, so a port carries S + S/N each way; between nodes a tree joins them.

Source: NCCL's NVLS and NVLSTree algorithms (all-reduce).
"""

from __future__ import annotations

import math

import numpy as np

from simpar.cost.collectives.placement import Pattern, Placement, join_edges

OPS = ("all_reduce",)


def available(op: str, place: Placement) -> bool:
    """Switched fabrics with in-switch reduction, three or more members in every domain of the group."""
    return op in OPS and place.cluster.profile.scale_up.nvls and place.per_domain > 2


def pattern(op: str, place: Placement) -> Pattern:
    """One switch pass inside a domain, a tree between domains."""
    here = place.members_here.astype(np.float64)
    ratio = place.port_efficiency / place.parameters["nvls_efficiency"]
    port = place.port_edges((1.0 + 1.0 / here) * ratio)
    latency = place.us("base_us") + place.us("nvls_us")
    n = place.num_domains
    if n == 1:
        return Pattern(latency, port)
    nic = 2.0 * (n - 1) / n / here
    latency += 2 * math.ceil(math.log2(n)) * place.us("tree_hop_us")
    return Pattern(latency, join_edges(port, place.nic_edges(nic), place.ring_leaf_edges(nic)))
