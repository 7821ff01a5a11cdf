"""Columns of the space: rows are numbered by the combinations of their values."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.planner.space.table import are_among, factorize, group_indices


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.bool_])
@pytest.mark.parametrize("widths", [(3,), (40, 2), (10**9, 3, 2), (1, 1), (120, 120, 120)])
def test_rows_are_numbered_by_the_combinations_that_there_are(widths: tuple[int, ...], kind: type) -> None:
    """As sorting all rows says, whether values are close together or far apart; the first row of each stands for it."""
    random = np.random.default_rng(len(widths))
    columns = [random.integers(0, width, 50).astype(kind) for width in widths]
    _, first, index = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    found = factorize(*columns)
    assert found[0].tolist() == first.tolist()
    assert found[1].tolist() == index.ravel().tolist()
    assert [len(each) for each in factorize(np.zeros(0, dtype=np.int64))] == [0, 0]


def test_equal_numbers_come_together() -> None:
    """Each group has the places of one number, in order; of nothing there is none."""
    groups = [group.tolist() for group in group_indices(np.array([7, 2, 7, 0, 2, 7]))]
    assert groups == [[3], [1, 4], [0, 2, 5]]
    assert not list(group_indices(np.zeros(0, dtype=np.int64)))


def test_values_are_found_among_others_that_ascend() -> None:
    """As numpy finds them, also behind the last and among none."""
    rng = np.random.default_rng(3)
    for size in (0, 1, 40):
        ascending, values = np.sort(rng.integers(-5, 60, size)), rng.integers(-9, 70, 200)
        assert are_among(values, ascending).tolist() == np.isin(values, ascending).tolist()
