"""Ring: every member sends to the next; optimal in bandwidth, latency linear in the members.

Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations". As in
NCCL, several channels run the ring; each enters and leaves a domain once, by a NIC of its own.
"""

import numpy as np

from simpar.cost.collectives.algorithm import Algorithm, rounds
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Edges, round_of, spread_loads

CHAINS = ("broadcast", "reduce")  # one member has all data, which pass along the ring


class Ring(Algorithm):
    """Every member sends to the next."""

    NAME = "ring"
    RANK = 0
    OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")

    def hops(self, op: str, shape: GroupShape) -> dict[str, float]:
        """Steps in sequence: N-1, or 2(N-1) for all-reduce; one step per domain crosses the network.

        Where a ring spans several domains, steps inside them take longer the more devices of a node take part, because
        these share its proxies.
        """
        if shape.num_domains == 1:
            return {"port_hop_us": rounds(op) * (shape.members - 1)}
        inside = shape.members - shape.num_domains
        across = shape.num_domains - 1
        return {"far_hop_us": rounds(op) * inside * shape.node_fill, "nic_hop_us": rounds(op) * across}

    def chain(self, op: str, shape: GroupShape) -> int:
        """One hop into every domain but the root's: a ring of gathers has all members sending from the start."""
        return shape.num_domains - 1 if op in CHAINS else 0

    def loads(self, op: str, placement: Placement) -> Edges:
        """A member passes every byte on, through its port or (one channel in g) through its NIC.

        The copy channels, not the port's wires, are what a full ring exhausts, so the port counts all bytes.
        """
        sent = volume(op, placement.members)
        if placement.num_domains == 1:
            return spread_loads(placement, sent, sent)
        inside = np.where(placement.beside > 1, sent, 0.0)
        return spread_loads(placement, inside, inside, round_of(placement.num_domains, sent))


def volume(op: str, members: int) -> float:
    """Bytes a member sends per byte of the tensor: 2(N-1)/N, (N-1)/N, or 1 for a pipelined chain."""
    return 1.0 if op in CHAINS else rounds(op) * (members - 1) / members


ALGORITHMS = (Ring(),)
