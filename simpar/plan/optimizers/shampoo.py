"""Shampoo with AdamW's grafting, in blocks [Shi et al. 2023, arXiv 2309.06497]."""

import numpy as np

from simpar.plan.optimizers.optimizer import ByMatrix, MatrixWork, Optimizer
from simpar.units import Floats, Numbers

BLOCK, ROOT_EVERY = 1024, 100
ROOT_FLOP = 25.0
"""FLOP of an eigendecomposition of an n x n matrix over n^3."""


def _sides(size: Numbers) -> Floats:
    """(side, how many) of the blocks along one dim, float64[2, 2, ...]: whole ones, then the rest."""
    whole, rest = np.divmod(np.asarray(size, dtype=np.float64), BLOCK)
    return np.array([(np.full_like(whole, BLOCK), whole), (rest, rest > 0)])


def _factors(rows: Numbers, columns: Numbers) -> Floats:
    """Values of two factors and their inverse roots, 2 (r^2 + c^2) for every block r x c of at most 1,024 x 1,024."""
    (r, down), (c, along) = np.moveaxis(_sides(rows), 1, 0), np.moveaxis(_sides(columns), 1, 0)
    of_rows = (r * r * down).sum(axis=0) * along.sum(axis=0)
    of_columns = (c * c * along).sum(axis=0) * down.sum(axis=0)
    return np.asarray(2.0 * (of_rows + of_columns))


def _work(rows: float, columns: float) -> list[MatrixWork]:
    """The work for one matrix in fp32: both factors updated, both roots applied, a hundredth of computing the roots."""
    blocks = [
        (r, c, down * along)
        for r, down in _sides(rows).tolist()
        for c, along in _sides(columns).tolist()
        if down * along
    ]
    return [
        MatrixWork(
            ((r, r, c), (c, c, r), (r, c, r), (r, c, c)),
            "fp32",
            pieces=number,
            decomposition_flop=ROOT_FLOP * (r**3 + c**3) * number / ROOT_EVERY,
        )
        for r, c, number in blocks
    ]


OPTIMIZERS = (
    Optimizer(
        "shampoo",
        "Kronecker factors of matrices in blocks of 1,024; AdamW elsewhere [arXiv 2309.06497]",
        "2023-09",
        moments=2,
        others=2,
        by_matrix=ByMatrix(_work, _factors),
    ),
)
