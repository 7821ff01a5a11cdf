"""Rows swept with the tables of their schedules."""

import numpy as np
import pytest

from simpar.search.bound.batched_sweep import Sweeps


@pytest.fixture(scope="module")
def some_rows(frontier, every):
    """A few rows of several schedules."""
    return every[::5]


def test_rows_together_are_rows_alone(frontier, some_rows):
    """Whichever share a table."""
    whole = Sweeps(frontier.bounds).of(some_rows)
    for at, row in enumerate(some_rows.tolist()):
        assert Sweeps(frontier.bounds).of(np.array([row]))[0] == whole[at]


def test_sweeps_bound_no_less_than_paths(frontier, some_rows):
    """A table has every path of its schedule in it."""
    assert (Sweeps(frontier.bounds).of(some_rows) >= frontier.bounds.of(some_rows) * (1 - 1e-9)).all()


def test_a_table_is_that_of_the_rows_schedule(frontier, some_rows):
    """As many ranks and microbatches as the row has."""
    sweeps = Sweeps(frontier.bounds)
    for row in some_rows.tolist():
        table = sweeps.table_of(row)
        assert table.num_ranks == int(frontier.rows["pp"][row])
        assert table.num_microbatches == int(frontier.rows["microbatches"][row])
