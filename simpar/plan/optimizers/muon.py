"""Muon: momentum, orthogonalised by Newton-Schulz [kellerjordan.github.io/posts/muon, arXiv 2502.16982]."""

from __future__ import annotations

from simpar.plan.optimizers.optimizer import ByMatrix, Optimizer, Work

NEWTON_SCHULZ_STEPS = 5


def newton_schulz(rows: float, columns: float) -> tuple[Work, ...]:
    """One matrix in bf16: with n <= m five times n m n, n n n and n n m products.

    Each step also passes over the matrix (3 m n) and its Gram matrix (4 n n).
    """
    n, m = sorted((rows, columns))
    return (
        Work(
            ((n, n, m), (n, n, n), (n, m, n)),
            "bf16",
            passed_values=3 * m * n + 4 * n * n,
            kernels=3,
            repeated=NEWTON_SCHULZ_STEPS,
        ),
    )


OPTIMIZERS = (
    Optimizer(
        "muon",
        "Momentum of matrices, orthogonalised by Newton-Schulz; AdamW elsewhere [arXiv 2502.16982]",
        "2024-12",
        moments=1,
        others=2,
        by_matrix=ByMatrix(newton_schulz),
    ),
)
