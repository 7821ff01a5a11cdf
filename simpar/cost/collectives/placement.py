"""Where the members of process groups sit, and the shape that the cost of a group depends on."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster
from simpar.units import Ints, unique


@dataclass(frozen=True)
class GroupShape:
    """What the cost of a group depends on.

    Each of its ``num_domains`` scale-up domains (nodes, or NVLink racks) holds at most ``per_domain`` and at least
    ``smallest`` of its ``members``. Neighbours in a domain are ``stride`` ranks apart, and its domains are every
    ``domain_stride``-th one. ``node_fill`` is 1 where the group takes whole nodes, 0 where one device per node.
    """

    num_domains: int
    per_domain: int
    smallest: int
    members: int
    node_fill: float = 1.0
    stride: int = 1
    domain_stride: int = 1


@dataclass(frozen=True)
class Placement:
    """Groups of one shape on a cluster: ``ranks`` int64[G, N], in the order of the ring.

    ``position`` int64[G, N] numbers a group's domains 0..n-1 in order of appearance; ``beside`` counts the
    members in a member's own domain, itself included.
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
    def local(self) -> Ints:
        """Index of every member among the members of its domain, int64[G, N]."""
        key = _row_keys(self.position)
        order = np.argsort(key, kind="stable")
        first = np.searchsorted(key[order], key[order])
        local = np.empty_like(key)
        local[order] = np.arange(len(key)) - first
        return local.reshape(self.ranks.shape)

    @cached_property
    def shape(self) -> GroupShape:
        """The shape of the first group, which stands for all of them."""
        ranks, domains = self.ranks[0], self.cluster.domain_of(self.ranks[0])
        per_node = int(np.unique(self.cluster.node_of(ranks), return_counts=True)[1].max())
        distinct, near = unique(domains), np.sort(ranks[domains == domains[0]])
        return GroupShape(
            num_domains=self.num_domains,
            per_domain=int(self.beside[0].max()),
            smallest=int(self.beside[0].min()),
            members=self.members,
            node_fill=(per_node - 1) / max(self.cluster.profile.devices_per_node - 1, 1),
            stride=int(near[1] - near[0]) if len(near) > 1 else 1,
            domain_stride=int(distinct[1] - distinct[0]) if len(distinct) > 1 else 1,
        )

    @cached_property
    def shape_number(self) -> Ints:
        """int64[G]: groups with equal numbers have equal shapes, strides aside; the first group has 0."""
        per_node = count_equal(self.cluster.node_of(self.ranks)).max(axis=1)
        beside = self.beside
        key = np.stack([self.position.max(axis=1), beside.max(axis=1), beside.min(axis=1), per_node])
        if (key == key[:, :1]).all():
            return np.zeros(key.shape[1], dtype=np.int64)
        number: Ints = _appearance(np.unique(key, axis=1, return_inverse=True)[1].reshape(1, -1))[0]
        return number

    def take(self, groups: Ints | slice) -> Placement:
        """The placement of some of the groups."""
        return Placement(self.cluster, self.ranks[groups], self.position[groups], self.beside[groups])


def place(groups: Ints, cluster: Cluster) -> Placement:
    """Locate groups int64[G, N]. Raises UserError: empty group, repeated rank, rank off the cluster."""
    ranks = np.ascontiguousarray(groups, dtype=np.int64)
    if ranks.ndim != 2 or ranks.size == 0:
        raise UserError(f"process groups of shape {ranks.shape}: needed: groups x members")
    low, high = int(ranks.min()), int(ranks.max())
    if low < 0 or high >= cluster.world_size:
        raise UserError(f"process groups use ranks {low}..{high}: allowed 0..{cluster.world_size - 1}")
    ordered = np.sort(ranks, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise UserError("a process group names a rank twice: every rank may appear once")
    domain = cluster.domain_of(ranks)
    return Placement(cluster, ranks, _appearance(domain), count_equal(domain))


def _row_keys(key: Ints) -> Ints:
    """Keys that differ between groups too."""
    return (np.arange(len(key))[:, None] * (int(key.max()) + 1) + key).ravel()


def count_equal(key: Ints) -> Ints:
    """How often each entry of key int64[G, N] occurs in its row."""
    _, inverse, count = np.unique(_row_keys(key), return_inverse=True, return_counts=True)
    return count[inverse].reshape(key.shape)


def _appearance(key: Ints) -> Ints:
    """Entries of each row renumbered 0, 1, ... in order of first appearance."""
    _, first, inverse = np.unique(_row_keys(key), return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    number = rank[inverse].reshape(key.shape)
    return number - number[:, :1]


def regular_shape(num_domains: int, per_domain: int) -> GroupShape:
    """The shape of a group with equally many members in every domain, packed side by side."""
    return GroupShape(num_domains, per_domain, per_domain, num_domains * per_domain)


def representative(shape: GroupShape, cluster: Cluster) -> Placement:
    """One group of a shape, from rank 0 on. Raises UserError where it does not fit on the cluster."""
    inside = np.arange(shape.per_domain) * shape.stride
    across = np.arange(shape.num_domains) * shape.domain_stride * cluster.domain_size
    ranks = (across[:, None] + inside[None, :]).ravel()[: shape.members]
    return place(ranks[None, :], cluster)
