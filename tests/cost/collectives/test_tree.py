"""Trees: logarithmic latency, a pair of trees, binomial broadcast."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.algorithms.tree import as_ring, binary_parents, binomial_children, two_trees
from simpar.cost.collectives.choice import collective, collective_time_s
from simpar.cost.collectives.placement import regular_shape
from simpar.units import US

from .conftest import make_toy


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 13, 16, 100])
def test_two_trees_are_trees(count: int) -> None:
    """Each tree joins all domains, and no domain is inner in both by more than four links in all."""
    parent = binary_parents(count)
    for start in range(count):
        at, seen = start, 0
        while at != 0:
            at, seen = int(parent[at]), seen + 1
            assert seen <= 2 * count.bit_length()
    sent = np.bincount(two_trees(count).source, two_trees(count).volume, count)
    assert sent.sum() == pytest.approx(2.0 * (count - 1))
    assert sent.max() <= 2.0


@pytest.mark.parametrize(("count", "volume"), [(1, 0.0), (2, 1.0), (3, 1.5), (4, 2.0), (64, 2.0), (100, 2.0)])
def test_busiest_domain(count: int, volume: float) -> None:
    """Two domains exchange the data once; from four on the busiest sends it twice."""
    assert as_ring(count).volume.max() == volume


def test_latency_is_logarithmic() -> None:
    """Doubling the nodes adds one hop up and one down."""
    toy = make_toy(64, tree_hop_us=10.0, port_hop_us=1.0)
    times = [
        float(collective_time_s("all_reduce", 0.0, regular_shape(n, 8), toy, algorithm="tree")) for n in (1, 2, 4, 64)
    ]
    assert times == pytest.approx([14 * US, 34 * US, 54 * US, 134 * US])


@pytest.mark.parametrize("count", range(1, 18))
def test_binomial_children(count: int) -> None:
    """A binomial tree has one parent for all but the root, which has ceil(log2 N) children."""
    children = binomial_children(np.arange(count), np.full(count, count))
    assert children.sum() == count - 1
    assert children[0] == (count - 1).bit_length()


def test_reduce_mirrors_broadcast() -> None:
    """What a broadcast sends, a reduce receives."""
    toy = make_toy(2)
    group = np.arange(16)[None, :]
    loads = {}
    for op in ("broadcast", "reduce"):
        edges = collective(op, group, toy, size_bytes=1e9, algorithm="tree").edges
        loads[op] = {toy.link_name(k): c for k, c in zip(edges.link_id.tolist(), edges.coefficient, strict=True)}
    mirrored = {
        name.replace("_tx", "_??").replace("_rx", "_tx").replace("_??", "_rx"): c
        for name, c in loads["broadcast"].items()
    }
    assert mirrored == loads["reduce"]
