"""Shampoo with AdamW's grafting, in blocks [Shi et al. 2023, arXiv 2309.06497]."""

from __future__ import annotations

import numpy as np

from simpar.plan.optimizers.optimizer import ByMatrix, Optimizer, Work
from simpar.units import Numbers

BLOCK, ROOT_EVERY = 1024, 100
ROOT_FLOP = 25.0
"""FLOP of an eigendecomposition of an n x n matrix over n^3."""


def _sides(size: Numbers) -> list[tuple[Numbers, Numbers]]:
    """(side, how many) of the blocks along one dim: whole ones and the rest."""
    whole, rest = np.asarray(size) // BLOCK, np.asarray(size) % BLOCK
    return [(float(BLOCK), whole), (rest, np.where(rest > 0, 1, 0))]


def _factors(rows: Numbers, columns: Numbers) -> Numbers:
    """Values of two factors and their inverse roots, 2 (r^2 + c^2) for every block r x c of at most 1,024 x 1,024."""
    row_sides, column_sides = _sides(rows), _sides(columns)
    both = sum(r * r * n for r, n in row_sides) * sum(n for _, n in column_sides)
    both += sum(c * c * n for c, n in column_sides) * sum(n for _, n in row_sides)
    return 2.0 * both


def _work(rows: float, columns: float) -> list[Work]:
    """The work for one matrix in fp32: both factors updated, both roots applied, a hundredth of computing the roots."""
    blocks = [
        (float(r), float(c), float(down * along))
        for r, down in _sides(rows)
        for c, along in _sides(columns)
        if down * along
    ]
    return [
        Work(
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
