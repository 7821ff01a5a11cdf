"""Recursive halving and doubling: latency logarithmic in the members, bandwidth as a ring.

Near partners exchange the large halves, far partners the small rest (vector halving, distance doubling).
Source: Rabenseifner 2004, "Optimization of collective reduction operations". With one member a domain it
stands for NCCL's PAT.
"""

import math

import numpy as np

from simpar.cost.collectives.algorithm import Algorithm, rounds
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Domains, Edges, spread_loads


class HalvingDoubling(Algorithm):
    """Recursive halving and doubling."""

    NAME = "halving_doubling"
    RANK = 2
    OPS = ("all_reduce", "all_gather", "reduce_scatter")
    PROTOCOLS = ("simple",)

    def needs(self, _op: str, placement: Placement) -> str | None:
        """What a group lacks, or None."""
        shape = placement.shape
        powers = all(size & (size - 1) == 0 for size in (shape.num_domains, shape.per_domain))
        if shape.smallest == shape.per_domain and powers:
            return None
        return "it needs a power of two of domains with a power of two of members each"

    def automatic(self, op: str, shape: GroupShape) -> bool:
        """Gathers and scatters with one member a domain (PAT)."""
        return op != "all_reduce" and shape.per_domain == 1 and shape.num_domains > 1

    def hops(self, op: str, shape: GroupShape) -> dict[str, float]:
        """log2 N steps, 2 log2 N for all-reduce."""
        inside, across = math.log2(shape.per_domain), math.log2(shape.num_domains)
        return {"port_hop_us": rounds(op) * inside, "tree_hop_us": rounds(op) * across}

    def loads(self, op: str, placement: Placement) -> Edges:
        """Halves S/2 .. S/g stay inside the domain; the g members send S/(2g) .. S/(gn) each to others."""
        inside = rounds(op) * (placement.beside - 1) / placement.beside
        # step k: the members of domain i together exchange rounds x S / 2^(k + 1) with those of domain i XOR 2^k
        order, step = np.arange(placement.num_domains), np.arange(placement.num_domains.bit_length() - 1)
        source, target = np.tile(order, len(step)), (order ^ (1 << step[:, None])).ravel()
        volume = np.repeat(rounds(op) / 2.0 ** (step + 1), len(order))
        return spread_loads(placement, inside, inside, Domains(source, target, volume))


ALGORITHMS = (HalvingDoubling(),)
