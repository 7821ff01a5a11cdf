"""Where the members of process groups sit: domains, neighbours, and the shape that costs depend on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simpar.errors import UserError
from simpar.hardware.cluster import Cluster

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """What the cost of a group depends on.

    ``num_domains`` scale-up domains (nodes, or NVLink racks) of at most ``per_domain`` and at least ``smallest``
    members each; ``stride`` is the distance of neighbours inside a domain, ``domain_stride`` that of domains.
    """

    num_domains: int
    per_domain: int
    smallest: int
    members: int
    stride: int = 1
    domain_stride: int = 1


@dataclass(frozen=True)
class Placement:
    """Groups of one shape on a cluster: ``ranks`` int64[G, N] in the order of the ring.

    ``position`` int64[G, N] numbers the domains of a group 0..n-1 in order of appearance; ``beside`` int64[G, N]
    counts the members in a member's own domain, itself included.
    """

    cluster: Cluster
    ranks: Ints
    position: Ints
    beside: Ints

    @property
    def members(self) -> int:
        """Ranks in a group."""
        return int(self.ranks.shape[1])

    @cached_property
    def num_domains(self) -> int:
        """Domains a group spans."""
        return int(self.position[0].max()) + 1

    @cached_property
    def shape(self) -> Shape:
        """Shape of the first group, which stands for all of them."""
        ranks, domains = self.ranks[0], self.cluster.domain_of(self.ranks[0])
        distinct = np.unique(domains)
        near = np.sort(ranks[domains == domains[0]])
        return Shape(
            num_domains=self.num_domains,
            per_domain=int(self.beside[0].max()),
            smallest=int(self.beside[0].min()),
            members=self.members,
            stride=int(near[1] - near[0]) if len(near) > 1 else 1,
            domain_stride=int(distinct[1] - distinct[0]) if len(distinct) > 1 else 1,
        )

    def take(self, groups: NDArray[np.bool_] | slice) -> Placement:
        """The placement of some of the groups."""
        return Placement(self.cluster, self.ranks[groups], self.position[groups], self.beside[groups])


def place(groups: Ints, cluster: Cluster) -> Placement:
    """Locate groups int64[G, N]. Raises UserError for a group that is empty, repeats a rank or leaves the cluster."""
    ranks = np.ascontiguousarray(groups, dtype=np.int64)
    if ranks.ndim != 2 or ranks.size == 0:
        raise UserError(f"process groups of shape {ranks.shape}: needed: groups x members, at least one of each")
    if ranks.min() < 0 or ranks.max() >= cluster.world_size:
        raise UserError(f"process groups use ranks {ranks.min()}..{ranks.max()}: allowed 0..{cluster.world_size - 1}")
    ordered = np.sort(ranks, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise UserError("a process group names a rank twice: every rank may appear once")
    position, beside = _domains(cluster.domain_of(ranks))
    return Placement(cluster, ranks, position, beside)


def _domains(domain: Ints) -> tuple[Ints, Ints]:
    """Number of every member's domain in order of appearance within its group, and members of that domain."""
    num_groups, members = domain.shape
    row = np.repeat(np.arange(num_groups), members)
    key = row * (int(domain.max()) + 1) + domain.ravel()
    _, first, inverse, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    start = np.full(num_groups, len(order))
    np.minimum.at(start, row[first], number)
    position = number[inverse] - start[row]
    return position.reshape(domain.shape), count[inverse].reshape(domain.shape)


def regular(num_domains: int, per_domain: int) -> Shape:
    """The shape of a group with equally many members in every domain, packed side by side."""
    return Shape(num_domains, per_domain, per_domain, num_domains * per_domain)


def representative(shape: Shape, cluster: Cluster) -> Placement:
    """One group of a regular shape at the start of the cluster. Raises UserError where it does not fit."""
    inside = np.arange(shape.per_domain) * shape.stride
    across = np.arange(shape.num_domains) * shape.domain_stride * cluster.domain_size
    ranks = (across[:, None] + inside[None, :]).ravel()[: shape.members]
    return place(ranks[None, :], cluster)


def shape_of(group: Ints, cluster: Cluster) -> Shape:
    """The shape of one process group int64[N]."""
    return place(np.asarray(group, dtype=np.int64)[None, :], cluster).shape
