"""Folding: the coarsest equitable partition of a labelled graph, by colour refinement, verified exactly.

Nodes of one class have, for every label and every class of neighbours, equally many neighbours. Where the
semantics are symmetric (max-min sharing is, a lock or an id tie-break is not), equal classes stay in equal states
for ever, by induction over event instants: one representative stands for its class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Incidence:
    """A labelled undirected graph: ``colour`` int64[nodes], edges ``edge_u - edge_v`` with ``edge_label``."""

    colour: Ints
    edge_u: Ints
    edge_v: Ints
    edge_label: Ints


@dataclass(frozen=True)
class Partition:
    """``class_of`` int64[nodes]; ``representative`` and ``size`` int64[classes]."""

    class_of: Ints
    representative: Ints
    size: Ints


def refine(graph: Incidence) -> Partition:
    """Refine the colours until they are equitable, then check that they are.

    Raises AssertionError if two nodes of a class differ after all (a hash collision).
    """
    owner = np.concatenate([graph.edge_u, graph.edge_v])
    other = np.concatenate([graph.edge_v, graph.edge_u])
    label = _mix(np.concatenate([graph.edge_label, graph.edge_label]).astype(np.uint64))
    order = np.argsort(owner, kind="stable")
    owner, other, label = owner[order], other[order], label[order]
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    nodes = owner[starts] if len(starts) else owner
    colour = _compact(graph.colour)
    while True:
        refined = _compact(_round(colour, nodes, starts, other, label))
        if refined.max(initial=0) == colour.max(initial=0):
            break
        colour = refined
    _, representative, size = np.unique(colour, return_index=True, return_counts=True)
    _verify(colour, representative, owner, other, label)
    return Partition(colour, representative.astype(np.int64), size.astype(np.int64))


def _round(
    colour: Ints, nodes: Ints, starts: Ints, other: Ints, label: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """A commutative 64-bit hash of every node's colour and its labelled neighbours' colours."""
    mixed = _mix(colour.astype(np.uint64) + np.uint64(1))
    value = _mix(mixed ^ np.uint64(0x5851F42D4C957F2D))
    if len(starts):
        messages = _mix(mixed[other] + label)
        value[nodes] += np.add.reduceat(messages, starts)
    return value


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 [Steele et al. 2014]."""
    x = value + _MIX
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _compact(values: NDArray[np.int64] | NDArray[np.uint64]) -> Ints:
    """Classes 0, 1, ... in order of first appearance, so that results do not depend on hash values."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse]


def _verify(colour: Ints, representative: Ints, owner: Ints, other: Ints, label: NDArray[np.uint64]) -> None:
    """Every node sees exactly the (label, colour) counts that its representative sees."""
    if not len(owner):
        return
    pair = _pairs(label, colour[other])
    key = owner * np.int64(pair.max() + 1) + pair
    keys, counts = np.unique(key, return_counts=True)
    node, kind = keys // (pair.max() + 1), keys % (pair.max() + 1)
    kinds_of_node = np.bincount(node, minlength=len(colour))
    assert (kinds_of_node == kinds_of_node[representative[colour]]).all(), "partition is not equitable"
    model = representative[colour[node]] * np.int64(pair.max() + 1) + kind
    position = np.minimum(np.searchsorted(keys, model), len(keys) - 1)
    assert (keys[position] == model).all(), "partition is not equitable"
    assert (counts[position] == counts).all(), "partition is not equitable"


def _pairs(label: NDArray[np.uint64], colour: Ints) -> Ints:
    labels = np.unique(label, return_inverse=True)[1]
    return np.unique(labels * np.int64(colour.max() + 1) + colour, return_inverse=True)[1]
