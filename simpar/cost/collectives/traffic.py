"""From the traffic pattern of an algorithm to bytes on links, for many groups at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collectives.placement import Placement

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Edges:
    """Group ``group_index[e]`` puts ``coefficient[e]`` bytes on ``link_id[e]`` per byte of size; pairs are unique."""

    group_index: Ints
    link_id: Ints
    coefficient: Floats

    def take(self, which: NDArray[np.bool_]) -> Edges:
        """Some of the edges."""
        return Edges(self.group_index[which], self.link_id[which], self.coefficient[which])


@dataclass(frozen=True)
class Loads:
    """Bytes on links per byte of size, before efficiencies: on scale-up ports, and on NICs and leaf links."""

    ports: Edges
    network: Edges


@dataclass(frozen=True)
class Traffic:
    """What an algorithm moves, in bytes per byte of size, before efficiencies.

    ``port_tx``, ``port_rx`` broadcast to [G, N]: on each member's scale-up port. The domains exchange
    ``volume[k]`` bytes from domain ``source[k]`` to domain ``target[k]``, spread over their members' NICs.
    """

    port_tx: Floats | float
    port_rx: Floats | float
    source: Ints
    target: Ints
    volume: Floats


NO_DOMAINS: tuple[Ints, Ints, Floats] = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def spread(traffic: Traffic, placement: Placement) -> Loads:
    """Loads of a pattern: ports by member; NICs and leaf links by what domains exchange."""
    cluster, ranks = placement.cluster, placement.ranks
    ports = [
        _members(placement, cluster.port_tx(ranks), traffic.port_tx),
        _members(placement, cluster.port_rx(ranks), traffic.port_rx),
    ]
    network = _between_domains(traffic, placement) if len(traffic.volume) else []
    return Loads(concatenate(ports), concatenate(network))


def concatenate(pieces: list[Edges]) -> Edges:
    """All edges in one list."""
    if not pieces:
        return Edges(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return Edges(
        np.concatenate([piece.group_index for piece in pieces]),
        np.concatenate([piece.link_id for piece in pieces]),
        np.concatenate([piece.coefficient for piece in pieces]),
    )


def _members(placement: Placement, links: Ints, load: Floats | float) -> Edges:
    """One edge a member: its load on its own link."""
    groups, members = placement.ranks.shape
    index = np.repeat(np.arange(groups), members)
    loads = np.broadcast_to(np.asarray(load, dtype=np.float64), (groups, members)).ravel()
    return Edges(index, links.ravel(), loads)


def _between_domains(traffic: Traffic, placement: Placement) -> list[Edges]:
    """NIC and leaf edges: every domain spreads what it sends and receives over its members."""
    cluster, ranks, count = placement.cluster, placement.ranks, placement.num_domains
    sent = np.bincount(traffic.source, traffic.volume, count)
    received = np.bincount(traffic.target, traffic.volume, count)
    pieces = [
        _members(placement, cluster.nic_tx(ranks), sent[placement.position] / placement.beside),
        _members(placement, cluster.nic_rx(ranks), received[placement.position] / placement.beside),
    ]
    if cluster.num_leaves:
        up, down = _crossing(traffic, placement)
        pieces += [
            _members(placement, cluster.leaf_up(ranks), up / placement.beside),
            _members(placement, cluster.leaf_down(ranks), down / placement.beside),
        ]
    return pieces


def _crossing(traffic: Traffic, placement: Placement) -> tuple[Floats, Floats]:
    """Bytes each member's domain sends to, and receives from, domains under other leaves: float64[G, N] twice."""
    groups, count = len(placement.ranks), placement.num_domains
    leaf = np.zeros((groups, count), dtype=np.int64)
    out = placement.cluster.profile.scale_out
    pods = placement.cluster.node_of(placement.ranks) // int((out.nodes_per_leaf if out else None) or 1)
    np.put_along_axis(leaf, placement.position, pods, axis=1)
    differs = leaf[:, traffic.source] != leaf[:, traffic.target]
    weighted = differs * traffic.volume
    up, down = np.zeros((groups, count)), np.zeros((groups, count))
    rows = np.arange(groups)[:, None]
    np.add.at(up, (rows, traffic.source[None, :]), weighted)
    np.add.at(down, (rows, traffic.target[None, :]), weighted)
    return np.take_along_axis(up, placement.position, axis=1), np.take_along_axis(down, placement.position, axis=1)


def occupancy(loads: Loads, num_links: int, *, port: float, nic: float) -> Edges:
    """One edge per (group, link): loads divided by the share of the link that the algorithm reaches, added up.

    Sums are rounded to 12 digits, so that links in symmetric places get bit-equal coefficients and fold together.
    """
    edges = concatenate([loads.ports, loads.network])
    weight = np.concatenate([loads.ports.coefficient / port, loads.network.coefficient / nic])
    keep = weight > 0
    key, inverse = np.unique(edges.group_index[keep] * num_links + edges.link_id[keep], return_inverse=True)
    total = np.bincount(inverse, weight[keep], len(key))
    return Edges(key // num_links, key % num_links, significant(total))


def significant(values: Floats, digits: int = 12) -> Floats:
    """Values rounded to a number of significant decimal digits."""
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.where(values > 0, values, 1.0))))
    return np.round(values * scale) / scale
