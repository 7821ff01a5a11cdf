"""Direct messages: a send goes straight to its destination, an all-to-all is a send between every pair.

Source: NCCL's point-to-point connections. Between nodes a message has a few channels of fixed rate each.
A permute is a ring of messages at the same time: every member sends to the next, the last to the first.
In an all-to-all over rails data first moves to the device on the receiver's rail (PXN), so that NIC traffic
stays on that rail.
"""

from collections.abc import Mapping

import numpy as np

from simpar.cost.collectives.algorithm import Algorithm
from simpar.cost.collectives.placement import GroupShape, Placement, count_equal
from simpar.cost.collectives.traffic import Edges, concatenate, member_edges, messages, spread_detour
from simpar.units import GB, Floats, Ints


class Direct(Algorithm):
    """Messages from every sender straight to its receivers."""

    NAME = "direct"
    RANK = 7
    OPS = ("send", "permute", "all_to_all")
    PROTOCOLS = ("ll", "simple")

    def needs(self, op: str, placement: Placement) -> str | None:
        """What a group lacks, or None."""
        if op == "send" and placement.members != 2:
            return f"a send has a source and a destination, this group has {placement.members} members"
        return None

    def rates(self, op: str) -> tuple[str, str]:
        """The parameters that hold its shares of ports and of NICs in an operation."""
        exchange = ("exchange_efficiency", "exchange_nic_efficiency")
        return exchange if op == "all_to_all" else ("send_efficiency", "nic_efficiency")

    def rate_cap(self, op: str, shape: GroupShape, values: Mapping[str, float]) -> float | None:
        """Channels bound the rate of every message between domains, those of an all-to-all included."""
        if shape.num_domains == 1:
            return None
        messages = shape.members if op == "all_to_all" else 1
        return messages * values["p2p_channels"] * values["p2p_channel_gb_per_s"] * GB

    def hops(self, op: str, shape: GroupShape) -> dict[str, float]:
        """One message; every peer of an all-to-all costs its connection."""
        hop = {"port_hop_us" if shape.num_domains == 1 else "tree_hop_us": 1.0}
        if op != "all_to_all":
            return {**hop, "send_us": 1.0}
        far = shape.members - shape.per_domain
        return {**hop, "near_peer_us": shape.per_domain - 1.0, "peer_us": float(far)}

    def loads(self, op: str, placement: Placement) -> Edges:
        """The routes of the messages, or what each member exchanges with all others."""
        if op == "all_to_all":
            return _exchange(placement)
        sources = placement.ranks[:, :1] if op == "send" else placement.ranks
        targets = np.roll(placement.ranks, -1, axis=1)[:, : sources.shape[1]]
        return messages(placement.cluster, sources, targets, 1.0)


def _exchange(placement: Placement) -> Edges:
    """Loads of an all-to-all: S/N to every other member, counted by domain, rail and pod (not by pair)."""
    cluster, ranks, members = placement.cluster, placement.ranks, placement.members
    far = (members - placement.beside) / members
    near = (placement.beside - 1) / members * mean_hops(placement)
    forwarded = _forwarded(placement) if cluster.hands_over else np.zeros(ranks.shape)
    pieces = [member_edges(link(ranks), near + forwarded) for link in (cluster.port_tx, cluster.port_rx)]
    pieces += [member_edges(link(ranks), far) for link in (cluster.nic_tx, cluster.nic_rx)]
    for level in cluster.levels:
        # handed over to the receiver's rail, a message stays under its leaf
        where = level.place if cluster.hands_over else level.switch
        beyond = far_unequal(placement, where(ranks)) / members * spread_detour(level, ranks)
        pieces += [member_edges(cluster.link_of(link, ranks), beyond) for link in (level.up, level.down)]
    return concatenate(pieces)


def mean_hops(placement: Placement) -> float:
    """Links of a device-to-device path inside a domain, on average: more than one only in a torus."""
    if placement.cluster.profile.scale_up.kind != "torus":
        return 1.0
    near = placement.ranks[0][placement.position[0] == 0]
    others = near[1:]
    _, links = placement.cluster.route(np.full(len(others), near[0]), others)
    return max(len(links) / 2 / max(len(others), 1), 1.0)


def _forwarded(placement: Placement) -> Floats:
    """Share of S that a member hands to neighbours on the receivers' rails: what goes to far members on other rails."""
    rail = placement.cluster.rail_of(placement.ranks)
    alone = placement.beside == _near_equal(placement, rail)
    return np.where(alone, 0.0, far_unequal(placement, rail) / placement.members)


def _near_equal(placement: Placement, key: Ints) -> Ints:
    """For every member, how many of its domain have its key, itself included: int64[G, N]."""
    return count_equal(placement.position * (int(key.max()) + 1) + key)


def far_unequal(placement: Placement, key: Ints) -> Ints:
    """For every member, how many of other domains have another key: int64[G, N]."""
    far_equal = count_equal(key) - _near_equal(placement, key)
    return placement.members - placement.beside - far_equal


ALGORITHMS = (Direct(),)
