"""What ends a search early, and what it is called."""

from typing import Annotated

import pytest
from pydantic import BaseModel, PlainSerializer

from simpar import Cluster, Training
from simpar.errors import UserError
from simpar.planner.api import search
from simpar.planner.problem import Constraints
from simpar.planner.progress import SearchProgress, TimeIsUp, in_words
from simpar.planner.result import Counts


@pytest.mark.parametrize("stop", [KeyboardInterrupt, TimeIsUp])
def test_a_stop_while_python_makes_a_class_is_a_stop(stop):
    """Python raises a RuntimeError of it; any other error is raised on."""

    class Stopping:
        def __set_name__(self, owner, name):
            raise stop

    progress = SearchProgress()
    with progress.stoppable():
        type("Made", (), {"field": Stopping()})
    assert progress.stopped == ("time limit" if stop is TimeIsUp else "interrupted")
    with pytest.raises(RuntimeError, match="ours"), progress.stoppable():
        raise RuntimeError("ours")


def test_a_stop_while_a_plan_is_written_is_a_stop():
    """Serialisers wrap what is raised inside of them into an error of their own."""

    def stops(value):
        raise KeyboardInterrupt

    class Written(BaseModel):
        field: Annotated[int, PlainSerializer(stops)] = 1

    progress = SearchProgress()
    with progress.stoppable():
        Written().model_dump()
    assert progress.interrupted


def test_a_limit_must_be_above_zero():
    """Refused where the progress is made; a progress behind its limit says so."""
    with pytest.raises(UserError, match="time limit = 0"):
        SearchProgress(time_limit_s=0)
    with pytest.raises(TimeIsUp):
        SearchProgress(time_limit_s=1e-9).check()


def test_a_user_who_stops_is_no_limit():
    """Ctrl-C and a limit end a search alike; only one of them was wanted by the user."""
    progress = SearchProgress()
    assert (progress.stopped, progress.is_user_stop) == (None, False)
    with progress.stoppable():
        raise KeyboardInterrupt
    assert (progress.stopped, progress.is_user_stop) == ("interrupted", True)
    late = SearchProgress(time_limit_s=1e-9)
    with late.stoppable():
        late.check()
    assert (late.stopped, late.is_user_stop) == ("time limit", False)


def test_words_say_what_is_done_before_anything_is_bounded():
    """To how many layouts, once they are known; then how far it is."""
    assert in_words("enumerating", Counts(), None) == "enumerating"
    assert in_words("bounding", Counts(space_size=1234), None) == "bounding 1,234 layouts"
    counts = Counts(space_size=9, feasible=1234, bounded=1234, swept=5, simulated=1)
    assert in_words("searching", counts, 1.23456) == "searching: 1,234 bounded from below, 1 simulated, best 1.235"


def test_a_search_says_what_it_does_from_the_first_moment_on():
    """Enumerating, what fits, bounding, each before it takes its time; numbers of layouts never fall to 0 again."""
    heard = []
    progress = SearchProgress(report=lambda phase, counts, _best: heard.append((phase, counts.space_size)))
    few = Constraints(fixed={"cp": 1, "pp": (1, 2), "micro_batch": 8, "recompute": "none"})
    search(
        "tiny-llama", Cluster("dgx-h100"), Training(seq_len=128, global_batch=64), constraints=few, progress=progress
    )
    phases = list(dict.fromkeys(phase for phase, _ in heard))
    assert phases == ["enumerating", "deciding what fits", "bounding", "searching", "comparing the best with others"]
    assert heard[0][1] == 0
    assert all(layouts > 0 for _, layouts in heard[1:])
