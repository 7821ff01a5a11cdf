"""Which ranks, process groups and links behave alike: the quotient of a layout.

A layout is a labelled incidence graph: ranks belong to process groups, the traffic of a group crosses links.
:func:`build_layout` hands that graph to the colour refinement of :mod:`simpar.program.fold` and reads the
classes back. Nobody declares symmetry: a slow device, a degraded uplink or a leaf size that does not divide
splits exactly the classes that it must.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collectives import CollectiveCost, collective
from simpar.hardware.cluster import Cluster
from simpar.program.flow import quantise
from simpar.program.fold import Incidence, refine

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class GroupKind:
    """All process groups of one kind: ``groups[g, i]`` is the i-th rank of group g.

    ``op`` and ``size_bytes`` name the collective whose traffic pattern places the groups on links;
    ``directed`` groups (a sender and a receiver) tell their members apart by position.
    """

    name: str
    groups: Ints
    op: str
    size_bytes: float
    directed: bool = False


@dataclass(frozen=True)
class GroupClass:
    """Process groups that always behave alike: their kind, one of them, and the rank classes they join."""

    kind: str
    representative: Ints
    members: tuple[int, ...]
    directed: bool = False


@dataclass(frozen=True)
class Layout:
    """The quotient: classes of ranks, groups and links, and how they touch.

    Shapes: ``class_of_rank`` int64[world], ``representative_rank`` and ``multiplicity`` int64[num_classes],
    ``group_class[kind]`` int64[num_classes] (index into ``groups``, -1 where a class has no such group),
    ``link_class`` int64[num_links] (-1 for a link that nobody uses), ``link_capacity_bytes_per_s``
    float64[num_link_classes].
    """

    class_of_rank: Ints
    representative_rank: Ints
    multiplicity: Ints
    group_class: Mapping[str, Ints]
    groups: tuple[GroupClass, ...]
    link_class: Ints
    link_capacity_bytes_per_s: NDArray[np.float64]
    link_names: tuple[str, ...]
    flows_on_link: Mapping[tuple[int, int], int]

    @property
    def num_classes(self) -> int:
        """How many classes of ranks there are."""
        return len(self.representative_rank)

    def route(self, group_class: int, cost: CollectiveCost) -> tuple[Ints, NDArray[np.float64]]:
        """Link classes that a group of the class loads and the bytes on one such link per byte of progress.

        ``cost`` is the cost of one collective on the class's representative group. Groups of a class advance
        in lockstep, so one flow stands for all of them and counts with their number on a single link.
        """
        classes = self.link_class[cost.edges.link_id]
        order = np.unique(classes)
        coefficient = np.zeros(len(order), dtype=np.float64)
        np.maximum.at(coefficient, np.searchsorted(order, classes), quantise(cost.edges.coefficient))
        flows = np.array(
            [self.flows_on_link.get((int(link), group_class), 1) for link in order], dtype=np.float64
        )
        return order, coefficient * flows


def build_layout(cluster: Cluster, kinds: Sequence[GroupKind], rank_colour: Ints) -> Layout:
    """Fold the ranks of a cluster under the given process groups.

    ``rank_colour`` int64[world_size] distinguishes ranks that run different programs or at different speed
    (pipeline stage, straggler factor); everything else follows from groups and links.
    """
    world = len(rank_colour)
    costs = [collective(kind.op, kind.groups, cluster, size_bytes=kind.size_bytes) for kind in kinds]
    edges = _edges(cluster, kinds, costs, world)
    partition = refine(
        Incidence(colour=_colours(cluster, kinds, rank_colour, edges.links), **edges.columns())
    )
    return _read_back(cluster, kinds, world, edges, partition.class_of)


@dataclass(frozen=True)
class _Edges:
    """Edges of the incidence graph; nodes are ranks, then groups, then the links in ``links``."""

    u: Ints
    v: Ints
    label: Ints
    links: Ints
    group_start: Ints
    link_start: int

    def columns(self) -> dict[str, Ints]:
        return {"edge_u": self.u, "edge_v": self.v, "edge_label": self.label}


def _edges(
    cluster: Cluster, kinds: Sequence[GroupKind], costs: Sequence[CollectiveCost], world: int
) -> _Edges:
    sizes = [len(kind.groups) for kind in kinds]
    group_start = world + np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    link_start = int(group_start[-1])
    used = np.zeros(cluster.num_links, dtype=bool)
    for cost in costs:
        used[cost.edges.link_id] = True
    links = np.flatnonzero(used)
    position = np.cumsum(used) - 1
    us, vs, labels = ([np.zeros(0, dtype=np.int64)] for _ in range(3))
    next_label = 1
    for kind, cost, start in zip(kinds, costs, group_start[:-1], strict=True):
        members = kind.groups.shape[1]
        us.append(kind.groups.ravel())
        vs.append(np.repeat(start + np.arange(len(kind.groups)), members))
        role = np.arange(members) if kind.directed else np.zeros(members, dtype=np.int64)
        labels.append(next_label + np.tile(role, len(kind.groups)))
        next_label += members if kind.directed else 1
        distinct, coefficient = _compact(cost.edges.coefficient)
        us.append(start + cost.edges.group_index)
        vs.append(link_start + position[cost.edges.link_id])
        labels.append(next_label + coefficient)
        next_label += len(distinct)
    return _Edges(
        u=np.concatenate(us).astype(np.int64),
        v=np.concatenate(vs).astype(np.int64),
        label=np.concatenate(labels).astype(np.int64),
        links=links,
        group_start=group_start,
        link_start=link_start,
    )


def _compact(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], Ints]:
    """Distinct values and the index of each; a column of one value, the usual case, is not sorted."""
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), dtype=np.int64)
    distinct, index = np.unique(values, return_inverse=True)
    return distinct, index.astype(np.int64)


def _colours(cluster: Cluster, kinds: Sequence[GroupKind], rank_colour: Ints, links: Ints) -> Ints:
    """Initial colours: ranks as given, groups by kind, links by capacity; the three never mix."""
    ranks = np.unique(rank_colour, return_inverse=True)[1].astype(np.int64)
    offset = int(ranks.max(initial=0)) + 1
    groups = np.repeat(offset + np.arange(len(kinds)), [len(kind.groups) for kind in kinds])
    capacity = np.unique(cluster.link_capacity_bytes_per_s[links], return_inverse=True)[1]
    return np.concatenate([ranks, groups, offset + len(kinds) + capacity]).astype(np.int64)


def _read_back(
    cluster: Cluster, kinds: Sequence[GroupKind], world: int, edges: _Edges, class_of: Ints
) -> Layout:
    ranks, representative, class_of_rank, multiplicity = np.unique(
        class_of[:world], return_index=True, return_inverse=True, return_counts=True
    )
    groups: list[GroupClass] = []
    group_class: dict[str, Ints] = {}
    class_of_group = np.full(edges.link_start - world, -1, dtype=np.int64)
    for kind, start in zip(kinds, edges.group_start[:-1], strict=True):
        node_classes = class_of[start : start + len(kind.groups)]
        _, first, compact = np.unique(node_classes, return_index=True, return_inverse=True)
        class_of_group[start - world : start - world + len(kind.groups)] = len(groups) + compact
        group_class[kind.name] = _classes_joined(kind, class_of_rank, len(groups) + compact, len(ranks))
        groups += [_group_class(kind, int(index), class_of_rank) for index in first]
    link_nodes = class_of[edges.link_start :]
    _, first_link, compact_link = np.unique(link_nodes, return_index=True, return_inverse=True)
    link_class = np.full(cluster.num_links, -1, dtype=np.int64)
    link_class[edges.links] = compact_link
    return Layout(
        class_of_rank=class_of_rank.astype(np.int64),
        representative_rank=representative.astype(np.int64),
        multiplicity=multiplicity.astype(np.int64),
        group_class=group_class,
        groups=tuple(groups),
        link_class=link_class,
        link_capacity_bytes_per_s=cluster.link_capacity_bytes_per_s[edges.links[first_link]],
        link_names=tuple(cluster.link_name(int(link)) for link in edges.links[first_link]),
        flows_on_link=_flows_on_link(edges, world, first_link, class_of_group),
    )


def _classes_joined(kind: GroupKind, class_of_rank: Ints, class_of_group: Ints, num_classes: int) -> Ints:
    """The group class that each rank class takes part in (as sender, where the kind is directed)."""
    joined = np.full(num_classes, -1, dtype=np.int64)
    members = kind.groups[:, :1] if kind.directed else kind.groups
    joined[class_of_rank[members].ravel()] = np.repeat(class_of_group, members.shape[1])
    return joined


def _group_class(kind: GroupKind, index: int, class_of_rank: Ints) -> GroupClass:
    ranks = kind.groups[index]
    members = tuple(int(c) for c in np.unique(class_of_rank[ranks]))
    return GroupClass(kind.name, ranks.copy(), members, kind.directed)


def _flows_on_link(
    edges: _Edges, world: int, first_link: Ints, class_of_group: Ints
) -> dict[tuple[int, int], int]:
    """How many flows of each group class share ONE link of each link class, counted on its representative."""
    link_class_of_node = np.full(edges.link_start + len(edges.links), -1, dtype=np.int64)
    link_class_of_node[edges.link_start + first_link] = np.arange(len(first_link))
    at_link = link_class_of_node[edges.v] >= 0
    pairs = np.stack([link_class_of_node[edges.v[at_link]], class_of_group[edges.u[at_link] - world]], axis=1)
    distinct, count = np.unique(pairs, axis=0, return_counts=True)
    return {(int(link), int(group)): int(n) for (link, group), n in zip(distinct, count, strict=True)}
