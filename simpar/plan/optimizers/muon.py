"""Muon: momentum, orthogonalised by Newton-Schulz [kellerjordan.github.io/posts/muon, arXiv 2502.16982]."""

from simpar.plan.optimizers.optimizer import ByMatrix, MatrixWork, Optimizer

NEWTON_SCHULZ_STEPS = 5


def newton_schulz(rows: float, columns: float, ranks: int = 1) -> tuple[MatrixWork, ...]:
    """The work for one n x m matrix, n <= m, in bf16: five steps of three products, 4 n^2 m + 2 n^3 FLOP each.

    Each step also passes over values of the matrix (3 m n) and of its Gram matrix (4 n n). Of ``ranks`` that work on a
    matrix together, each has m / ranks of its columns, and the whole Gram matrix once that is summed.
    """
    n, m = sorted((rows, columns))
    m /= ranks
    return (
        MatrixWork(
            ((n, n, m), (n, n, n), (n, m, n)),
            "bf16",
            passed_values=3 * m * n + 4 * n * n,
            kernels=3,
            repeated=NEWTON_SCHULZ_STEPS,
        ),
    )


def gram_values(rows: float, columns: float) -> float:
    """Values of the Gram matrices that ranks sum, one in each step."""
    return NEWTON_SCHULZ_STEPS * min(rows, columns) ** 2


OPTIMIZERS = (
    Optimizer(
        "muon",
        "Momentum of matrices, orthogonalised by Newton-Schulz; AdamW elsewhere [arXiv 2502.16982]",
        "2024-12",
        moments=1,
        others=2,
        by_matrix=ByMatrix(newton_schulz, shared_work=newton_schulz, summed_values=gram_values),
    ),
)
