"""Dispatch: a token goes once to each domain that holds any of its experts, and is forwarded there to their devices.

Source: DeepSeek-AI, DeepEP, README and csrc/kernels/internode.cu: a token crosses the network to the device on its own
rail, which hands copies to its neighbours over NVLink; combining goes the same way back, and sums on the way. The
kernels are their own, with rings of buffers instead of NCCL's channels.

The size of the operation counts a copy of each token of a rank for every rank that holds any of its experts, as an
all-to-all of these copies would. How many domains those ranks are in depends on how many experts a token has and on
where they may be; the name of the operation says it (:class:`simpar.plan.routing.Routing`).
"""

from collections.abc import Mapping

import numpy as np

from simpar.cost.collectives.algorithm import Algorithm
from simpar.cost.collectives.algorithms.direct import far_unequal, mean_hops
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Edges, concatenate, member_edges, spread_detour
from simpar.plan.routing import Routing
from simpar.units import GB, Floats


class Dispatch(Algorithm):
    """One copy of a token a domain, forwarded inside it."""

    NAME = "dispatch"
    RANK = 8
    OPS = ("dispatch",)
    PROTOCOLS = ("simple",)
    RATES = ("exchange_efficiency", "exchange_nic_efficiency")

    def rate_cap(self, op: str, shape: GroupShape, values: Mapping[str, float]) -> float | None:
        """Its kernels pass copies by rank and then copies by domain on, one after the other, on the SMs that they hold.

        Per byte of copies by rank: 1 / near + (copies by domain / copies by rank) / far seconds.
        """
        if shape.num_domains == 1:
            return None
        routing = Routing.of_op(op)
        by_rank, by_domain = (n * routing.holds(1 / n) for n in (shape.members, shape.num_domains))
        near, far = values["dispatch_gb_per_s"] * GB, values["dispatch_far_gb_per_s"] * GB
        return 1.0 / (1.0 / near + by_domain / by_rank / far)

    def hops(self, _op: str, shape: GroupShape) -> dict[str, float]:
        """One message; neighbours in the domain and the device of the own rail in every other are peers."""
        hop = "port_hop_us" if shape.num_domains == 1 else "tree_hop_us"
        return {hop: 1.0, "near_peer_us": shape.per_domain - 1.0, "peer_us": shape.num_domains - 1.0}

    def loads(self, op: str, placement: Placement) -> Edges:
        """Copies by domain on NICs; copies by device on ports, forwarded by the device on the token's rail."""
        routing, cluster, ranks = Routing.of_op(op), placement.cluster, placement.ranks
        members, beside = placement.members, placement.beside
        shares, which = np.unique(beside / members, return_inverse=True)
        # S counts one copy of a token for each rank that holds any of its experts: ``copies`` ranks on average.
        # touched [G, N]: share of S for the member's domain, one copy for it if any of its ranks holds one
        copies = routing.holds(1 / members) * members
        touched = np.array([routing.holds(float(share)) / copies for share in shares])[which].reshape(beside.shape)
        # sum over domains = sum over members / members beside; less the own domain, which needs no NIC. A domain's
        # copies of the tokens of all others arrive evenly at its members.
        sent = (touched / beside).sum(axis=1, keepdims=True) - touched
        received = (members - beside) * touched / beside
        forwarded = (beside - 1) / beside * mean_hops(placement)
        pieces = [member_edges(link(ranks), forwarded) for link in (cluster.port_tx, cluster.port_rx)]
        pieces += [member_edges(cluster.nic_tx(ranks), sent), member_edges(cluster.nic_rx(ranks), received)]
        for level in cluster.levels:
            beyond: Floats = far_unequal(placement, level.place(ranks)) / np.maximum(members - beside, 1)
            beyond = beyond * spread_detour(level, ranks)
            pieces += [
                member_edges(cluster.link_of(level.up, ranks), sent * beyond),
                member_edges(cluster.link_of(level.down, ranks), received * beyond),
            ]
        return concatenate(pieces)


ALGORITHMS = (Dispatch(),)
