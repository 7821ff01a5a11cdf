"""Cost of a collective on many groups at once: the fastest algorithm and the links that it loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simpar.cost.collectives import host
from simpar.cost.collectives.lines import (
    Line,
    candidates,
    considered,
    efficiency,
    envelope_s,
    lines,
    protocol_share,
    serving,
)
from simpar.cost.collectives.parameters import parameters
from simpar.cost.collectives.placement import Placement, Shape, place, regular, representative
from simpar.cost.collectives.table import ALGORITHMS, OPS
from simpar.cost.collectives.traffic import Edges, concatenate, occupancy
from simpar.files import choose
from simpar.hardware.cluster import Cluster
from simpar.hardware.levels import Home

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class CollectiveCost:
    """Cost of one collective on each of the groups asked for.

    A group alone on its links takes ``latency_s + size_bytes * max(coefficient / capacity)``, or
    ``latency_s + size_bytes / rate_cap_bytes_per_s`` if that is longer. Where groups differ in shape,
    ``latency_s`` is the largest and ``algorithm`` names all that were chosen.
    """

    algorithm: str
    protocol: str
    latency_s: float
    edges: Edges
    rate_cap_bytes_per_s: float | None = None

    def solo_time_s(self, size_bytes: float, cluster: Cluster) -> float:
        """Seconds of the slowest group, every group with all links to itself."""
        slopes = self.edges.coefficient / cluster.link_capacity_bytes_per_s[self.edges.link_id]
        slope = float(slopes.max(initial=0.0))
        if self.rate_cap_bytes_per_s:
            slope = max(slope, 1 / self.rate_cap_bytes_per_s)
        return self.latency_s + size_bytes * slope


def collective(
    op: str, groups: Ints, cluster: Cluster, *, size_bytes: float, algorithm: str = "auto"
) -> CollectiveCost:
    """Latency and link loads of a collective on groups int64[G, N], all at once.

    ``size_bytes`` is the full tensor: what all_gather produces, reduce_scatter consumes, one rank of an
    all_to_all sends in total, a message (every one of a permute) carries. ``algorithm`` is "auto" (fastest at
    that size) or a name.
    The first member is the root. Raises UserError: unknown op, wrong group, an algorithm that cannot do it.
    """
    choose(op, OPS, "collective")
    placed = place(groups, cluster)
    if placed.members == 1:
        return CollectiveCost("none", "none", 0.0, concatenate([]))
    parts = [
        _one_shape(op, part, (index, home), size_bytes, algorithm)
        for home in cluster.homes(placed.ranks)
        for part, index in _by_shape(place(home.ranks, home.cluster))
    ]
    return parts[0] if len(parts) == 1 else _together(parts)


def _together(parts: Sequence[CollectiveCost]) -> CollectiveCost:
    caps = [part.rate_cap_bytes_per_s for part in parts if part.rate_cap_bytes_per_s]
    return CollectiveCost(
        algorithm="+".join(sorted({part.algorithm for part in parts})),
        protocol="+".join(sorted({part.protocol for part in parts})),
        latency_s=max(part.latency_s for part in parts),
        edges=concatenate([part.edges for part in parts]),
        rate_cap_bytes_per_s=min(caps) if caps else None,
    )


def _by_shape(placed: Placement) -> list[tuple[Placement, Ints]]:
    """Groups of equal shape together, with their indices."""
    kind = placed.shape_number
    if not kind.any():
        return [(placed, np.arange(len(kind)))]
    indices = [np.flatnonzero(kind == k) for k in range(int(kind.max()) + 1)]
    return [(placed.take(index), index) for index in indices]


def _one_shape(
    op: str, placed: Placement, where: tuple[Ints, Home], size_bytes: float, algorithm: str
) -> CollectiveCost:
    index, home = where
    offer = fastest(_offers(op, placed, algorithm), size_bytes)
    line, loads = offer.line, ALGORITHMS[offer.line.algorithm].loads(op, placed)
    pieces = [loads.ports.over(offer.port_share), loads.network.over(offer.nic_share)]
    edges = occupancy(pieces, placed.cluster.num_links)
    edges = moved(Edges(index[edges.group_index], edges.link_id, edges.coefficient), home)
    return CollectiveCost(line.algorithm, line.protocol, line.latency_s, edges, line.rate_cap_bytes_per_s)


@dataclass(frozen=True)
class Offer:
    """One algorithm and protocol on a group: its line, and the shares of raw ports and NICs that it reaches."""

    line: Line
    port_share: float
    nic_share: float


def offers(op: str, group: Ints, cluster: Cluster) -> list[Offer]:
    """What the library considers for an op on one group int64[N], whatever the size."""
    if op in host.LINKS:
        return [Offer(host.line(op, int(group[0]), cluster), 1.0, 1.0)]
    choose(op, OPS, "collective")
    home = cluster.homes(group[None, :])[0]
    return _offers(op, place(home.ranks, home.cluster), "auto")


def fastest(found: Sequence[Offer], size_bytes: float) -> Offer:
    """The offer that the library takes at a size."""
    return min(found, key=lambda offer: offer.line.time_s(size_bytes))


def _offers(op: str, placed: Placement, algorithm: str) -> list[Offer]:
    values = parameters(placed.cluster)
    found = []
    for candidate in candidates(op, placed, algorithm):
        reached = efficiency(candidate, values)
        for line in lines(candidate, values):
            share = protocol_share(line.protocol, values)
            found.append(Offer(line, reached.port * share, reached.nic * share))
    return found


def link_loads(op: str, groups: Ints, cluster: Cluster) -> dict[str, Edges]:
    """By algorithm that the library may choose: bytes on links per byte of size, before any efficiency.

    For groups int64[G, N] at once; ``group_index`` counts rows. Loads of a translated group are the translated
    loads, as long as no member leaves its place in its NIC, node, domain and leaf.
    """
    if op in host.LINKS:
        return {host.NAME: host.loads(op, groups[:, 0], cluster)}
    choose(op, OPS, "collective")
    found: dict[str, list[Edges]] = {}
    for home in cluster.homes(groups) if groups.shape[1] > 1 else ():
        for part, index in _by_shape(place(home.ranks, home.cluster)):
            for module in considered(op, part):
                loads = module.loads(op, part)
                edges = occupancy([loads.ports, loads.network], home.cluster.num_links)
                mine = Edges(index[edges.group_index], edges.link_id, edges.coefficient)
                found.setdefault(module.NAME, []).append(moved(mine, home))
    return {name: concatenate(parts) for name, parts in found.items()}


def moved(edges: Edges, home: Home) -> Edges:
    """Edges of the groups of a home, numbered as they were asked for."""
    links = edges.link_id if home.links is None else home.links[edges.link_id]
    return Edges(home.index[edges.group_index], links, edges.coefficient)


def shape_numbers(groups: Ints, cluster: Cluster) -> Ints:
    """Groups int64[G, N] with equal numbers have lines of equal latency."""
    found, beyond = np.zeros(len(groups), dtype=np.int64), 0
    for home in cluster.homes(groups):
        number = place(home.ranks, home.cluster).shape_number
        found[home.index] = number + beyond
        beyond += int(number.max()) + 1
    return found


def collective_time_s(
    op: str,
    size_bytes: ArrayLike,
    shape: Shape | tuple[int, int],
    cluster: Cluster,
    *,
    algorithm: str = "auto",
) -> NDArray[np.float64]:
    """Seconds of a collective alone on an undamaged cluster, for an array of sizes.

    ``shape`` is a Shape (see :func:`shape_of`) or (number of domains, members in each). Raises UserError.
    """
    choose(op, OPS, "collective")
    shape = shape if isinstance(shape, Shape) else regular(*shape)
    sizes = np.asarray(size_bytes, dtype=np.float64)
    if shape.members == 1:
        return np.zeros_like(sizes)
    values = parameters(cluster)
    found = candidates(op, representative(shape, cluster), algorithm)
    return envelope_s([line for candidate in found for line in lines(candidate, values)], sizes)


def sm_count(algorithm: str, op: str, cluster: Cluster) -> int:
    """Multiprocessors that compute loses while a collective runs (0 on devices without them).

    ``algorithm`` is that of a CollectiveCost. Source: NCCL runs one thread block a channel, 16 to 32 of them
    for rings and trees; reduction in switches needs fewer, a message as many as its channels.
    """
    if cluster.device.kind != "gpu" or algorithm == "none":
        return 0
    names = [choose(name, ALGORITHMS, "collective algorithm") for name in algorithm.split("+")]
    return min(max(ALGORITHMS[name].NUM_SMS.get(op, 0) for name in names), cluster.device.num_sms // 4)


def algorithms(op: str, group: Ints, cluster: Cluster) -> list[str]:
    """Names of the algorithms that can serve one group int64[N]. Raises UserError."""
    choose(op, OPS, "collective")
    home = cluster.homes(np.asarray(group, dtype=np.int64)[None, :])[0]
    return serving(op, place(home.ranks, home.cluster))
