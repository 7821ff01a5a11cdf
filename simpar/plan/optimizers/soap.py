"""SOAP: Adam in the eigenbasis of Shampoo's factors [Vyas et al. 2024, arXiv 2409.11321, algorithms 3 and 4].

Of a matrix r x c it keeps both factors and both bases, 2 (r^2 + c^2) values beside Adam's two moments. Every step turns
gradient and momentum into the basis and the update back (six products) and adds to the factors (two); every tenth step
turns the bases by one power iteration and a QR decomposition. A side beyond 10,000 has no factor.
"""

import numpy as np

from simpar.plan.optimizers.optimizer import ByMatrix, MatrixWork, Optimizer
from simpar.units import Numbers

LARGEST_SIDE, TURNED_EVERY = 10_000, 10
QR_FLOP = 8 / 3
"""FLOP of a Householder QR decomposition of an n x n matrix with its Q, over n^3."""
TURNS = 3
"""Gradient, momentum and update."""


def _bases(rows: Numbers, columns: Numbers) -> Numbers:
    """Values of a factor and a basis for every side that has them: 2 side^2."""
    return sum(2.0 * np.where(np.asarray(side) <= LARGEST_SIDE, side, 0) ** 2 for side in (rows, columns))


def _work(rows: float, columns: float) -> list[MatrixWork]:
    """The work for one matrix in fp32, per side: its part of the turns, its factor, a tenth of turning its basis."""
    result = []
    for side, other in ((rows, columns), (columns, rows)):
        if side <= LARGEST_SIDE:
            result.append(MatrixWork(((side, other, side),), "fp32", repeated=TURNS))
            result.append(
                MatrixWork(((side, side, other),), "fp32", decomposition_flop=QR_FLOP * side**3 / TURNED_EVERY)
            )
            result.append(MatrixWork(((side, side, side),), "fp32", pieces=1 / TURNED_EVERY))
    return result


OPTIMIZERS = (
    Optimizer(
        "soap",
        "Adam in the eigenbasis of Kronecker factors of matrices; AdamW elsewhere [arXiv 2409.11321]",
        "2024-09",
        moments=2,
        others=2,
        by_matrix=ByMatrix(_work, _bases),
    ),
)
