"""From the traffic pattern of an algorithm to bytes on links, for many groups at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from simpar.cost.collectives.placement import Placement
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.hardware.levels import Level
from simpar.units import Flags, Floats, Ints


@dataclass(frozen=True)
class Edges:
    """Group ``group_index[e]`` puts ``coefficient[e]`` bytes on ``link_id[e]`` per byte of its size."""

    group_index: Ints
    link_id: Ints
    coefficient: Floats

    def take(self, which: Flags) -> Edges:
        """Some of the edges."""
        return Edges(self.group_index[which], self.link_id[which], self.coefficient[which])

    def over(self, share: Floats) -> Edges:
        """The edges with every coefficient divided by the share of its link that is reached."""
        return Edges(self.group_index, self.link_id, self.coefficient / share)


@dataclass(frozen=True)
class Domains:
    """Traffic between the domains of a group: ``volume[k]`` bytes from ``source[k]`` to ``target[k]``."""

    source: Ints
    target: Ints
    volume: Floats


def round_of(count: int, volume: float) -> Domains:
    """A ring: every one of ``count`` domains sends to the next."""
    order = np.arange(count)
    return Domains(order, np.roll(order, -1), np.full(count, volume))


def spread_loads(placement: Placement, sent: ArrayLike, received: ArrayLike, domains: Domains | None = None) -> Edges:
    """Loads of a pattern: bytes on links per byte of size, before efficiencies.

    ``sent`` and ``received`` broadcast to [G, N]: bytes on each member's port. What domains exchange is
    spread over their members' NICs and crosses leaf links where source and target hang on different leaves.
    """
    cluster, ranks = placement.cluster, placement.ranks
    ports = [member_edges(cluster.port_tx(ranks), sent), member_edges(cluster.port_rx(ranks), received)]
    network = _network(placement, domains) if domains is not None and len(domains.volume) else []
    return concatenate([*ports, *network])


def messages(cluster: Cluster, sources: Ints, targets: Ints, volume: float) -> Edges:
    """Loads of messages of ``volume`` bytes between ranks int64[G, M] over their routes."""
    message, link = cluster.route(sources.ravel(), targets.ravel())
    return Edges(message // sources.shape[1], link, volume * cluster.detours(link))


def is_port(links: Ints, cluster: Cluster) -> Flags:
    """Which links are scale-up ports; their numbers come before those of the network's links."""
    return links < int(cluster.nic_tx(np.zeros(1, dtype=np.int64))[0])


def member_edges(links: Ints, load: ArrayLike) -> Edges:
    """One edge per member: its ``load`` (broadcast to [G, N]) on its link of ``links`` int64[G, N]."""
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
        share = level.detour(1) / placement.beside
        pieces += [
            member_edges(cluster.link_of(level.up, ranks), up * share),
            member_edges(cluster.link_of(level.down, ranks), down * share),
        ]
    return pieces


def _crossing(placement: Placement, domains: Domains, place: Ints) -> tuple[Floats, Floats]:
    """Bytes each member's domain sends to, and gets from, domains in other places: float64[G, N] twice."""
    groups, count = len(placement.ranks), placement.num_domains
    pod = np.zeros((groups, count), dtype=np.int64)
    np.put_along_axis(pod, placement.position, place, axis=1)
    weight = (pod[:, domains.source] != pod[:, domains.target]) * domains.volume
    row = np.arange(groups)[:, None] * count

    def by_member(end: Ints) -> Floats:
        total: Floats = np.bincount((row + end).ravel(), weight.ravel(), groups * count).astype(np.float64)
        return np.take_along_axis(total.reshape(groups, count), placement.position, axis=1)

    return by_member(domains.source), by_member(domains.target)


def spread_detour(level: Level, ranks: Ints) -> Floats:
    """Links that a byte to all places of groups int64[G, N] takes at a level, float64[G, 1]."""
    if not level.joined:
        return np.ones((len(ranks), 1))
    place = np.sort(level.place(ranks), axis=1)
    return level.detour((place[:, 1:] != place[:, :-1]).sum(axis=1, keepdims=True))


def concatenate(pieces: Sequence[Edges]) -> Edges:
    """All edges in one list."""
    none = Edges(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    columns = [(each.group_index, each.link_id, each.coefficient) for each in (none, *pieces)]
    return Edges(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def occupancy(edges: Edges, num_links: int) -> Edges:
    """One edge per (group, link), loads added up, none of them zero.

    Sums are rounded to 12 digits: links in symmetric places must get bit-equal coefficients, or they do not
    fold together.
    """
    edges = edges.take(edges.coefficient > 0)
    key, inverse = np.unique(edges.group_index * num_links + edges.link_id, return_inverse=True)
    total: Floats = np.bincount(inverse, edges.coefficient, len(key)).astype(np.float64)
    return Edges(key // num_links, key % num_links, round_significant(total))


def round_significant(values: Floats) -> Floats:
    """Values rounded to 12 significant decimal digits."""
    scale = 10.0 ** (11 - np.floor(np.log10(np.where(values > 0, values, 1.0))))
    return np.round(values * scale) / scale
