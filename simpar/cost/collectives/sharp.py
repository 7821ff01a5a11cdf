"""SHARP: the network switches reduce; a domain sends its data up once and receives the result once.

Source: Graham et al. 2016, "Scalable Hierarchical Aggregation Protocol (SHArP)"; NCCL's CollNet. Clouds
rarely enable it, so a profile has to say ``sharp: true``.
"""

from __future__ import annotations

import numpy as np

from simpar.cost.collectives.placement import Placement, Shape
from simpar.cost.collectives.traffic import Domains, Loads, spread

NAME = "sharp"
OPS = ("all_reduce",)
NUM_SMS = dict.fromkeys(OPS, 8)
PROTOCOLS = ("simple",)
RATES = dict.fromkeys(OPS, ("nvls_efficiency", "nic_efficiency"))


def refuses(op: str, placement: Placement) -> str | None:
    """Why a group cannot use the algorithm, or None."""
    if op not in OPS:
        return f"{op} is not reduced in the network"
    out = placement.cluster.profile.scale_out
    if out is None or not out.sharp:
        return f"the network of {placement.cluster.profile.name} does not reduce (scale_out.sharp is false)"
    return None if placement.num_domains > 1 else "it needs several domains"


def automatic(op: str, shape: Shape) -> bool:
    """Whether the library considers it by itself: always where the network has it."""
    return op in OPS and shape.num_domains > 1


def hops(_op: str, shape: Shape) -> dict[str, float]:
    """One pass through the network, and the reduction inside the domain before and after it."""
    return {"sharp_us": 1.0, "nvls_us": 1.0 if shape.per_domain > 1 else 0.0}


def loads(_op: str, placement: Placement) -> Loads:
    """S a domain each way on NICs, whatever their number; ports as in the switch, or a ring without it."""
    in_switch = placement.cluster.profile.scale_up.nvls
    alone = placement.beside == 1
    ring = 2.0 * (placement.beside - 1) / placement.beside
    ports = np.where(alone, 0.0, 1.0 + 1.0 / placement.beside) if in_switch else ring
    order = np.arange(placement.num_domains)
    pattern = Domains(order, np.roll(order, -1), np.ones(len(order)))
    return spread(placement, ports, ports, pattern)
