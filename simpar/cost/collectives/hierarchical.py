"""Hierarchical: reduce-scatter inside each domain, exchange S/g along every rail, all-gather inside."""

from __future__ import annotations

import numpy as np

from simpar.cost.collectives.placement import Pattern, Placement, join_edges

OPS = ("all_reduce", "all_gather", "reduce_scatter")


def available(op: str, place: Placement) -> bool:
    """Groups with equally many members, two or more, in each of several domains."""
    equal = place.per_domain * place.num_domains == place.size
    return op in OPS and place.num_domains > 1 and place.per_domain > 1 and equal


def pattern(op: str, place: Placement) -> Pattern:
    """The two levels are pipelined against each other: links, not the sum of phases, decide."""
    g, n = place.per_domain, place.num_domains
    rounds = 2 if op == "all_reduce" else 1
    shape = place.groups.shape
    nic = np.full(shape, rounds * (n - 1) / (n * g))
    port = np.full(shape, rounds * (g - 1) / g)
    latency = rounds * ((g - 1) * place.us("port_hop_us") + (n - 1) * place.us("nic_hop_us"))
    edges = join_edges(place.port_edges(port), place.nic_edges(nic), place.ring_leaf_edges(nic))
    return Pattern(place.us("base_us") + latency, edges)
