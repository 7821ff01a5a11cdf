"""Recursive halving and doubling: latency logarithmic in the members, bandwidth as a ring.

Near partners exchange the large halves, far partners the small rest (vector halving, distance doubling).
Source: Rabenseifner 2004, "Optimization of collective reduction operations". With one member a domain it
stands for NCCL's PAT.
"""

from __future__ import annotations

import math

import numpy as np

from simpar.cost.collectives.placement import Placement, Shape
from simpar.cost.collectives.traffic import Domains, Loads, spread

NAME = "halving_doubling"
OPS = ("all_reduce", "all_gather", "reduce_scatter")
NUM_SMS = dict.fromkeys(OPS, 24)
PROTOCOLS = ("simple",)
RATES = dict.fromkeys(OPS, ("port_efficiency", "nic_efficiency"))


def refuses(op: str, placement: Placement) -> str | None:
    """Why a group cannot use the algorithm, or None."""
    if op not in OPS:
        return f"{op} has no halving form"
    shape = placement.shape
    powers = all(size & (size - 1) == 0 for size in (shape.num_domains, shape.per_domain))
    if shape.smallest != shape.per_domain or not powers:
        return "it needs a power of two of domains with a power of two of members each"
    return None


def automatic(op: str, shape: Shape) -> bool:
    """Whether the library considers it by itself: gathers and scatters with one member a domain (PAT)."""
    return op in ("all_gather", "reduce_scatter") and shape.per_domain == 1 and shape.num_domains > 1


def hops(op: str, shape: Shape) -> dict[str, float]:
    """log2 N steps, 2 log2 N for all-reduce."""
    rounds = 2.0 if op == "all_reduce" else 1.0
    inside, across = math.log2(shape.per_domain), math.log2(shape.num_domains)
    return {"port_hop_us": rounds * inside, "tree_hop_us": rounds * across}


def loads(op: str, placement: Placement) -> Loads:
    """Halves S/2 .. S/g stay inside the domain; the g members send S/(2g) .. S/(gn) each to others."""
    rounds = 2.0 if op == "all_reduce" else 1.0
    inside = rounds * (placement.beside - 1) / placement.beside
    order = np.arange(placement.num_domains)
    steps = range(placement.num_domains.bit_length() - 1)
    source = np.tile(order, len(steps))
    target = np.concatenate([order[:0], *(order ^ (1 << step) for step in steps)])
    volume = np.concatenate([np.zeros(0), *(np.full(len(order), rounds / 2 ** (step + 1)) for step in steps)])
    return spread(placement, inside, inside, Domains(source, target, volume))
