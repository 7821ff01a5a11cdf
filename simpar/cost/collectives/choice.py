"""Cost of a collective: the candidates' lines, the choice among them, and the links of the chosen one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simpar.cost.collectives import direct, ring
from simpar.cost.collectives.parameters import parameters
from simpar.cost.collectives.placement import Placement, Shape, place, regular, representative
from simpar.cost.collectives.traffic import Edges, concatenate, occupancy
from simpar.errors import UserError
from simpar.files import choose
from simpar.hardware.cluster import Cluster

Ints = NDArray[np.int64]
ALGORITHMS: dict[str, ModuleType] = {module.NAME: module for module in (ring, direct)}
OPS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "scatter", "gather", "send",
)  # fmt: skip


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
        """Seconds of the slowest group with all links to itself."""
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
    rate_cap_bytes_per_s: float | None


def collective(
    op: str, groups: Ints, cluster: Cluster, *, size_bytes: float, algorithm: str = "auto"
) -> CollectiveCost:
    """Latency and link loads of a collective on groups int64[G, N], all at once.

    ``size_bytes`` is the full tensor: what all_gather produces, reduce_scatter consumes, one rank of an
    all_to_all sends in total, a message carries. ``algorithm`` is "auto" (fastest at that size) or a name.
    Raises UserError for an unknown op, a wrong group, or an algorithm that cannot do it (with those that can).
    """
    placed = place(groups, cluster)
    if placed.members == 1:
        return CollectiveCost("none", "none", 0.0, concatenate([]))
    parts = [_one_shape(op, part, index, size_bytes, algorithm) for part, index in _by_shape(placed)]
    if len(parts) == 1:
        return parts[0]
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
    key = np.stack([placed.position.max(axis=1), placed.beside.max(axis=1), placed.beside.min(axis=1)], axis=1)
    if (key == key[0]).all():
        return [(placed, np.arange(len(key)))]
    _, kind = np.unique(key, axis=0, return_inverse=True)
    indices = [np.flatnonzero(kind.ravel() == k) for k in range(int(kind.max()) + 1)]
    return [(placed.take(index), index) for index in indices]


def _one_shape(op: str, placed: Placement, index: Ints, size_bytes: float, algorithm: str) -> CollectiveCost:
    lines = _lines(op, placed.take(slice(0, 1)), algorithm)
    line = min(lines, key=lambda each: each.latency_s + size_bytes * each.seconds_per_byte)
    edges = _edges(op, placed, line, parameters(placed.cluster))
    relabelled = Edges(index[edges.group_index], edges.link_id, edges.coefficient)
    return CollectiveCost(line.algorithm, line.protocol, line.latency_s, relabelled, line.rate_cap_bytes_per_s)


def _edges(op: str, placed: Placement, line: Line, values: Mapping[str, float]) -> Edges:
    loads = ALGORITHMS[line.algorithm].loads(op, placed)
    return occupancy(
        loads, placed.cluster.num_links, port=values["port_efficiency"], nic=values["nic_efficiency"]
    )


def _lines(op: str, placed: Placement, algorithm: str) -> list[Line]:
    """Candidate lines for one group, on undamaged links. Raises UserError where there are none."""
    choose(op, OPS, "collective")
    reasons = {name: module.refuses(op, placed) for name, module in ALGORITHMS.items()}
    able = [name for name, reason in reasons.items() if reason is None]
    if algorithm != "auto":
        choose(algorithm, (*ALGORITHMS, "auto"), "collective algorithm")
        if algorithm not in able:
            raise UserError(
                f"algorithm {algorithm} for {op}: {reasons[algorithm]}; allowed here: {', '.join(['auto', *able])}"
            )
        able = [algorithm]
    if not able:
        raise UserError(f"{op} on {placed.members} ranks: {'; '.join(sorted({str(r) for r in reasons.values()}))}")
    return [_line(op, placed, name) for name in able]


def _line(op: str, placed: Placement, name: str) -> Line:
    values = parameters(placed.cluster)
    inside, across = ALGORITHMS[name].steps(op, placed.shape)
    latency_s = (
        values["base_latency_s"] + inside * values["port_hop_latency_s"] + across * values["nic_hop_latency_s"]
    )
    cap = values["p2p_channels"] * values["p2p_channel_bytes_per_s"] if op == "send" and across else None
    line = Line(name, "simple", latency_s, 0.0, cap)
    edges = _edges(op, placed, line, values)
    capacity = _undamaged(placed.cluster).link_capacity_bytes_per_s[edges.link_id]
    slope = max(float((edges.coefficient / capacity).max(initial=0.0)), 1 / cap if cap else 0.0)
    return Line(name, "simple", latency_s, slope, cap)


def _undamaged(cluster: Cluster) -> Cluster:
    """The cluster without degradations: the library chooses before it knows them."""
    return replace(cluster, scaling={}) if cluster.scaling else cluster


def collective_time_s(
    op: str, size_bytes: ArrayLike, shape: Shape | tuple[int, int], cluster: Cluster, *, algorithm: str = "auto"
) -> NDArray[np.float64]:
    """Seconds of a collective alone on the cluster, for sizes of any shape.

    ``shape`` is a Shape (see ``shape_of``) or (number of domains, members in each). Raises UserError.
    """
    if not isinstance(shape, Shape):
        shape = regular(*shape)
    sizes = np.asarray(size_bytes, dtype=np.float64)
    if shape.members == 1:
        return np.zeros_like(sizes)
    lines = _lines(op, representative(shape, cluster), algorithm)
    times = [line.latency_s + sizes * line.seconds_per_byte for line in lines]
    best: NDArray[np.float64] = np.min(times, axis=0)
    return best


def algorithms(op: str, group: Ints, cluster: Cluster) -> list[str]:
    """Names of the algorithms that can serve one group int64[N]."""
    placed = place(np.asarray(group)[None, :], cluster)
    return [name for name, module in ALGORITHMS.items() if module.refuses(op, placed) is None]
