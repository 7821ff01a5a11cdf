"""Search behind the winner: only what may be below the limit is simulated, lowest bounds first, while effort lasts."""

import numpy as np
import pytest

from simpar.planner.answer.continuation import SIMULATION_S, Continuation


@pytest.fixture
def frontier(problem_of, frontier_of):
    """Some rows of a small problem."""
    return frontier_of(problem_of(5, tp=(1, 2), recompute="none"), seed=1)


def same(limit):
    """One limit for all rows."""
    return lambda rows: np.full(len(rows), limit)


def test_everything_below_the_limit_is_simulated_once(frontier):
    """And nothing else: afterwards no row is open, and what was left out is bounded above the limit."""
    rows = np.arange(frontier.rows.count)
    limit = float(np.median(frontier.bound_s)) * 1.2
    search = Continuation(frontier, 1000.0)
    found = dict(search.simulate_lowest(rows, same(limit)))
    assert found
    assert not len(search.open(rows, same(limit)))
    left = [row for row in rows.tolist() if row not in found]
    assert left
    assert (frontier.worth(np.array(left)) >= limit).all()
    assert list(search.simulate_lowest(rows, same(limit))) == []
    assert all(ratio >= 1 for ratio in search.ratios)


def test_effort_ends_the_search_and_rows_stay_open(frontier):
    """As much as two simulations take: the second begins before it is spent, a third does not."""
    rows = np.arange(frontier.rows.count)
    frontier._raise_passes(rows)
    search = Continuation(frontier, 1.5 * SIMULATION_S + 0.02 * frontier.rows.count)
    first = next(search.simulate_lowest(rows, same(np.inf)))
    assert first[0] not in search.open(rows, same(np.inf))
    search.left_s = 0.0
    assert list(search.simulate_lowest(rows, same(np.inf))) == []
    assert len(search.open(rows, same(np.inf))) == frontier.rows.count - 1


def test_steps_larger_than_the_effort_stay_open(frontier):
    """A row whose ops would take longer than what is left is not simulated, and may still be better."""
    rows = np.arange(frontier.rows.count)
    search = Continuation(frontier, 5.0)
    assert list(search.simulate_lowest(rows, same(np.inf), least_s=search.left_s - 1e-6)) == []
    assert len(search.open(rows, same(np.inf))) == frontier.rows.count


def test_sweeps_of_a_list_count_as_what_they_take(problem_of, frontier_of):
    """With as much effort, a list goes further than what is less wanted, and leaves that with none."""
    reached = {}
    for lean in (False, True):
        frontier = frontier_of(problem_of(5, tp=(1, 2), recompute="none"), seed=1)
        search, rows = Continuation(frontier, 0.5), np.arange(frontier.rows.count)
        reached[lean] = [row for row, _ in search.simulate_lowest(rows, same(np.inf), lean=lean)]
        assert search.left_s <= 0
        assert list(search.simulate_lowest(rows, same(np.inf))) == []
    assert len(reached[True]) > len(reached[False])
    assert reached[True][: len(reached[False])] == reached[False]


def test_what_the_search_has_closed_is_not_open(frontier):
    """A plan that the target refuses may be no runner-up, whatever its bound."""
    rows, refused = np.arange(frontier.rows.count), int(np.argmin(frontier.bound_s))
    frontier.close(refused)
    search = Continuation(frontier, 5.0)
    assert np.setdiff1d(rows, search.open(rows, same(np.inf))).tolist() == [refused]
