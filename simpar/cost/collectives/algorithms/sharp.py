"""SHARP: the network switches reduce; a domain sends its data up once and receives the result once.

Source: Graham et al. 2016, "Scalable Hierarchical Aggregation Protocol (SHArP)"; NCCL's CollNet. Clouds
rarely enable it, so a profile has to say ``sharp: true``.
"""

import numpy as np

from simpar.cost.collectives.algorithm import Algorithm
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Edges, round_of, spread_loads


class Sharp(Algorithm):
    """Reduction in the network switches."""

    NAME = "sharp"
    RANK = 5
    OPS = ("all_reduce",)
    PROTOCOLS = ("simple",)
    RATES = ("nvls_efficiency", "nic_efficiency")

    def needs(self, _op: str, placement: Placement) -> str | None:
        """What a group lacks, or None."""
        out = placement.cluster.profile.scale_out
        if out is None or not out.sharp:
            return f"the network of {placement.cluster.profile.name} does not reduce (scale_out.sharp is false)"
        return None if placement.num_domains > 1 else "it needs several domains"

    def automatic(self, _op: str, shape: GroupShape) -> bool:
        """Always where the network has it."""
        return shape.num_domains > 1

    def hops(self, _op: str, shape: GroupShape) -> dict[str, float]:
        """One pass through the network, and the reduction inside the domain before and after it."""
        return {"sharp_us": 1.0, "nvls_us": 1.0 if shape.per_domain > 1 else 0.0}

    def loads(self, _op: str, placement: Placement) -> Edges:
        """S per domain each way on NICs, whatever the number of domains; ports as under NVLS, or as in a ring."""
        # around the network: with NVLS S + S/g as in nvls.py, else a reduce-scatter and an all-gather, 2 S (g - 1) / g
        ports = 2.0 * (placement.beside - 1) / placement.beside
        if placement.cluster.profile.scale_up.nvls:
            ports = np.where(placement.beside == 1, 0.0, 1.0 + 1.0 / placement.beside)
        return spread_loads(placement, ports, ports, round_of(placement.num_domains, 1.0))


ALGORITHMS = (Sharp(),)
