"""Cost of a collective: the candidates' lines, the choice among them, the links that the chosen one loads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simpar.cost.collectives import (
    direct,
    halving_doubling,
    hierarchical,
    nvls,
    ring,
    sharp,
    star,
    tree,
)
from simpar.cost.collectives.parameters import parameters
from simpar.cost.collectives.placement import Placement, Shape, place, regular, representative
from simpar.cost.collectives.traffic import Edges, Loads, concatenate, occupancy
from simpar.errors import UserError
from simpar.files import choose
from simpar.hardware.cluster import Cluster
from simpar.units import GB, US

Ints = NDArray[np.int64]


class Algorithm(Protocol):
    """What every algorithm's file defines."""

    @property
    def NAME(self) -> str:  # noqa: N802 - constants of a module
        """Its name."""

    @property
    def OPS(self) -> tuple[str, ...]:  # noqa: N802
        """What it can do."""

    @property
    def PROTOCOLS(self) -> tuple[str, ...]:  # noqa: N802
        """Its protocols."""

    @property
    def RATES(self) -> Mapping[str, tuple[str, str]]:  # noqa: N802
        """By op, the parameters that hold its shares of ports and of NICs."""

    def refuses(self, op: str, placement: Placement, /) -> str | None:
        """Why a group cannot use the algorithm, or None."""

    def automatic(self, op: str, shape: Shape, /) -> bool:
        """Whether the library considers it by itself."""

    def hops(self, op: str, shape: Shape, /) -> dict[str, float]:
        """How often each latency parameter counts."""

    def loads(self, op: str, placement: Placement, /) -> Loads:
        """Bytes on links per byte of size."""


ALGORITHMS: dict[str, Algorithm] = {
    "ring": ring,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "hierarchical": hierarchical,
    "nvls": nvls,
    "sharp": sharp,
    "star": star,
    "direct": direct,
}
OPS = tuple(sorted({op for module in ALGORITHMS.values() for op in module.OPS}))


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


@dataclass(frozen=True)
class Line:
    """Time of one algorithm and protocol on a shape: ``latency_s + size * seconds_per_byte``."""

    algorithm: str
    protocol: str
    latency_s: float
    seconds_per_byte: float
    rate_cap_bytes_per_s: float | None = None

    def time_s(self, size_bytes: float) -> float:
        """Seconds for a size."""
        return self.latency_s + size_bytes * self.seconds_per_byte


def collective(
    op: str, groups: Ints, cluster: Cluster, *, size_bytes: float, algorithm: str = "auto"
) -> CollectiveCost:
    """Latency and link loads of a collective on groups int64[G, N], all at once.

    ``size_bytes`` is the full tensor: what all_gather produces, reduce_scatter consumes, one rank of an
    all_to_all sends in total, a message carries. ``algorithm`` is "auto" (fastest at that size) or a name.
    The first member is the root. Raises UserError: unknown op, wrong group, an algorithm that cannot do it.
    """
    choose(op, OPS, "collective")
    placed = place(groups, cluster)
    if placed.members == 1:
        return CollectiveCost("none", "none", 0.0, concatenate([]))
    parts = [_one_shape(op, part, index, size_bytes, algorithm) for part, index in _by_shape(placed)]
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
    beside = placed.beside
    key = np.stack([placed.position.max(axis=1), beside.max(axis=1), beside.min(axis=1)], axis=1)
    if (key == key[0]).all():
        return [(placed, np.arange(len(key)))]
    _, kind = np.unique(key, axis=0, return_inverse=True)
    indices = [np.flatnonzero(kind.ravel() == k) for k in range(int(kind.max()) + 1)]
    return [(placed.take(index), index) for index in indices]


def _one_shape(op: str, placed: Placement, index: Ints, size_bytes: float, algorithm: str) -> CollectiveCost:
    first = placed.take(slice(0, 1))
    line = min(_lines(op, first, algorithm), key=lambda each: each.time_s(size_bytes))
    share = parameters(placed.cluster).get(f"{line.protocol}_efficiency", 1.0)
    edges = _edges(op, placed, line.algorithm)
    edges = Edges(index[edges.group_index], edges.link_id, edges.coefficient / share)
    return CollectiveCost(line.algorithm, line.protocol, line.latency_s, edges, line.rate_cap_bytes_per_s)


def _edges(op: str, placed: Placement, algorithm: str) -> Edges:
    """Links and bytes of an algorithm in its bandwidth-optimal protocol."""
    module = ALGORITHMS[algorithm]
    port, nic = _efficiencies(op, placed, module)
    return occupancy(module.loads(op, placed), placed.cluster.num_links, port=port, nic=nic)


def _efficiencies(op: str, placed: Placement, module: Algorithm) -> tuple[float, float]:
    """Shares of ports and NICs that are reached; a mesh port is the sum of links to every other device."""
    values, shape = parameters(placed.cluster), placed.shape
    port, nic = (values[name] for name in module.RATES[op])
    if placed.cluster.profile.scale_up.kind == "mesh":
        port *= max(shape.per_domain - 1, 1) / (placed.cluster.domain_size - 1)
    doublings = max(math.log2(shape.num_domains) - 1, 0.0)
    return port, nic * (1 - values["nic_scale_loss"]) ** doublings


def _lines(op: str, placed: Placement, algorithm: str) -> list[Line]:
    """Candidate lines of one group, on undamaged links: the choice precedes any degradation."""
    lines: list[Line] = []
    for name in _able(op, placed, algorithm):
        lines += _protocol_lines(op, placed, name, parameters(placed.cluster))
    return lines


def _able(op: str, placed: Placement, algorithm: str) -> list[str]:
    """Algorithms to consider. Raises UserError where the one that is asked for cannot."""
    if algorithm == "auto":
        modules = [module for module in ALGORITHMS.values() if module.automatic(op, placed.shape)]
        return [module.NAME for module in modules if module.refuses(op, placed) is None]
    choose(algorithm, (*ALGORITHMS, "auto"), "collective algorithm")
    reason = ALGORITHMS[algorithm].refuses(op, placed)
    if reason is not None:
        able = [name for name, module in ALGORITHMS.items() if module.refuses(op, placed) is None]
        raise UserError(
            f"algorithm {algorithm} for {op}: {reason}; allowed here: {', '.join(['auto', *able])}"
        )
    return [algorithm]


def _protocol_lines(op: str, placed: Placement, name: str, values: Mapping[str, float]) -> list[Line]:
    edges = _edges(op, placed, name)
    slope = float((edges.coefficient / _undamaged(placed.cluster)[edges.link_id]).max(initial=0.0))
    hops = ALGORITHMS[name].hops(op, placed.shape)
    travel_us = sum(values[key] * count for key, count in hops.items())
    lines = []
    for protocol in ALGORITHMS[name].PROTOCOLS:
        latency_s = (values["base_us"] + travel_us * values.get(f"{protocol}_hop_factor", 1.0)) * US
        per_byte = slope / values.get(f"{protocol}_efficiency", 1.0)
        cap = _rate_cap(op, placed, values)
        lines.append(Line(name, protocol, latency_s, max(per_byte, 1 / cap if cap else 0.0), cap))
    return lines


def _rate_cap(op: str, placed: Placement, values: Mapping[str, float]) -> float | None:
    """Channels bound a point-to-point message between domains."""
    if op != "send" or placed.num_domains == 1:
        return None
    return values["p2p_channels"] * values["p2p_channel_gb_per_s"] * GB


def _undamaged(cluster: Cluster) -> NDArray[np.float64]:
    whole = replace(cluster, scaling={}) if cluster.scaling else cluster
    return whole.link_capacity_bytes_per_s


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
    lines = _lines(op, representative(shape, cluster), algorithm)
    best: NDArray[np.float64] = np.min(
        [line.latency_s + sizes * line.seconds_per_byte for line in lines], axis=0
    )
    return best


def algorithms(op: str, group: Ints, cluster: Cluster) -> list[str]:
    """Names of the algorithms that can serve one group int64[N]. Raises UserError."""
    choose(op, OPS, "collective")
    placed = place(np.asarray(group, dtype=np.int64)[None, :], cluster)
    return [name for name, module in ALGORITHMS.items() if module.refuses(op, placed) is None]
