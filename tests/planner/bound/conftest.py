"""Rows of one small problem, bounded once for tests that only look."""

import numpy as np
import pytest

from tests.planner.conftest import make_frontier, random_problem


@pytest.fixture(scope="session")
def frontier():
    """The frontier of forty rows with and without sharded states."""
    return make_frontier(random_problem(3, hsdp=1, recompute=("none", "full")), 3, 40)


@pytest.fixture(scope="session")
def every(frontier):
    """Numbers of all its rows."""
    return np.arange(frontier.rows.count)
