"""Which ranks, process groups and links behave alike: the quotient of a layout.

:func:`build_quotient` refines the incidence graph of ranks, groups and links (:mod:`simpar.program.fold.refinement`)
and reads the classes back. Symmetry is not declared anywhere: a slow device, a degraded uplink or a leaf size that does
not divide the nodes splits exactly the classes that it must.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

import numpy as np

from simpar.cost.collectives.lines import Line
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.program.fold.group_routes import GroupKind, in_first_domain
from simpar.program.fold.incidence import IncidenceGraph, build_graph
from simpar.program.fold.refinement import refine
from simpar.program.ir.flow import quantise, slowest_rate
from simpar.program.ir.program import Csr
from simpar.units import Flags, Floats, Ints, unique

QUOTIENT, KEPT = "quotient", 8
"""Key prefix of the quotients that a cluster keeps, and how many it keeps."""


@dataclass(frozen=True)
class GroupClass:
    """Process groups that always behave alike: their kind and the rank classes they join.

    ``ranks`` is a group on which to price their collectives: one of the class, or a translate in a like place of the
    fabric; ``in_first_domain`` is it moved there (:func:`simpar.program.fold.group_routes.in_first_domain`). ``place``
    numbers such groups within the kind of index ``kind_index``.
    """

    kind: str
    place: int
    ranks: Ints
    in_first_domain: Ints
    members: tuple[int, ...]
    directed: bool = False
    kind_index: int = 0


@dataclass(frozen=True, eq=False)
class Route:
    """What a group puts on classes of ``links`` int64[n]: ``coefficients`` float64[n], in bytes per byte of the op.

    Alone on its links the op drains at ``rate`` (:func:`simpar.program.ir.flow.slowest_rate`).
    """

    links: Ints
    coefficients: Floats
    rate: int


@dataclass(frozen=True)
class LinkTraffic:
    """What the groups of a kind put on one link of each class.

    Row e: ``count[e]`` groups of class ``group[e]`` load the link of class ``link[e]`` with
    ``loads[label[e], c]`` bytes each, per byte of an op under an algorithm, for (op, algorithm) ``columns[c]``.
    """

    group: Ints
    link: Ints
    label: Ints
    count: Ints
    loads: Floats
    columns: tuple[tuple[str, str], ...]

    @cached_property
    def _order(self) -> Ints:
        return np.argsort(self.group, kind="stable")

    def of_group(self, group_class: int) -> Ints:
        """The rows of a class of groups, in order."""
        ends = np.searchsorted(self.group, [group_class, group_class + 1], sorter=self._order)
        return self._order[slice(*ends.tolist())]


@dataclass(frozen=True)
class Quotient:
    """The quotient: classes of ranks, groups and links, and how they touch.

    Shapes: ``class_of_rank`` int64[world], ``representative_rank`` and ``multiplicity`` int64[num_classes],
    ``group_class[kind]`` int64[num_classes] (index into ``groups``, -1 where a class has no such group),
    ``link_capacity_bytes_per_s`` float64[num_link_classes], ``link_is_port`` bool[num_link_classes] (scale-up port or
    network). ``traffic`` is by index of the kind; kinds with one name (of stages with different meshes) have no rank
    class in common.
    """

    class_of_rank: Ints
    representative_rank: Ints
    multiplicity: Ints
    group_class: Mapping[str, Ints]
    groups: tuple[GroupClass, ...]
    link_capacity_bytes_per_s: Floats
    link_names: tuple[str, ...]
    link_is_port: Flags
    traffic: tuple[LinkTraffic, ...]

    @property
    def num_classes(self) -> int:
        """Number of rank classes."""
        return len(self.representative_rank)

    @cached_property
    def links_of_groups(self) -> Csr:
        """Link classes that the groups of every class may load, in order."""
        every = [np.zeros((2, 0), dtype=np.int64), *(np.stack([each.group, each.link]) for each in self.traffic)]
        group, link = np.concatenate(every, axis=1)
        count = max(len(self.link_names), 1)
        pairs = unique(group * count + link)
        return Csr.of(pairs // count, pairs % count, len(self.groups))

    @cached_property
    def capacity_bytes_per_s(self) -> Ints:
        """Capacities of link classes as the Program counts them, int64[num_link_classes]."""
        return np.floor(self.link_capacity_bytes_per_s).astype(np.int64)

    @cached_property
    def _routes(self) -> dict[tuple[int, str, Line], Route]:
        return {}

    def route(self, group_class: int, op: str, line: Line) -> Route:
        """The route of an op of the groups of a class.

        Groups of a class advance in lockstep, so one flow stands for all of them: it puts on a link what all
        groups of the class together put on it.
        """
        key = group_class, op, line
        if key not in self._routes:
            self._routes[key] = self._make_route(*key)
        return self._routes[key]

    def _make_route(self, group_class: int, op: str, line: Line) -> Route:
        traffic = self.traffic[self.groups[group_class].kind_index]
        mine = traffic.of_group(group_class)
        raw = traffic.loads[traffic.label[mine], traffic.columns.index((op, line.algorithm))]
        mine, raw = mine[raw > 0], raw[raw > 0]
        share = line.share(self.link_is_port[traffic.link[mine]])
        together = quantise(raw / share) * traffic.count[mine]
        links, index = np.unique(traffic.link[mine], return_inverse=True)
        coefficients = np.bincount(index, together, len(links)).astype(np.float64)
        return Route(links, coefficients, slowest_rate(coefficients, self.capacity_bytes_per_s[links]))


def build_quotient(cluster: Cluster, kinds: Sequence[GroupKind], rank_colour: Ints, *, orbits: bool = True) -> Quotient:
    """Fold the ranks of a cluster under the given process groups.

    ``rank_colour`` int64[world_size] distinguishes ranks that run different programs or at different speed
    (pipeline stage, straggler factor); everything else follows from groups and links. ``orbits`` uses the
    symmetry of mesh and fabric to refine one rank of each orbit; without it all ranks are refined, with the
    same result. The last few layouts of a cluster are kept: plans that differ in schedule or batch have the same.
    """
    key = QUOTIENT, _digest(kinds, rank_colour, orbits)
    if key not in cluster.known:
        for oldest in [each for each in cluster.known if each[0] == QUOTIENT][: 1 - KEPT]:
            del cluster.known[oldest]
        graph = build_graph(cluster, kinds, rank_colour, orbits=orbits)
        cluster.known[key] = _read_back(cluster, graph, refine(graph.incidence).class_of)
    return cast(Quotient, cluster.known[key])


def _digest(kinds: Sequence[GroupKind], rank_colour: Ints, orbits: bool) -> bytes:
    """A digest of everything that determines a quotient on a cluster; ranks and colours fit into 32 bits."""
    said = [(kind.name, kind.ops, kind.directed, kind.groups.shape) for kind in kinds]
    hashed = hashlib.sha256(repr((said, orbits)).encode())
    for each in (rank_colour, *(kind.groups for kind in kinds)):
        hashed.update(np.ascontiguousarray(each, dtype=np.int32).data)
    return hashed.digest()


def _read_back(cluster: Cluster, graph: IncidenceGraph, class_of: Ints) -> Quotient:
    of_rank = class_of[: len(graph.ranks)]
    _, first = np.unique(of_rank, return_index=True)
    of_link = class_of[graph.group_start[-1] :]
    _, first_link, link_class = np.unique(of_link, return_index=True, return_inverse=True)
    links = graph.links[first_link]
    groups: list[GroupClass] = []
    group_class: dict[str, Ints] = {}
    traffic: list[LinkTraffic] = []
    for number, placed in enumerate(graph.placed):
        name, start = placed.kind.name, int(graph.group_start[number])
        nodes = class_of[start : start + len(graph.kinds[number].place)]
        _, first_group, compact = np.unique(nodes, return_index=True, return_inverse=True)
        classes = len(groups) + compact
        group, rank, role, _ = graph.kinds[number].member.T
        rank_class, joined = of_rank[np.searchsorted(graph.ranks, rank)], np.full(len(first), -1)
        joined[rank_class[role == 0]] = classes[group[role == 0]]  # as sender, where the kind is directed
        group_class[name] = np.maximum(group_class.get(name, joined), joined)
        by_group = np.argsort(group, kind="stable")
        ends = np.searchsorted(group, np.stack([first_group, first_group + 1], axis=1), sorter=by_group)
        for index, end in zip(first_group.tolist(), ends.tolist(), strict=True):
            place = int(graph.kinds[number].place[index])
            joins = tuple(sorted({*rank_class[by_group[slice(*end)]].tolist()}))
            directed = placed.kind.directed
            ranks = placed.ranks[place]
            moved = in_first_domain(ranks, cluster)
            groups.append(GroupClass(name, place, ranks, moved, joins, directed, number))
        traffic.append(_traffic(graph, number, classes, first_link, link_class))
    orbits = graph.symmetry.orbits
    class_of_lowest = np.zeros_like(orbits)
    class_of_lowest[graph.ranks] = of_rank
    class_of_rank = class_of_lowest[orbits]
    block = cluster.block_of(links)
    return Quotient(
        class_of_rank=class_of_rank,
        representative_rank=graph.ranks[first],
        multiplicity=np.bincount(class_of_rank),
        group_class=group_class,
        groups=tuple(groups),
        link_capacity_bytes_per_s=cluster.capacity_of(links),
        link_names=tuple(cluster.link_name(int(link)) for link in links),
        link_is_port=np.array([cluster.blocks[index].startswith("port") for index in block], dtype=bool),
        traffic=tuple(traffic),
    )


def _traffic(graph: IncidenceGraph, kind: int, classes: Ints, first_link: Ints, link_class: Ints) -> LinkTraffic:
    """Loads of the groups of a kind, counted on the representative of each class of links."""
    group, link, label, _, count = graph.kinds[kind].load.T
    stands_for_its_class = np.zeros(len(graph.links), dtype=bool)
    stands_for_its_class[first_link] = True
    at = np.searchsorted(graph.links, link)
    mine = np.flatnonzero(stands_for_its_class[at])
    loads = graph.placed[kind].loads
    return LinkTraffic(
        group=classes[group[mine]],
        link=link_class[at[mine]],
        label=label[mine],
        count=count[mine],
        loads=loads.loads,
        columns=loads.columns,
    )
