"""Loops give the same plain and compiled, and are compiled only where there is much to do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from simpar import compiled
from simpar.compiled import Loop


class Series(NamedTuple):
    """Terms and their running sums."""

    term: np.ndarray
    total: np.ndarray


def added(total, term):
    """One step of the sum."""
    return total + term


def run(series, factor):
    """Running sums of scaled terms; the last one."""
    total = 0.0
    for at in range(len(series.term)):
        total = added(total, factor[0] * series.term[at])
        series.total[at] = total
    return total


def fresh(size=7):
    """A series without its sums."""
    return Series(np.linspace(0.1, 0.9, size), np.zeros(size))


def test_plain_and_compiled_loops_do_the_same_sums():
    """To the last bit, in place, in arrays within a named tuple."""
    pytest.importorskip("numba")
    loop = Loop(run, added)
    plain, quick = fresh(), fresh()
    assert loop.plain(plain, (0.3, 1.0)) == loop.compiled()(quick, (0.3, 1.0)) == plain.total[-1]
    assert plain.total.tobytes() == quick.total.tobytes()


def test_a_loop_is_compiled_once_it_had_much_to_do(monkeypatch):
    """Not before, and never where numba is missing."""
    made = []
    monkeypatch.setattr(compiled, "HOT_ENTRIES", 20)
    monkeypatch.setattr(Loop, "compiled", lambda self: made.append(self) or self.function)
    monkeypatch.setattr(compiled, "find_spec", lambda _: None)
    loop = Loop(run, added)
    for _ in range(3):
        assert loop(fresh(), (1.0,)) == pytest.approx(3.5)
    assert made == []
    monkeypatch.setattr(compiled, "find_spec", lambda name: str(name))
    loop = Loop(run, added)
    for calls in range(4):
        loop(fresh(), (1.0,))
        assert len(made) == (calls >= 2)
