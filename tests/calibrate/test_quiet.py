"""A busy machine is noticed while it is measured, and how much too long times may be for that."""

import os
import resource
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from simpar.calibrate.quiet import Quiet
from simpar.runtime import core_times
from simpar.runtime.core_times import CoreTimes

CORES = """cpu  9999 9999 9999 9999 9999 9999 9999 9999 9999 9999
cpu0 100 0 50 800 40 5 5 0 20 0
cpu1 300 10 90 500 100 0 0 0 0 0
cpu2 7 7 7 7 7 7 7 7 7 7
intr 12
"""


def test_what_the_system_counts_is_read(tmp_path, monkeypatch):
    """By hand: 560 ticks of two of three cores were busy of 2,000; waiting for drives is none of it, nor are guests."""
    (tmp_path / "stat").write_text(CORES)
    monkeypatch.setattr(core_times, "STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(resource, "getrusage", lambda whose: SimpleNamespace(ru_utime=1.0 - whose, ru_stime=0.5))
    tick = os.sysconf("SC_CLK_TCK")
    assert CoreTimes.now() == CoreTimes(560 / tick, 2000 / tick, 1.5 + 2.5)
    monkeypatch.setattr(core_times, "STAT", tmp_path / "nothing")
    assert CoreTimes.now() is None


@pytest.mark.parametrize(
    ("after", "repeats", "width"),
    [
        (CoreTimes(108.0, 220.0, 58.0), (1.0, 1.02), 0.02),  # nobody else: what came was our own
        (CoreTimes(158.0, 220.0, 58.0), (1.0, 1.02), 1.0),  # half of all cores is missing: twice as long
        (CoreTimes(108.0, 220.0, 58.0), (1.0, 1.5, 1.2), 0.5),  # for a part of the time
        (None, (2.0, 2.5), 0.25),
        (None, (), 0.0),
    ],
)
def test_the_width_is_that_of_either_sign(after, repeats, width):
    """The larger of what is missing of the cores and how far repeats differ; 10 % and more is said."""
    found = Quiet.of(CoreTimes(50.0, 120.0, 0.0), after, repeats)
    assert found.width == pytest.approx(width)
    assert found.is_busy == (width > 0.1)
    assert f"up to {width:.0%} too slow" in found.words


@pytest.mark.skipif(not core_times.STAT.exists(), reason="the system does not count")
def test_a_planted_load_is_seen():
    """A process that nobody waits for yet, on one of this process's cores, for half a second."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = CoreTimes.now()
        time.sleep(0.5)
        found = Quiet.of(before, CoreTimes.now(), ())
    finally:
        busy.kill()
        busy.wait()
    assert found.others > 0.1 / len(os.sched_getaffinity(0))
