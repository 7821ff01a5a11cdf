"""Rows that are bounded more sharply as their turn comes."""

import numpy as np
import pytest

from simpar.planner.certify.frontier import EXACT, KERNELS, PASSES, STEP, SWEPT


@pytest.fixture
def frontier(problem_of, frontier_of):
    """Thirty rows of a small problem, bounded by their kernels."""
    return frontier_of(problem_of(3, hsdp=1, recompute="none"), 3, 30)


def test_bounds_only_rise(frontier):
    """Level by level, up to the simulated step."""
    assert (frontier.level == KERNELS).all()
    row = frontier.next()
    seen = [(int(frontier.level[row]), float(frontier.bound_s[row]))]
    while frontier.level[row] < SWEPT:
        frontier.raise_bound(row)
        seen.append((int(frontier.level[row]), float(frontier.bound_s[row])))
    exact = frontier.simulate(row)
    levels, bounds = zip(*seen, strict=True)
    assert list(levels) == sorted(set(levels))
    assert list(bounds) == sorted(bounds)
    assert exact.step_time_s >= bounds[-1] * (1 - 1e-9) or not exact.fits


def test_the_lowest_bound_is_next(frontier):
    """Of the rows that may still win; those that cannot beat the best are looked at no more."""
    row = frontier.next()
    assert frontier.worth(row) == frontier.worth(np.arange(frontier.rows.count)).min()
    frontier.prune(float(np.median(frontier.bound_s)))
    left = frontier.open_from(KERNELS)
    assert len(left)
    assert all(frontier.bound_s[each] < np.median(frontier.bound_s) for each in left)
    frontier.prune(0.0)
    assert frontier.next() is None


def test_the_shortest_of_some_rows_is_bounded_as_asked(frontier):
    """By the level that is wanted, among those alone; of none there is none; the others stay active."""
    mask = np.zeros(frontier.rows.count, dtype=bool)
    assert frontier.shortest(mask) is None
    mask[::3] = True
    row = frontier.shortest(mask, STEP)
    assert mask[row]
    assert frontier.level[row] >= STEP > PASSES
    lowest = min(float(frontier.bound_s[each]) for each in np.flatnonzero(mask))
    assert frontier.bound_s[row] == lowest
    assert frontier.next() is not None


def test_what_was_simulated_is_looked_at_no_more(frontier):
    """It is known by its row, its ops are counted, and once its bound is its step nobody asks for it again."""
    row = frontier.next()
    found = frontier.simulate(row)
    assert frontier.simulated == {row: found}
    assert frontier.num_ops == found.num_ops > 0
    frontier.level[row] = EXACT
    frontier.prune(np.inf)
    assert frontier.next() != row
