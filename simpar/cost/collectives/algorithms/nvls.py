"""NVLS: the scale-up switch reduces and multicasts; NVLSTree joins several domains by two trees.

A device reads its reduced 1/N share and stores it once for all, so a port carries S + S/N each way where a
ring needs 2S(N-1)/N. Source: NCCL transport/nvls.cc, graph/tuning.cc (NVLS, NVLSTree).
"""

import math

from simpar.cost.collectives.algorithm import Algorithm
from simpar.cost.collectives.algorithms.tree import as_ring
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Edges, spread_loads


class Nvls(Algorithm):
    """Reduction in the scale-up switch."""

    NAME = "nvls"
    RANK = 4
    OPS = ("all_reduce",)
    PROTOCOLS = ("simple",)
    RATES = ("nvls_efficiency", "nic_efficiency")

    def needs(self, _op: str, placement: Placement) -> str | None:
        """What a group lacks, or None."""
        if not placement.cluster.profile.scale_up.nvls:
            return f"the switches of {placement.cluster.profile.name} do not reduce"
        return None if placement.shape.smallest > 1 else "it needs at least two members in every domain"

    def automatic(self, _op: str, shape: GroupShape) -> bool:
        """From three members a domain on."""
        return shape.smallest > 2

    def hops(self, _op: str, shape: GroupShape) -> dict[str, float]:
        """One pass through the switch, and up and down the tree between domains."""
        return {"nvls_us": 1.0, "tree_hop_us": 2.0 * math.ceil(math.log2(shape.num_domains))}

    def loads(self, _op: str, placement: Placement) -> Edges:
        """S + S/g on every port; the two trees on NICs."""
        through = 1.0 + 1.0 / placement.beside
        return spread_loads(placement, through, through, as_ring(placement.num_domains))


ALGORITHMS = (Nvls(),)
