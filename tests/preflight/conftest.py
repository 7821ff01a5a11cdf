"""What tests of checks share."""

import pytest

from simpar.planner import nearby


@pytest.fixture
def alone(monkeypatch):
    """A function from which on nothing is simulated beside a launch."""
    return lambda: monkeypatch.setattr(nearby, "_simulated", lambda *_: iter(()))


@pytest.fixture
def no_neighbours(alone):
    """Checks that simulate nothing beside the launch: for what is read of its text."""
    alone()
