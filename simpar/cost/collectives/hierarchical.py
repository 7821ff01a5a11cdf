"""Hierarchical: a ring inside each domain, then one ring along every rail, pipelined against each other.

Source: Jia et al. 2018, arXiv 1807.11205 (hierarchical all-reduce): reduce-scatter inside, all-reduce of S/g
across, all-gather inside.
"""

from __future__ import annotations

import numpy as np

from simpar.cost.collectives.placement import Placement, Shape
from simpar.cost.collectives.ring import volume
from simpar.cost.collectives.traffic import Domains, Loads, spread

NAME = "hierarchical"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
NUM_SMS = dict.fromkeys(OPS, 24)
PROTOCOLS = ("ll", "ll128", "simple")
RATES = dict.fromkeys(OPS, ("port_efficiency", "nic_efficiency"))


def refuses(op: str, placement: Placement) -> str | None:
    """Why a group cannot use the algorithm, or None."""
    if op not in OPS:
        return f"{op} has no hierarchical form"
    shape = placement.shape
    if shape.num_domains == 1 or shape.per_domain == 1 or shape.smallest != shape.per_domain:
        return "it needs several domains with equally many members, at least two"
    return None


def automatic(_op: str, _shape: Shape) -> bool:
    """Whether the library considers it by itself: never, it is asked for by name."""
    return False


def hops(op: str, shape: Shape) -> dict[str, float]:
    """(g-1) steps inside and (n-1) across, twice for all-reduce."""
    rounds = 2.0 if op == "all_reduce" else 1.0
    return {"port_hop_us": rounds * (shape.per_domain - 1), "nic_hop_us": rounds * (shape.num_domains - 1)}


def loads(op: str, placement: Placement) -> Loads:
    """Ring volumes of g members on ports, of n domains on NICs."""
    count = placement.num_domains
    inside = volume(op, placement.shape.per_domain)
    order = np.arange(count)
    pattern = Domains(order, np.roll(order, -1), np.full(count, volume(op, count)))
    return spread(placement, inside, inside, pattern)
