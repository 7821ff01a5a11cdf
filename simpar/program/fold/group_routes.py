"""Process groups on a fabric: which links they load, costed once for all groups in places that are alike.

Of groups that are translates of each other, one is costed. Loads are those of all algorithms that the library may
choose for the ops of a kind, so that groups that fold together do so for every size of message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from simpar.cost.collectives.choice import link_loads
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.program.fold.symmetry import GroupPattern, Symmetry, fixed_digits
from simpar.units import Flags, Floats, Ints, unique

LOADS = "loads"
"""What the loads of groups are kept under (:attr:`Cluster.known`)."""
MOST_KEPT_RANKS = 1024
"""Members of all groups whose loads are kept together."""


@dataclass(frozen=True)
class GroupKind:
    """All process groups of one kind: ``groups[g, i]`` is the i-th rank of group g.

    ``ops`` are the collectives that the groups run; their traffic places them on links. ``directed`` groups (a
    sender and a receiver) tell their members apart by position.
    """

    name: str
    groups: Ints
    ops: tuple[str, ...]
    directed: bool = False


@dataclass(frozen=True)
class KindLoads:
    """Loads of some groups of one kind: edge e puts ``loads[label[e], c]`` on ``link[e]`` for ``columns[c]``.

    ``row`` int64[E] is the group of each edge, ``columns`` are (op, algorithm), loads are per byte of the op's size.
    """

    row: Ints
    link: Ints
    label: Ints
    loads: Floats
    columns: tuple[tuple[str, str], ...]


def in_first_domain(ranks: Ints, cluster: Cluster) -> Ints:
    """The group int64[N] moved to begin in the first domain, where that costs the same.

    Groups stay in mixed clusters, and where they span domains and leaf switches bind.
    """
    size = cluster.domain_size
    first, last = int(ranks.min()) // size, int(ranks.max()) // size
    if cluster.is_mixed or (cluster.leaves_bind and first != last):
        return ranks
    return ranks - first * size


def kind_loads(kind: GroupKind, groups: Ints, cluster: Cluster) -> KindLoads:
    """Loads of groups int64[G, N] of a kind under every algorithm, edges ordered by (group, link).

    Links that can never be the narrowest of a route are left out: they change no time, and would split classes. Meshes
    have most of their places in common, so the loads of few groups are kept.
    """
    if groups.size > MOST_KEPT_RANKS:
        return _loads(kind, groups, cluster)
    key = " ".join((LOADS, *kind.ops, *map(str, groups.shape))), groups.tobytes()
    if key not in cluster.known:
        cluster.known[key] = _loads(kind, groups, cluster)
    return cast(KindLoads, cluster.known[key])


def _loads(kind: GroupKind, groups: Ints, cluster: Cluster) -> KindLoads:
    result = {
        (op, algorithm): edges.take(cluster.can_bind(edges.link_id))
        for op in kind.ops
        for algorithm, edges in link_loads(op, groups, cluster).items()
    }
    keys = [edges.group_index * cluster.num_links + edges.link_id for edges in result.values()]
    every = unique(np.concatenate([np.zeros(0, dtype=np.int64), *keys]))
    table = np.zeros((len(every), len(result)))
    for column, (edges, key) in enumerate(zip(result.values(), keys, strict=True)):
        table[np.searchsorted(every, key), column] = edges.coefficient
    label = _row_numbers(table)
    loads = np.zeros((int(label.max(initial=-1)) + 1, len(result)))
    loads[label] = table
    return KindLoads(every // cluster.num_links, every % cluster.num_links, label, loads, tuple(result))


def _row_numbers(table: Floats) -> Ints:
    """Equal numbers for equal rows."""
    number = np.zeros(len(table), dtype=np.int64)
    for column in table.T:
        if len(column) and (column != column[0]).any():
            values, index = np.unique(column, return_inverse=True)
            number = np.unique(number * len(values) + index, return_inverse=True)[1]
    return number


@dataclass(frozen=True)
class PlacedGroups:
    """The K places of a kind's groups that differ for the fabric; every group is a translate of one of them.

    A place is a pattern and a first member, ``pattern`` and ``first`` int64[K]; ``ranks`` int64[K, N] are its members,
    ``varying`` bool[digits, K] the digits in which these differ.
    """

    kind: GroupKind
    patterns: Sequence[GroupPattern]
    pattern: Ints
    first: Ints
    ranks: Ints
    varying: Flags
    loads: KindLoads

    @staticmethod
    def of(kind: GroupKind, patterns: Sequence[GroupPattern], symmetry: Symmetry, cluster: Cluster) -> PlacedGroups:
        """The places of a kind, with their loads."""
        lowest = [unique(_home(each, each.first[symmetry.representative_groups(each)], symmetry)) for each in patterns]
        pattern = np.repeat(np.arange(len(patterns)), [len(first) for first in lowest])
        first = np.concatenate(lowest)
        ranks = first[:, None] + np.stack([each.offset for each in patterns])[pattern]
        fixed = np.stack([fixed_digits(each, symmetry.digits) for each in patterns])[pattern]
        return PlacedGroups(kind, patterns, pattern, first, ranks, ~fixed.T, kind_loads(kind, ranks, cluster))

    def place_of(self, pattern: int, first: Ints, symmetry: Symmetry) -> Ints:
        """The place that groups of a pattern are translates of."""
        mine = np.flatnonzero(self.pattern == pattern)
        home = _home(self.patterns[pattern], first, symmetry)
        return mine[np.searchsorted(self.first[mine], home)]


def _home(pattern: GroupPattern, first: Ints, symmetry: Symmetry) -> Ints:
    """First members with those regular digits set to zero that all members of a group share."""
    digits = symmetry.digits
    for d in np.flatnonzero(symmetry.regular & fixed_digits(pattern, digits)):
        first = first - first // digits.stride[d] % digits.size[d] * digits.stride[d]
    return first


@dataclass(frozen=True)
class RankLinks:
    """Links by block and rank: ``depends`` bool[digits, blocks] says which digits of a rank determine its link."""

    cluster: Cluster
    depends: Flags

    @staticmethod
    def of(cluster: Cluster, symmetry: Symmetry) -> RankLinks:
        """Links of a cluster as functions of the digits."""
        probe = np.array([0, *symmetry.digits.stride])
        links = np.stack([cluster.link_of(block, probe) for block in cluster.blocks])
        return RankLinks(cluster, (links[:, 1:] != links[:, :1]).T)

    def link(self, block: Ints, ranks: Ints) -> Ints:
        """The link of every rank in the block with that index."""
        links = np.empty_like(ranks)
        for index in unique(block):
            mine = block == index
            links[mine] = self.cluster.link_of(self.cluster.blocks[index], ranks[mine])
        return links


def orbit_loads(placed: PlacedGroups, symmetry: Symmetry, fabric: RankLinks) -> tuple[Ints, ...] | None:
    """Loads of places on one link of each orbit, or None where the links of an orbit are not loaded alike.

    Columns are the place, the block and the owner of the link, the row of the loads, and how many of the group's links
    are in the link's orbit.
    """
    loads, cluster = placed.loads, fabric.cluster
    block, owner = cluster.block_of(loads.link), cluster.owner_of(loads.link)
    lowest = fabric.link(block, symmetry.orbits[owner])
    key, wanted = (loads.row * cluster.num_links + link for link in (loads.link, lowest))
    at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
    if not ((key[at] == wanted) & (loads.label[at] == loads.label)).all():
        return None
    which = fabric.depends[:, block] & placed.varying[:, loads.row]
    mine = np.flatnonzero(lowest == loads.link)
    num_links = symmetry.num_like(owner[mine], which[:, mine])
    if num_links.sum() != len(key):
        return None
    return loads.row[mine], block[mine], owner[mine], loads.label[mine], num_links
