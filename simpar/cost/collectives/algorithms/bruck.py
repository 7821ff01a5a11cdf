"""Bruck's all-to-all: rounds by powers of two in place of a message to every peer.

Source: Bruck et al. 1997, "Efficient algorithms for all-to-all communications in multiport message-passing systems"
(IEEE TPDS 8(11)), radix 2. In round k a member sends to the one 2^k places further all blocks that have to travel a
distance with binary digit k set: half of them or fewer, so blocks travel several times. MPI libraries use it for
small blocks; NCCL does not have it, so it is used only where it is named.
"""

import numpy as np

from simpar.cost.collectives.algorithm import Algorithm
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Edges, concatenate, messages


class Bruck(Algorithm):
    """Blocks travel by powers of two."""

    NAME = "bruck"
    RANK = 9
    OPS = ("all_to_all",)
    PROTOCOLS = ("ll", "simple")
    RATES = ("exchange_efficiency", "exchange_nic_efficiency")

    def automatic(self, _op: str, _shape: GroupShape) -> bool:
        """Never: NCCL has no such algorithm."""
        return False

    def hops(self, _op: str, shape: GroupShape) -> dict[str, float]:
        """ceil(log2 N) rounds, each of which crosses between domains where there are several."""
        return {"port_hop_us" if shape.num_domains == 1 else "tree_hop_us": float(len(rounds_of(shape.members)))}

    def loads(self, _op: str, placement: Placement) -> Edges:
        """Every round's blocks, of S/N each, over the routes to the members 2^k further."""
        cluster, ranks, members = placement.cluster, placement.ranks, placement.members
        return concatenate(
            [
                messages(cluster, ranks, np.roll(ranks, -(1 << k), axis=1), blocks / members)
                for k, blocks in enumerate(rounds_of(members))
            ]
        )


def rounds_of(members: int) -> list[int]:
    """Blocks that a member sends in every round: distances below ``members`` with binary digit k set."""
    distance = np.arange(members)
    return [int((distance >> k & 1).sum()) for k in range((members - 1).bit_length())]


ALGORITHMS = (Bruck(),)
