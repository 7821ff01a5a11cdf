"""What clocks of devices have in common, kept by one fit for another."""

from math import log
from pathlib import Path

import pytest

from benchmarks import clocks


def test_effects_are_kept_as_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock and a factor are kept as such, though fitted as logarithms; an exponent is one already."""
    monkeypatch.setattr(clocks, "KEPT", tmp_path / "clocks.json")
    effects = {"sustained_clock": log(0.8), "sustained_clock power": 0.25, "unthrottled": log(1.25)}
    clocks.write_general_clock({**effects, "other": 1.0})
    assert clocks.general_clock() == pytest.approx(effects)


def test_the_kept_effects_are_possible() -> None:
    """At the usual power a GPU throttles, the more power the less, and what does not throttle is faster."""
    usual, exponent, unthrottled = clocks.general_clock().values()
    assert log(0.5) < usual < 0 < unthrottled
    assert 0 < exponent < 1
