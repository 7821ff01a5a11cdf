"""The table of algorithms, in the order in which the first of several equally fast ones is taken."""

from __future__ import annotations

from simpar.cost.collectives.algorithm import Algorithm
from simpar.cost.collectives.direct import Direct
from simpar.cost.collectives.halving_doubling import HalvingDoubling
from simpar.cost.collectives.hierarchical import Hierarchical
from simpar.cost.collectives.nvls import Nvls
from simpar.cost.collectives.ring import Ring
from simpar.cost.collectives.sharp import Sharp
from simpar.cost.collectives.star import Star
from simpar.cost.collectives.tree import Tree

ALGORITHMS: dict[str, Algorithm] = {
    each.NAME: each
    for each in (Ring(), Tree(), HalvingDoubling(), Hierarchical(), Nvls(), Sharp(), Star(), Direct())
}
OPS = tuple(sorted({op for each in ALGORITHMS.values() for op in each.OPS}))
