"""Cost of a collective on many groups at once: the fastest algorithm and the links that it loads."""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simpar.cost.collectives import host
from simpar.cost.collectives.algorithm import base_op, rounds
from simpar.cost.collectives.algorithms import ALGORITHMS, OPS
from simpar.cost.collectives.lines import Line, envelope_s, lines, list_considered, raw_cost, raw_costs, unit_loads
from simpar.cost.collectives.parameters import parameters
from simpar.cost.collectives.placement import GroupShape, Placement, place, regular_shape, representative
from simpar.cost.collectives.traffic import Edges, concatenate, is_port, occupancy
from simpar.dataclass import dataclass
from simpar.files import choose
from simpar.hardware.cluster import Cluster
from simpar.hardware.levels import Home
from simpar.units import Ints


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
        capped = 1 / self.rate_cap_bytes_per_s if self.rate_cap_bytes_per_s else 0.0
        return self.latency_s + size_bytes * max(float(slopes.max(initial=0.0)), capped)


def collective(
    op: str, groups: Ints, cluster: Cluster, *, size_bytes: float, algorithm: str = "auto"
) -> CollectiveCost:
    """Latency and link loads of a collective on groups int64[G, N], all at once.

    ``size_bytes`` is the full tensor: what all_gather produces, reduce_scatter consumes, one rank of an
    all_to_all sends in total, a message (every one of a permute) carries; for a dispatch see its file.
    ``algorithm`` is "auto" (fastest at that size) or a name.
    The first member is the root. Raises UserError: unknown op, wrong group, an algorithm that cannot do it.
    """
    choose(base_op(op), OPS, "collective")
    taken, edges = list[Line](), list[Edges]()
    for part, home in _by_shape(groups, cluster):
        line = choose_fastest(_lines(op, part, algorithm), size_bytes)
        loads = ALGORITHMS[line.algorithm].loads(op, part)
        over = loads.over(line.share(is_port(loads.link_id, part.cluster)))
        edges.append(_renumbered(occupancy(over, part.cluster.num_links), home))
        taken.append(line)
    return CollectiveCost(
        algorithm="+".join(sorted({line.algorithm for line in taken})) or "none",
        protocol="+".join(sorted({line.protocol for line in taken})) or "none",
        latency_s=max((line.latency_s for line in taken), default=0.0),
        edges=concatenate(edges),
        rate_cap_bytes_per_s=min(
            (line.rate_cap_bytes_per_s for line in taken if line.rate_cap_bytes_per_s), default=None
        ),
    )


def _by_shape(groups: Ints, cluster: Cluster) -> Iterator[tuple[Placement, Home]]:
    """Groups by shape, each with the part of the cluster that holds them; none where groups are single ranks."""
    for home in cluster.homes(groups) if groups.shape[-1] > 1 else ():
        placed = place(home.ranks, home.cluster)
        number = placed.shape_number
        for each in range(int(number.max()) + 1):
            mine = np.flatnonzero(number == each)
            part = placed.take(mine) if len(mine) < len(number) else placed
            yield part, Home(home.index[mine], part.ranks, home.cluster, home.links)


def _renumbered(edges: Edges, home: Home) -> Edges:
    """The edges of a home's groups, with the group and link numbers of the whole cluster."""
    links = edges.link_id if home.links is None else home.links[edges.link_id]
    return Edges(home.index[edges.group_index], links, edges.coefficient)


def _lines(op: str, placed: Placement, algorithm: str) -> list[Line]:
    values = parameters(placed.cluster)
    return [line for each in raw_costs(op, placed, algorithm) for line in lines(each, values)]


def offers(op: str, group: Ints, cluster: Cluster) -> list[Line]:
    """The lines that the library considers for an op on one group int64[N], at any size; kept on the cluster."""
    known = cluster.known.get((op, group.tobytes()))
    return cast("list[Line]", known) if known else offers_and_loads(op, group, cluster)[0]


def offers_and_loads(op: str, group: Ints, cluster: Cluster) -> tuple[list[Line], dict[str, Edges]]:
    """The lines that the library considers for an op on one group int64[N], and :func:`link_loads` by algorithm."""
    if op in host.LINKS:
        return [host.line(op, int(group[0]), cluster)], {host.NAME: host.loads(op, group[:1], cluster)}
    choose(base_op(op), OPS, "collective")
    home = cluster.homes(group[None, :])[0]
    placed, values = place(home.ranks, home.cluster), parameters(home.cluster)
    every_line, loads = list[Line](), dict[str, Edges]()
    for algorithm in list_considered(op, placed):
        edges = unit_loads(op, placed, algorithm)
        every_line += lines(raw_cost(op, placed, algorithm, edges), values)
        loads[algorithm.NAME] = _renumbered(edges, home)
    cluster.known[op, group.tobytes()] = every_line
    return every_line, loads


def choose_fastest(every_line: Sequence[Line], size_bytes: float) -> Line:
    """The line that the library chooses at a size: the fastest."""
    return min(every_line, key=lambda line: line.time_s(size_bytes))


def link_loads(op: str, groups: Ints, cluster: Cluster) -> dict[str, Edges]:
    """Bytes on links per byte of size, before any efficiency, by algorithm that the library may choose.

    For groups int64[G, N] at once; ``group_index`` counts rows. A group moved by an offset has the loads moved by the
    same offset, as long as every member keeps its place within its NIC, node, domain and leaf. Raises UserError.
    """
    if op in host.LINKS:
        return {host.NAME: host.loads(op, groups[:, 0], cluster)}
    choose(base_op(op), OPS, "collective")
    result: dict[str, list[Edges]] = {}
    for part, home in _by_shape(groups, cluster):
        for algorithm in list_considered(op, part):
            result.setdefault(algorithm.NAME, []).append(_renumbered(unit_loads(op, part, algorithm), home))
    return {name: concatenate(parts) for name, parts in result.items()}


def shape_numbers(groups: Ints, cluster: Cluster) -> Ints:
    """A number for each of the groups int64[G, N]: where it is equal, so are the latencies of their lines."""
    result, beyond = np.zeros(len(groups), dtype=np.int64), 0
    for home in cluster.homes(groups):
        number = place(home.ranks, home.cluster).shape_number
        result[home.index] = number + beyond
        beyond += int(number.max()) + 1
    return result


def collective_time_s(
    op: str, size_bytes: ArrayLike, shape: GroupShape | tuple[int, int], cluster: Cluster, *, algorithm: str = "auto"
) -> NDArray[np.float64]:
    """Seconds of a collective alone on an undamaged cluster, for an array of sizes in bytes.

    ``shape`` is a GroupShape or (number of domains, members in each). Raises UserError.
    """
    choose(base_op(op), OPS, "collective")
    shape = shape if isinstance(shape, GroupShape) else regular_shape(*shape)
    sizes = np.asarray(size_bytes, dtype=np.float64)
    if shape.members == 1:
        return np.zeros_like(sizes)
    return envelope_s(_lines(op, representative(shape, cluster), algorithm), sizes)


def occupied_s_per_byte(op: str, cluster: Cluster) -> float:
    """Seconds per byte of the whole tensor for which a collective slows down the kernels beside it.

    Its copies hold multiprocessors and memory bandwidth in proportion to bytes, so a collective that waits for a NIC
    disturbs kernels for only part of its duration: the time that its bytes would take at the scale-up rate.
    """
    return rounds(op) / cluster.profile.scale_up.bandwidth
