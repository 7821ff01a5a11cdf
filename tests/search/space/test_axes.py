"""Columns of the space: rows are numbered by the combinations of their values."""

from __future__ import annotations

import numpy as np
import pytest

import simpar
from simpar.errors import UserError
from simpar.search import Constraints, make_problem
from simpar.search.space.axes import numbered, together
from simpar.search.space.rows import enumerate_space


@pytest.mark.parametrize("widths", [(3,), (40, 2), (10**9, 3, 2), (1, 1)])
def test_rows_are_numbered_by_the_combinations_that_there_are(widths: tuple[int, ...]) -> None:
    """As sorting all rows says, whether values are close together or far apart; the first row of each stands for it."""
    random = np.random.default_rng(len(widths))
    columns = [random.integers(0, width, 50) for width in widths]
    _, first, index = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    found = numbered(*columns)
    assert found[0].tolist() == first.tolist()
    assert found[1].tolist() == index.ravel().tolist()
    assert [len(each) for each in numbered(np.zeros(0, dtype=np.int64))] == [0, 0]


def given_degrees(*degrees: int) -> set[int]:
    """Tensor parallel degrees of the rows of a model of 28 heads, of those given."""
    constraints = Constraints(fixed={"tp": degrees, "pp": 1, "micro_batch": 1})
    problem = make_problem(
        "qwen2-57b-a14b",
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=1024, global_batch=8),
        constraints=constraints,
    )
    return set(enumerate_space(problem)["tp"].tolist())


def test_equal_numbers_come_together() -> None:
    """Each group has the places of one number, in order; of nothing there is none."""
    groups = [group.tolist() for group in together(np.array([7, 2, 7, 0, 2, 7]))]
    assert groups == [[3], [1, 4], [0, 2, 5]]
    assert not list(together(np.zeros(0, dtype=np.int64)))


def test_of_given_tensor_degrees_those_stay_that_the_model_allows() -> None:
    """28 heads lie on 1, 2 or 4 ranks: 8 is left out beside others, and alone it is refused with the reason."""
    assert given_degrees(1, 8) == {1}
    assert given_degrees(8, 4, 2) == {2, 4}
    with pytest.raises(
        UserError, match=r"plan.tp = 8: does not divide the attention heads 28; allowed: 1, 2, 4"
    ):
        given_degrees(8)
