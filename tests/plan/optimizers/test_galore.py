"""GaLore: states and FLOP by its paper, arXiv 2403.03507."""

from __future__ import annotations

import pytest

from simpar.plan.optimizers import OPTIMIZERS

GALORE = OPTIMIZERS["galore"].by_matrix


@pytest.mark.parametrize(("m", "n"), [(4096, 11008), (11008, 4096), (768, 768)])
def test_states_of_a_matrix(m, n):
    """M r + 2 n r values for m <= n (table 1 of the paper), of rank 128."""
    short, long = sorted((m, n))
    assert float(GALORE.fp32_values(m, n)) == 128 * short + 2 * 128 * long


def test_the_rank_is_at_most_the_shorter_side():
    """A matrix with a side of 64 keeps moments as large as itself, and a square projection."""
    assert float(GALORE.fp32_values(64, 1000)) == 64 * 64 + 2 * 64 * 1000


def test_flop_of_a_step():
    """Down and up again, 2 r m n each, and a 200th of 6 n m^2 + 20 m^3."""
    (work,) = GALORE.work(1024, 4096)
    assert sum(2 * m * n * k for m, n, k in work.products) == 2 * 2 * 128 * 1024 * 4096
    assert work.decomposition_flop == pytest.approx((6 * 4096 * 1024**2 + 20 * 1024**3) / 200)
