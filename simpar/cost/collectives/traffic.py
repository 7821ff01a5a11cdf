"""From the traffic pattern of an algorithm to bytes on links, for many groups at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simpar.cost.collectives.placement import Placement
from simpar.hardware.cluster import Cluster

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Edges:
    """Group ``group_index[e]`` puts ``coefficient[e]`` bytes on ``link_id[e]`` per byte of its size."""

    group_index: Ints
    link_id: Ints
    coefficient: Floats

    def take(self, which: NDArray[np.bool_]) -> Edges:
        """Some of the edges."""
        return Edges(self.group_index[which], self.link_id[which], self.coefficient[which])

    def over(self, share: float) -> Edges:
        """The edges with every coefficient divided by the share of a link that is reached."""
        return Edges(self.group_index, self.link_id, self.coefficient / share)


@dataclass(frozen=True)
class Loads:
    """Bytes on links per byte of size, before efficiencies: on scale-up ports, and on NICs and leaf links."""

    ports: Edges
    network: Edges


@dataclass(frozen=True)
class Domains:
    """Traffic between the domains of a group: ``volume[k]`` bytes from ``source[k]`` to ``target[k]``."""

    source: Ints
    target: Ints
    volume: Floats


def spread(
    placement: Placement, sent: ArrayLike, received: ArrayLike, domains: Domains | None = None
) -> Loads:
    """Loads of a pattern.

    ``sent`` and ``received`` broadcast to [G, N]: bytes on each member's port. What domains exchange is
    spread over their members' NICs and crosses leaf links where source and target hang on different leaves.
    """
    cluster, ranks = placement.cluster, placement.ranks
    ports = [member_edges(cluster.port_tx(ranks), sent), member_edges(cluster.port_rx(ranks), received)]
    network = _network(placement, domains) if domains is not None and len(domains.volume) else []
    return Loads(concatenate(ports), concatenate(network))


def member_edges(links: Ints, load: ArrayLike) -> Edges:
    """One edge a member: its load on the link of links int64[G, N]."""
    groups, members = links.shape
    loads = np.broadcast_to(np.asarray(load, dtype=np.float64), links.shape)
    return Edges(np.repeat(np.arange(groups), members), links.ravel(), loads.ravel())


def _network(placement: Placement, domains: Domains) -> list[Edges]:
    cluster, ranks, count = placement.cluster, placement.ranks, placement.num_domains
    sent = np.bincount(domains.source, domains.volume, count)[placement.position]
    received = np.bincount(domains.target, domains.volume, count)[placement.position]
    pieces = [
        member_edges(cluster.nic_tx(ranks), sent / placement.beside),
        member_edges(cluster.nic_rx(ranks), received / placement.beside),
    ]
    for level in cluster.levels:
        up, down = _crossing(placement, domains, level.place(ranks))
        pieces += [
            member_edges(cluster.link_of(level.up, ranks), up / placement.beside),
            member_edges(cluster.link_of(level.down, ranks), down / placement.beside),
        ]
    return pieces


def _crossing(placement: Placement, domains: Domains, place: Ints) -> tuple[Floats, Floats]:
    """Bytes each member's domain sends to, and gets from, domains in other places: float64[G, N] twice."""
    groups, count = len(placement.ranks), placement.num_domains
    pod = np.zeros((groups, count), dtype=np.int64)
    np.put_along_axis(pod, placement.position, place, axis=1)
    weight = (pod[:, domains.source] != pod[:, domains.target]) * domains.volume
    return tuple(  # type: ignore[return-value]
        np.take_along_axis(_sum_by(end, weight, count), placement.position, axis=1)
        for end in (domains.source, domains.target)
    )


def _sum_by(domain: Ints, weight: Floats, count: int) -> Floats:
    """Weights float64[G, K] added up by domain: float64[G, count]."""
    groups = len(weight)
    key = np.arange(groups)[:, None] * count + domain[None, :]
    total: Floats = np.bincount(key.ravel(), weight.ravel(), groups * count).astype(np.float64)
    return total.reshape(groups, count)


def by_kind(edges: Edges, cluster: Cluster) -> Loads:
    """Edges told apart: scale-up ports, and the network."""
    first_nic = int(cluster.nic_tx(np.zeros(1, dtype=np.int64))[0])
    is_port = edges.link_id < first_nic
    return Loads(edges.take(is_port), edges.take(~is_port))


def concatenate(pieces: Sequence[Edges]) -> Edges:
    """All edges in one list."""
    if not pieces:
        return Edges(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return Edges(
        np.concatenate([piece.group_index for piece in pieces]),
        np.concatenate([piece.link_id for piece in pieces]),
        np.concatenate([piece.coefficient for piece in pieces]),
    )


def occupancy(pieces: Sequence[Edges], num_links: int) -> Edges:
    """One edge per (group, link), loads added up, none of them zero.

    Sums are rounded to 12 digits: links in symmetric places must get bit-equal coefficients, or they do not
    fold together.
    """
    edges = concatenate(pieces)
    keep = edges.coefficient > 0
    pair = edges.group_index[keep] * num_links + edges.link_id[keep]
    key, inverse = np.unique(pair, return_inverse=True)
    total: Floats = np.bincount(inverse, edges.coefficient[keep], len(key)).astype(np.float64)
    return Edges(key // num_links, key % num_links, significant(total))


def significant(values: Floats, digits: int = 12) -> Floats:
    """Values rounded to a number of significant decimal digits."""
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.where(values > 0, values, 1.0))))
    return np.round(values * scale) / scale
