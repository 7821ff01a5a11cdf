"""Trees: latency logarithmic in the domains.

All-reduce is NCCL's pair of binary trees between domains, each on half of the data, with a chain inside a
domain. Broadcast and reduce are binomial trees: the root sends everything once a round.
Sources: Sanders, Speck and Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan"; NCCL graph/trees.cc.
"""

import math

import numpy as np

from simpar.cost.collectives.algorithm import Algorithm
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Domains, Edges, round_of, spread_loads
from simpar.units import Ints


class Tree(Algorithm):
    """Two half trees for all-reduce, a binomial tree for broadcast (and its mirror, reduce)."""

    NAME = "tree"
    RANK = 1
    OPS = ("all_reduce", "broadcast", "reduce")

    def automatic(self, op: str, shape: GroupShape) -> bool:
        """All-reduce across domains."""
        return op == "all_reduce" and shape.num_domains > 1

    def hops(self, op: str, shape: GroupShape) -> dict[str, float]:
        """Up and down: a chain inside the domain (a binomial tree for broadcast), a tree between domains."""
        across = math.ceil(math.log2(shape.num_domains))
        if op != "all_reduce":
            return {"port_hop_us": math.ceil(math.log2(shape.per_domain)), "tree_hop_us": across}
        return {"port_hop_us": 2.0 * (shape.per_domain - 1), "tree_hop_us": 2.0 * across}

    def loads(self, op: str, placement: Placement) -> Edges:
        """What members and domains send to their parents and children."""
        if op == "all_reduce":
            inside = 2.0 * (placement.beside - 1) / placement.beside
            return spread_loads(placement, inside, inside, as_ring(placement.num_domains))
        children = binomial_children(placement.local, placement.beside)
        fed, child = placement.local > 0, np.arange(1, placement.num_domains)
        parent, whole = child & (child - 1), np.ones(len(child))
        if op == "broadcast":
            return spread_loads(placement, children, fed, Domains(parent, child, whole))
        return spread_loads(placement, fed, children, Domains(child, parent, whole))


def two_trees(count: int) -> Domains:
    """Both directions of the two trees: a domain is inner in one of them and a leaf in the other."""
    child, parent = np.arange(1, count), binary_parents(count)[1:]
    children = np.concatenate([child, _mirrored(child, count)])
    parents = np.concatenate([parent, _mirrored(parent, count)])
    source = np.concatenate([children, parents])
    target = np.concatenate([parents, children])
    return Domains(source, target, np.full(len(source), 0.5))


def as_ring(count: int) -> Domains:
    """The two trees as a ring in which every domain sends the load of the busiest one to the next.

    Trees follow the order of the ring, so they cross leaves no more often, and equal domains stay equal.
    """
    trees = two_trees(count)
    busiest = float(np.bincount(trees.source, trees.volume, count).max())
    return round_of(count, busiest if count > 1 else 0.0)


def _mirrored(domain: Ints, count: int) -> Ints:
    """Places in the second tree: mirrored where the number of domains is even, shifted by one where it is odd."""
    return count - 1 - domain if count % 2 == 0 else (domain + 1) % count


def binary_parents(count: int) -> Ints:
    """Parent of every domain in NCCL's in-order binary tree rooted at 0 (which points to itself)."""
    at = np.arange(count, dtype=np.int64)
    bit = at & -at  # the lowest set bit b: inner nodes at height log2 b have children at - b/2 and at + b/2
    up = (at ^ bit) | (bit << 1)
    return np.where(up < count, up, at ^ bit)


def binomial_children(index: Ints, count: Ints) -> Ints:
    """Children of ``index`` in a binomial tree over 0..count-1: index + 2^k below its lowest set bit."""
    children = np.zeros_like(index)
    reach = np.where(index == 0, count, index & -index)
    step = 1
    while step < int(count.max()):
        children += (step < reach) & (index + step < count)
        step *= 2
    return children


ALGORITHMS = (Tree(),)
