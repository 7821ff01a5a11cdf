"""Star: the root talks to every other member one after the other (parameter server, scatter, gather)."""

from __future__ import annotations

import numpy as np

from simpar.cost.collectives.placement import Pattern, Placement, join_edges

OPS = ("broadcast", "reduce", "scatter", "gather", "all_reduce")


def available(op: str, place: Placement) -> bool:
    """Any group of two or more."""
    return op in OPS and place.size > 1


def pattern(op: str, place: Placement) -> Pattern:
    """The root's link serialises N - 1 messages, of S/N each for scatter and gather; all-reduce pays both ways."""
    n = place.size
    each = 1.0 / n if op in ("scatter", "gather") else 1.0
    rounds = 2 if op == "all_reduce" else 1
    near = (place.members_here[:, :1] - 1).astype(np.float64)
    far = n - 1 - near
    root = np.zeros(place.groups.shape)
    root[:, :1] = 1.0
    edges = join_edges(
        place.port_edges(root * near * each), place.nic_edges(root * far * each),
        place.all_leaf_edges(root * far * each, place.nic_efficiency),
    )  # fmt: skip
    hop = place.us("nic_hop_us") if place.num_domains > 1 else place.us("port_hop_us")
    return Pattern(place.us("base_us") + rounds * hop, edges.scaled(float(rounds)) if rounds > 1 else edges)
