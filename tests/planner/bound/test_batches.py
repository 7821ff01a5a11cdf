"""What keys and configurations decide is evaluated once for every pair, and is what a row alone has."""

import numpy as np

from simpar.planner.bound.batches import RowBatch


def test_rows_together_are_rows_alone(frontier, every):
    """Times of passes, moves and links of a batch of all rows are those of batches of one."""
    bounds = frontier.bounds
    whole = RowBatch(bounds, every)
    assert len(whole.configurations) < len(every)
    times = whole.pass_times(every, "B", boundary=True)
    inside = whole.inside("F")
    gathers = whole.moves("gather", "F", boundary=False)[whole.configuration]
    for row in every[::7]:
        one = RowBatch(bounds, np.array([row]))
        assert np.array_equal(one.pass_times(np.array([0]), "B", boundary=True)[0], times[row])
        assert np.array_equal(one.inside("F")[0], inside[row])
        assert np.array_equal(one.moves("gather", "F", boundary=False)[0], gathers[row])


def test_a_function_of_configurations_is_asked_once(frontier, every):
    """Each distinct configuration, and none again under the same name."""
    asked = []
    batch = RowBatch(frontier.bounds, every)
    first = batch.each("asked once", lambda one: asked.append(one) or float(len(asked)))
    assert batch.each("asked once", lambda _: 1 / 0) is first
    assert len(asked) == len(batch.configurations) == len(first)


def test_configurations_that_update_alike_share_the_first(frontier, every):
    """The first of its like stands for itself."""
    batch = RowBatch(frontier.bounds, every)
    like = batch.alike_updates
    assert np.array_equal(like[like], like)
    assert (like <= np.arange(len(like))).all()
