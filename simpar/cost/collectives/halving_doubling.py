"""Recursive halving and doubling: 2 log2 N steps for all-reduce, log2 N for the others.

Source: Thakur, Rabenseifner and Gropp 2005. Partners at distance N/2 first, so the largest messages go far.
"""

from __future__ import annotations

import math

import numpy as np

from simpar.cost.collectives.placement import Pattern, Placement, join_edges

OPS = ("all_reduce", "all_gather", "reduce_scatter")


def available(op: str, place: Placement) -> bool:
    """Groups whose size is a power of two."""
    return op in OPS and place.size > 1 and place.size & (place.size - 1) == 0


def pattern(op: str, place: Placement) -> Pattern:
    """Every rank exchanges S/2, S/4, ... S/N with partners ever nearer (and back for all-reduce)."""
    rounds = 2 if op == "all_reduce" else 1
    n, far = place.size, place.num_domains
    shape = place.groups.shape
    network = rounds * (1 - 1 / far)
    inside = rounds * (n - 1) / n - network
    steps_far = math.ceil(math.log2(far))
    steps_near = round(math.log2(n)) - steps_far
    latency = rounds * (steps_far * place.us("nic_hop_us") + steps_near * place.us("port_hop_us"))
    nic = np.full(shape, network)
    edges = join_edges(place.port_edges(np.full(shape, max(inside, 0.0))), place.nic_edges(nic))
    if far > 1:
        edges = join_edges(edges, place.all_leaf_edges(nic, place.nic_efficiency))
    return Pattern(place.us("base_us") + latency, edges)
