"""Trees: O(log N) latency. All-reduce is NCCL's double binary tree; broadcast and reduce are binomial.

Sources: Sanders, Speck and Traeff 2009 (two trees); a binomial broadcast sends the size once per round.
"""

from __future__ import annotations

import math

import numpy as np

from simpar.cost.collectives.placement import Pattern, Placement, join_edges

OPS = ("all_reduce", "broadcast", "reduce")


def available(op: str, place: Placement) -> bool:
    """Trees exist for every group of two or more."""
    return op in OPS and place.size > 1


def pattern(op: str, place: Placement) -> Pattern:
    """All-reduce goes up and down a chain inside each domain and a tree between domains."""
    if op != "all_reduce":
        return _binomial(place)
    inside = place.members_here - 1
    between = math.ceil(math.log2(place.num_domains))
    hops = int(inside.max()) * place.us("port_hop_us") + between * place.us("tree_hop_us")
    shape = place.groups.shape
    here = place.members_here.astype(np.float64)
    port = place.port_edges(np.where(here > 1, 2.0 * (here - 1) / here, 0.0))
    if place.num_domains == 1:
        return Pattern(place.us("base_us") + 2 * hops, place.port_edges(np.full(shape, 2.0)))
    nic = 2.0 / here
    return Pattern(
        place.us("base_us") + 2 * hops, join_edges(port, place.nic_edges(nic), place.ring_leaf_edges(nic))
    )


def _binomial(place: Placement) -> Pattern:
    """The root sends the whole size in each of ceil(log2 N) rounds."""
    rounds = math.ceil(math.log2(place.size))
    load = np.zeros(place.groups.shape)
    load[:, 0] = rounds
    far = place.num_domains > 1
    hop = place.us("nic_hop_us") if far else place.us("port_hop_us")
    edges = place.nic_edges(load) if far else place.port_edges(load)
    return Pattern(place.us("base_us") + rounds * hop, edges)
