"""Paths through a pipeline, against steps that are known by hand."""

import numpy as np
import pytest

from simpar.planner.bound.paths import Hops, Path, StagePassTimes, Stages, path_bound
from simpar.planner.bound.shapes import PipelineShape, outline

FORWARD, BACKWARD = 3.0, 6.0


def even(ranks, schedule="1f1b"):
    """A shape of as many ranks, and passes that take the same on every stage."""
    rank_of_stage, letters, pairs = outline(schedule, ranks, 1)
    shape = PipelineShape(((0,),) * ranks, 1, rank_of_stage, letters, pairs)
    stages = len(shape.pieces)
    times = {"F": np.full((1, stages), FORWARD), "B": np.full((1, stages), BACKWARD)}
    passes = StagePassTimes.of(times)
    return shape, Stages(passes, passes, passes)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [4, 16])
def test_1f1b_without_messages_is_its_textbook_step(ranks, microbatches):
    """(m + p - 1) forwards and backwards [Narayanan et al. 2021, arXiv 2104.04473, section 2.2]."""
    shape, stages = even(ranks)
    path = path_bound(shape, stages, Hops.none(shape, 1), np.array([float(microbatches)]))
    assert path.behind() == (microbatches + ranks - 1) * (FORWARD + BACKWARD)


def test_messages_lengthen_the_way_there_and_back():
    """One hop of each kind between two stages; where kernels wait, one for every microbatch."""
    shape, stages = even(2)
    ahead, back = np.array([[1.0]]), np.array([[2.0]])
    count = np.array([4.0])
    free, held = (path_bound(shape, stages, Hops(ahead, back, blocking), count).behind() for blocking in (False, True))
    assert free == (4 + 1) * (FORWARD + BACKWARD) + 1.0 + 2.0
    assert held > free


def test_what_follows_on_a_rank_is_added_to_its_own_end():
    """The longest of the ends with their tails, and of the first rank's."""
    path = Path(np.array([[10.0, 8.0]]), np.array([11.0]))
    assert path.behind() == 11.0
    assert path.behind(np.array([[0.0, 5.0]])) == 13.0
    assert path.behind(4.0) == 15.0


def test_a_backward_in_halves_is_what_both_take():
    """Of a table with whole backwards and halves the lesser counts, and the stage ahead waits for the first half."""
    times = {name: np.array([[value]]) for name, value in {"F": 1.0, "B": 9.0, "I": 3.0, "W": 5.0}.items()}
    passes = StagePassTimes.of(times)
    assert (passes.backward, passes.gradient) == (8.0, 3.0)
    assert StagePassTimes.of({name: times[name] for name in "FB"}).gradient == 9.0
