"""Loops give the same plain and compiled, and are compiled only where there is much to do."""

from __future__ import annotations

import os
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
    """Not before, and never where numba is missing; where it was never compiled, once it had more."""
    made = []
    monkeypatch.setattr(compiled, "is_kept", lambda *_: True)
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
    monkeypatch.setattr(compiled, "is_kept", lambda *_: False)
    loop = Loop(run, added)
    for calls in range(10):
        loop(fresh(), (1.0,))
        assert len(made) == 1 + (calls >= 8)


def test_what_numba_keeps_is_found_without_it(tmp_path, monkeypatch):
    """Of a function, and of a file as it is now."""
    numba = pytest.importorskip("numba")
    (tmp_path / "kept.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    import kept

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert not compiled.is_kept(kept.__file__, "twice")
    assert numba.njit(cache=True)(kept.twice)(2) == 4
    assert compiled.is_kept(kept.__file__, "twice")
    assert not compiled.is_kept(kept.__file__, "thrice")
    os.utime(kept.__file__, (2e9, 2e9))
    assert not compiled.is_kept(kept.__file__, "twice")
    folder = tmp_path / "elsewhere"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    os.utime(kept.__file__, (1e9, 1e9))
    assert numba.njit(cache=True)(kept.twice)(3) == 6
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    assert compiled.is_kept(kept.__file__, "twice")
