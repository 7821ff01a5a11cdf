"""Collective algorithms: latency and bytes per link.

A collective is a few straight lines ``latency + size * seconds_per_byte``, one per algorithm and protocol;
the automatic choice is the lowest line at the size asked for, as NCCL's tuner does. Each algorithm is one
file that says which hops it takes in sequence (latency) and how many bytes it puts on which links.
``ALGORITHMS`` is their table, in the order in which the first of several equally fast ones is taken.
"""

from __future__ import annotations

from simpar.cost.collectives.algorithm import Algorithm
from simpar.cost.collectives.direct import Direct
from simpar.cost.collectives.dispatch import Dispatch
from simpar.cost.collectives.halving_doubling import HalvingDoubling
from simpar.cost.collectives.hierarchical import Hierarchical
from simpar.cost.collectives.nvls import Nvls
from simpar.cost.collectives.ring import Ring
from simpar.cost.collectives.sharp import Sharp
from simpar.cost.collectives.star import Star
from simpar.cost.collectives.tree import Tree

ALGORITHMS: dict[str, Algorithm] = {
    each.NAME: each
    for each in (
        Ring(),
        Tree(),
        HalvingDoubling(),
        Hierarchical(),
        Nvls(),
        Sharp(),
        Star(),
        Direct(),
        Dispatch(),
    )
}
OPS = tuple(sorted({op for each in ALGORITHMS.values() for op in each.OPS}))
