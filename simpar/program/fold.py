"""Folding: the coarsest equitable partition of a labelled graph, by colour refinement, verified exactly.

Nodes of one class have, for every label and every class of neighbours, equally many neighbours. Where the
semantics are symmetric (max-min sharing is, a lock or an id tie-break is not), equal classes stay in equal
states for ever, by induction over event instants: one representative stands for its class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Incidence:
    """A labelled undirected graph: ``colour`` int64[nodes], edges ``edge_u - edge_v`` with ``edge_label``."""

    colour: Ints
    edge_u: Ints
    edge_v: Ints
    edge_label: Ints


@dataclass(frozen=True)
class Partition:
    """``class_of`` int64[nodes]; ``representative`` (its first node) and ``size`` int64[classes]."""

    class_of: Ints
    representative: Ints
    size: Ints


def refine(graph: Incidence) -> Partition:
    """Refine the colours until they are equitable, then check that they are.

    A node's hash is its own colour plus the sum over its edges of label times the neighbour's colour, all
    random 64-bit numbers, so that the order of neighbours cannot matter; a round is two sparse products.
    Raises AssertionError if two nodes of a class differ after all (a hash collision).
    """
    from scipy.sparse import coo_array

    shape = (len(graph.colour), len(graph.colour))
    factor = _mix(graph.edge_label.astype(np.uint64)) | np.uint64(1)
    ends = graph.edge_u.astype(np.int32), graph.edge_v.astype(np.int32)
    outward = coo_array((factor, ends), shape=shape)
    inward = coo_array((factor, ends[::-1]), shape=shape)
    colour = _mix(graph.colour.astype(np.uint64))
    num_classes = 0
    while (found := _num_distinct(colour)) > num_classes:
        num_classes = found
        colour = _mix(colour * np.uint64(3) + outward @ colour + inward @ colour)
    partition = _compact(colour)
    _verify(graph, partition)
    return partition


def _mix(value: Hashes) -> Hashes:
    """The finaliser of splitmix64 [Steele, Lea and Flood 2014, doi 10.1145/2714064.2660195]."""
    mixed = value + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _num_distinct(values: Hashes) -> int:
    ordered = np.sort(values)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(len(ordered))


def _compact(colour: Hashes) -> Partition:
    """Classes 0, 1, ... in order of first appearance, so that results do not depend on hash values."""
    _, first, inverse, size = np.unique(colour, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Partition(rank[inverse], first[order].astype(np.int64), size[order].astype(np.int64))


def _verify(graph: Incidence, partition: Partition) -> None:
    """Every node has the colour of its representative and sees the same (label, class) as often."""
    class_of, model = partition.class_of, partition.representative[partition.class_of]
    assert (graph.colour == graph.colour[model]).all(), "two colours share a class"
    seen = _neighbourhoods(graph, class_of)
    degree = _degrees(graph)
    assert (degree == degree[model]).all(), "partition is not equitable: degrees differ"
    first = np.cumsum(degree) - degree
    same = np.repeat(first[model] - first, degree) + np.arange(len(seen))
    assert (seen == seen[same]).all(), "partition is not equitable: neighbours differ"


def _degrees(graph: Incidence) -> Ints:
    num_nodes = len(graph.colour)
    return np.bincount(graph.edge_u, minlength=num_nodes) + np.bincount(graph.edge_v, minlength=num_nodes)


def _neighbourhoods(graph: Incidence, class_of: Ints) -> Ints:
    """What every node sees, node by node and sorted: one number per (label, class of the neighbour)."""
    labels = graph.edge_label - graph.edge_label.min(initial=0)
    if labels.max(initial=0) > len(labels):
        labels = np.unique(labels, return_inverse=True)[1]
    num_classes = int(class_of.max(initial=0)) + 1
    kinds = (int(labels.max(initial=0)) + 1) * num_classes
    assert len(class_of) * kinds < np.iinfo(np.int64).max, "too many nodes, labels and classes for one key"
    base = labels * num_classes
    key = np.concatenate(
        [
            graph.edge_u * kinds + base + class_of[graph.edge_v],
            graph.edge_v * kinds + base + class_of[graph.edge_u],
        ]
    )
    key.sort()  # by node first, since a node's keys lie in a range of their own
    return key - np.repeat(np.arange(len(class_of)) * kinds, _degrees(graph))
