"""Hierarchical: a ring inside each domain, then one ring along every rail, pipelined against each other.

Source: Jia et al. 2018, arXiv 1807.11205 (hierarchical all-reduce): reduce-scatter inside, all-reduce of S/g
across, all-gather inside.
"""

from simpar.cost.collectives.algorithm import Algorithm, rounds
from simpar.cost.collectives.algorithms.ring import Ring, volume
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Edges, round_of, spread_loads


class Hierarchical(Algorithm):
    """A ring inside each domain, then one along every rail."""

    NAME = "hierarchical"
    RANK = 3
    OPS = Ring.OPS

    def needs(self, _op: str, placement: Placement) -> str | None:
        """What a group lacks, or None."""
        shape = placement.shape
        if shape.num_domains == 1 or shape.per_domain == 1 or shape.smallest != shape.per_domain:
            return "it needs several domains with equally many members, at least two"
        return None

    def automatic(self, _op: str, _shape: GroupShape) -> bool:
        """Never, it is asked for by name."""
        return False

    def hops(self, op: str, shape: GroupShape) -> dict[str, float]:
        """(g-1) steps inside and (n-1) across, twice for all-reduce."""
        inside, across = shape.per_domain - 1, shape.num_domains - 1
        return {"port_hop_us": rounds(op) * inside, "nic_hop_us": rounds(op) * across}

    def loads(self, op: str, placement: Placement) -> Edges:
        """Ring volumes of g members on ports, of n domains on NICs."""
        count, inside = placement.num_domains, volume(op, placement.shape.per_domain)
        return spread_loads(placement, inside, inside, round_of(count, volume(op, count)))


ALGORITHMS = (Hierarchical(),)
