"""Algorithms of collectives, each a file that says which hops it takes in sequence and how many bytes it puts on links.

``ALGORITHMS`` are those that the files of this folder declare, in the order in which the first of several equally fast
ones is taken. To add one, add a file with what :class:`~simpar.cost.collectives.algorithm.Algorithm` asks.
"""

from simpar.cost.collectives.algorithm import Algorithm
from simpar.declared import entries


def _listed() -> dict[str, Algorithm]:
    declared: list[Algorithm] = entries(__name__, __path__, "ALGORITHMS")
    return {each.NAME: each for each in sorted(declared, key=lambda one: one.RANK)}


ALGORITHMS = _listed()
OPS = tuple(sorted({op for each in ALGORITHMS.values() for op in each.OPS}))
