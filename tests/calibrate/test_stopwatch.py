"""Times on a CUDA device, whose events a test can stand in for; and on a CPU."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from simpar.calibrate.stopwatch import MIN_REPETITIONS, Stopwatch  # noqa: E402


def test_device_times_are_between_events_and_find_a_cold_cache(monkeypatch):
    """Overwriting the cache and a pause in which all is issued go before each repetition, and are not counted."""
    told, clock = [], [0.0]

    class Event:
        """An event that reads a clock which work moves."""

        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            """Note the time and that it was asked for."""
            told.append("event")
            self.at = clock[0]

        def elapsed_time(self, other):
            """Milliseconds from this to the other."""
            return other.at - self.at

    class Room:
        """What is overwritten."""

        def zero_(self):
            """Takes 5 ms."""
            told.append("flush")
            clock[0] += 5.0

    def work():
        told.append("work")
        clock[0] += 2.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: told.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: told.append("busy" if cycles > 0 else "idle"))
    monkeypatch.setattr(Stopwatch, "_more_than_l2", lambda _: Room())
    watch = Stopwatch(SimpleNamespace(type="cuda"), 0.0)
    times = watch.time(work)
    assert times.seconds == pytest.approx(2e-3)
    assert times.repeats == MIN_REPETITIONS
    once = ["flush", "busy", "event", "work", "event"]
    issued = ["work", "work", "wait", *(MIN_REPETITIONS * ["work"]), "wait"]
    assert told == ["work", "work", *issued, "wait", *(MIN_REPETITIONS * once), "wait", "wait"]


def test_whole_steps_go_by_the_hosts_clock():
    """Work that waits for its device itself needs no events."""
    watch = Stopwatch(SimpleNamespace(type="cuda"), 0.001)
    assert watch.time_whole(lambda: None).repeats >= MIN_REPETITIONS
