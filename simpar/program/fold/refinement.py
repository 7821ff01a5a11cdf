"""Folding: the coarsest equitable partition of a labelled graph, by colour refinement, verified exactly.

Nodes of one class have, for every label and every class of neighbours, equally many neighbours. Where the
semantics are symmetric (max-min sharing is, a lock or an id tie-break is not), equal classes stay in equal
states for ever, by induction over event instants: one representative stands for its class.

A node may itself stand for many (an orbit of :mod:`simpar.program.fold.symmetry`); an edge then says how many
neighbours it stands for, seen from either end. The classes are the same as for the graph written out in full.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.units import Ints, unique

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Incidence:
    """A labelled undirected graph: ``colour`` int64[nodes], edges ``edge_u - edge_v`` with ``edge_label``.

    ``seen_by_u`` int64[edges] is the number of neighbours like v that u has by this edge, ``seen_by_v`` the
    reverse (None: one each).
    """

    colour: Ints
    edge_u: Ints
    edge_v: Ints
    edge_label: Ints
    seen_by_u: Ints | None = None
    seen_by_v: Ints | None = None


@dataclass(frozen=True)
class Partition:
    """``class_of`` int64[nodes] and ``representative`` int64[classes], the first node of each."""

    class_of: Ints
    representative: Ints


@dataclass(frozen=True)
class _Ends:
    """Every edge from both ends, by node: ``node`` sees ``count`` neighbours ``other`` by ``label``."""

    node: Ints
    other: Ints
    label: Ints
    count: Ints

    @staticmethod
    def of(graph: Incidence) -> _Ends:
        ones = np.ones(len(graph.edge_u), dtype=np.int64)
        seen_u, seen_v = (ones if s is None else s for s in (graph.seen_by_u, graph.seen_by_v))
        node = np.concatenate([graph.edge_u, graph.edge_v])
        order = np.argsort(node, kind="stable")
        return _Ends(
            node[order],
            np.concatenate([graph.edge_v, graph.edge_u])[order],
            np.concatenate([graph.edge_label, graph.edge_label])[order],
            np.concatenate([seen_u, seen_v])[order],
        )


def refine(graph: Incidence) -> Partition:
    """Refine the colours until they are equitable, then check that they are.

    A node's hash is its own colour (times 3) plus the sum over its neighbours of label times colour, all random 64-bit
    numbers, so the order of neighbours does not matter. Labels are mixed twice and colours once; mixed alike, label a
    times colour b would equal label b times colour a. Raises AssertionError if two nodes of a class differ after all (a
    hash collision).
    """
    ends = _Ends.of(graph)
    label = mix(mix(ends.label.astype(np.uint64)))
    factor = (label | np.uint64(1)) * ends.count.astype(np.uint64)
    starts = np.flatnonzero(np.diff(ends.node, prepend=-1))
    colour = mix(graph.colour.astype(np.uint64))
    num_classes = 0
    while (count := len(unique(colour))) > num_classes:
        num_classes = count
        changed = colour * np.uint64(3)
        if len(starts):
            changed[ends.node[starts]] += np.add.reduceat(factor * colour[ends.other], starts)
        colour = mix(changed)
    partition = by_appearance(colour)
    _verify(graph.colour, ends, partition)
    return partition


def mix(value: Hashes) -> Hashes:
    """A random 64-bit number for every number.

    The finaliser of splitmix64 [Steele, Lea and Flood 2014, doi 10.1145/2714064.2660195].
    """
    mixed = value + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def by_appearance(values: Ints | Hashes) -> Partition:
    """Equal values as classes 0, 1, ... in order of first appearance, so that nothing depends on hash values."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Partition(rank[inverse], first[order].astype(np.int64))


def rows_by_appearance(rows: Ints) -> Partition:
    """:func:`by_appearance` of whole rows, int64[n, columns] with a column at least."""
    data, width = rows.tobytes(), rows.shape[1] * rows.itemsize
    keys = [data[at : at + width] for at in range(0, len(data), width)]
    first: dict[bytes, int] = {}
    for at, key in enumerate(keys):
        first.setdefault(key, at)
    number = dict(zip(first, range(len(first)), strict=True))
    class_of = np.array([number[key] for key in keys], dtype=np.int64)
    return Partition(class_of, np.array([*first.values()], dtype=np.int64))


def _verify(colour: Ints, ends: _Ends, partition: Partition) -> None:
    """Assert that every node has its representative's colour and sees each (label, class) equally often."""
    model = partition.representative[partition.class_of]
    assert (colour == colour[model]).all(), "two colours share a class"
    node, key, count = _neighbourhoods(ends, partition.class_of)
    degree = np.bincount(node, minlength=len(colour))
    assert (degree == degree[model]).all(), "partition is not equitable: degrees differ"
    first = np.cumsum(degree) - degree
    same = np.repeat(first[model] - first, degree) + np.arange(len(key))
    equal = (key == key[same]) & (count == count[same])
    assert equal.all(), "partition is not equitable: neighbours differ"


def _neighbourhoods(ends: _Ends, class_of: Ints) -> tuple[Ints, Ints, Ints]:
    """What every node sees, node by node and sorted: one number per (label, class), and how often."""
    labels = ends.label - ends.label.min(initial=0)
    if labels.max(initial=0) > len(labels):
        labels = np.unique(labels, return_inverse=True)[1]
    num_classes = int(class_of.max(initial=0)) + 1
    kinds = (int(labels.max(initial=0)) + 1) * num_classes
    assert len(class_of) * kinds < np.iinfo(np.int64).max, "too many nodes, labels and classes for one key"
    key = ends.node * kinds + labels * num_classes + class_of[ends.other]
    order = np.argsort(key, kind="stable")
    key, starts = key[order], np.zeros(0, dtype=np.int64)
    if len(key):
        starts = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
    count = np.add.reduceat(ends.count[order], starts) if len(key) else ends.count
    node = ends.node[order][starts]
    return node, key[starts] - node * kinds, count
