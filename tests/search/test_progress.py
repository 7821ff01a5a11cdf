"""What ends a search early, and what it is called."""

from typing import Annotated

import pytest
from pydantic import BaseModel, PlainSerializer

from simpar.errors import UserError
from simpar.search.progress import Progress, TimeIsUp


@pytest.mark.parametrize("stop", [KeyboardInterrupt, TimeIsUp])
def test_a_stop_while_python_makes_a_class_is_a_stop(stop):
    """Python raises a RuntimeError of it; any other error is raised on."""

    class Stopping:
        def __set_name__(self, owner, name):
            raise stop

    progress = Progress()
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

    progress = Progress()
    with progress.stoppable():
        Written().model_dump()
    assert progress.interrupted


def test_a_limit_must_be_above_zero():
    """Refused where the progress is made; a progress behind its limit says so."""
    with pytest.raises(UserError, match="time limit = 0"):
        Progress(time_limit_s=0)
    with pytest.raises(TimeIsUp):
        Progress(time_limit_s=1e-9).check()


def test_a_user_who_stops_is_no_limit():
    """Ctrl-C and a limit end a search alike; only one of them was wanted by the user."""
    progress = Progress()
    assert (progress.stopped, progress.is_user_stop) == (None, False)
    with progress.stoppable():
        raise KeyboardInterrupt
    assert (progress.stopped, progress.is_user_stop) == ("interrupted", True)
    late = Progress(time_limit_s=1e-9)
    with late.stoppable():
        late.check()
    assert (late.stopped, late.is_user_stop) == ("time limit", False)
