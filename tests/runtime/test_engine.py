"""When a rank's wrapped model reduces gradients."""

from types import SimpleNamespace

import pytest

import simpar


class Units:
    """What FSDP units are asked, in order."""

    def __init__(self):
        self.asked = []

    def set_requires_gradient_sync(self, is_last):
        """Note whether the next backward reduces."""
        self.asked.append(is_last)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's modules, where this is the first to import them
def test_fsdp_reduces_with_the_last_microbatch_where_gradients_wait(monkeypatch):
    """Every microbatch but the last is told to keep whole gradients."""
    from simpar.runtime import engine

    monkeypatch.setattr(engine, "FSDPModule", Units)
    for waits, asked in ((True, [False, False, True]), (False, []), (None, [])):
        rank = SimpleNamespace(wrapped={0: Units()}, plan=simpar.Plan(zero=3, defer_grad_reduce=waits))
        for number in range(3):
            with engine.TrainingEngine._synchronised(rank, last=number == 2):
                pass
        assert rank.wrapped[0].asked == asked
