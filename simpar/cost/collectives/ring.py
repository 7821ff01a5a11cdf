"""Ring: every member sends to the next; optimal in bandwidth, latency linear in the members.

Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations". As in
NCCL, several channels run the ring; each enters and leaves a domain once, by a NIC of its own.
"""

from __future__ import annotations

import numpy as np

from simpar.cost.collectives.placement import Placement, Shape
from simpar.cost.collectives.traffic import Domains, Loads, spread

NAME = "ring"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
NUM_SMS = dict.fromkeys(OPS, 24)
PROTOCOLS = ("ll", "ll128", "simple")
RATES = dict.fromkeys(OPS, ("port_efficiency", "nic_efficiency"))


def refuses(op: str, _placement: Placement) -> str | None:
    """Why a group cannot use the algorithm, or None."""
    return None if op in OPS else f"{op} has no ring form"


def automatic(op: str, shape: Shape) -> bool:
    """Whether the library considers it by itself: always."""
    return op in OPS and shape.members > 1


def volume(op: str, members: int) -> float:
    """Bytes a member sends per byte of the tensor: 2(N-1)/N, (N-1)/N, or 1 for a pipelined chain."""
    if op in ("broadcast", "reduce"):
        return 1.0
    return (2.0 if op == "all_reduce" else 1.0) * (members - 1) / members


def hops(op: str, shape: Shape) -> dict[str, float]:
    """Steps in sequence: N-1, or 2(N-1) for all-reduce; one a domain crosses the network.

    Steps inside domains take longer where a ring spans several, the more devices of a node share its proxies.
    """
    rounds = 2.0 if op == "all_reduce" else 1.0
    if shape.num_domains == 1:
        return {"port_hop_us": rounds * (shape.members - 1)}
    inside = shape.members - shape.num_domains
    return {"far_hop_us": rounds * inside * shape.node_fill, "nic_hop_us": rounds * (shape.num_domains - 1)}


def loads(op: str, placement: Placement) -> Loads:
    """A member passes every byte on, through its port or (one channel in g) through its NIC.

    The copy channels, not the port's wires, are what a full ring exhausts, so the port counts all bytes.
    """
    sent = volume(op, placement.members)
    if placement.num_domains == 1:
        return spread(placement, sent, sent)
    inside = np.where(placement.beside > 1, sent, 0.0)
    order = np.arange(placement.num_domains)
    pattern = Domains(order, np.roll(order, -1), np.full(len(order), sent))
    return spread(placement, inside, inside, pattern)
