"""GaLore: AdamW of gradients projected to a low rank [Zhao et al. 2024, arXiv 2403.03507, algorithm 2].

Of a matrix with sides s <= l it keeps a projection (s r values) and both moments of the projected gradient (2 r l).
Every step projects the gradient (2 r l s FLOP) and brings the update back (the same); every 200th step finds the
projection by a singular value decomposition, 6 l s^2 + 20 s^3 FLOP [Golub and Van Loan, Matrix Computations, 4th
edition, figure 8.6.1: R-SVD with U and V]. Rank and gap are the defaults of transformers' ``galore_adamw``.
"""

import numpy as np

from simpar.plan.optimizers.optimizer import ByMatrix, MatrixWork, Optimizer
from simpar.units import Numbers

RANK, PROJECTED_EVERY = 128, 200


def _kept(rows: Numbers, columns: Numbers) -> Numbers:
    """Values of the projection and of both moments."""
    short, long = np.minimum(rows, columns), np.maximum(rows, columns)
    return np.asarray(np.minimum(RANK, short) * (short + 2.0 * long))


def _work(rows: float, columns: float) -> tuple[MatrixWork, ...]:
    """Both products, passes over moments and the projected gradient (6 r l) and the scaled update (2 s l), the SVD."""
    short, long = sorted((rows, columns))
    rank = min(float(RANK), short)
    return (
        MatrixWork(
            ((rank, long, short), (short, long, rank)),
            "bf16",
            passed_values=6 * rank * long + 2 * short * long,
            kernels=2,
            decomposition_flop=(6 * long * short**2 + 20 * short**3) / PROJECTED_EVERY,
        ),
    )


OPTIMIZERS = (
    Optimizer(
        "galore",
        "AdamW of gradients of matrices projected to rank 128; AdamW elsewhere [arXiv 2403.03507]",
        "2024-03",
        moments=0,
        others=2,
        by_matrix=ByMatrix(_work, _kept),
    ),
)
