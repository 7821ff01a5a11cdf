"""Mixes of choices by enumeration: bounds of prices, ways to cover a run, and what is too much to enumerate."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simpar.program.resolve import fastest_mix as module
from simpar.program.resolve.fastest_mix import RunColumns, TooManyMixes, fastest_mix, price_of


def drawn(seed: int) -> tuple[list[RunColumns], float]:
    """Up to three runs of up to five layers, one to three moments, and a limit."""
    rng = np.random.default_rng(seed)
    moments, runs = int(rng.integers(1, 4)), []
    for _ in range(rng.integers(1, 4)):
        count = int(rng.integers(1, 5))
        layers = np.append(1, rng.integers(1, 4, count - 1))
        again, saved = rng.integers(0, 20, count), rng.integers(0, 9, count).astype(float)
        in_flight = rng.integers(0, 5, moments).astype(float)
        runs.append(RunColumns(int(rng.integers(1, 6)), layers, again, saved, in_flight))
    most = max(sum(run.length * run.saved_bytes.max() * run.in_flight[at] for run in runs) for at in range(moments))
    return runs, float(rng.uniform(0, 1.1) * most)


def by_trying(runs: list[RunColumns], limit: float) -> tuple[int, float] | None:
    """Time and bytes of the best of all mixes that fit, of equally fast ones that with the fewest bytes."""
    covers = [
        [n for n in product(*(range(run.length + 1) for _ in run.layers)) if np.dot(n, run.layers) == run.length]
        for run in runs
    ]
    found = []
    for mix in product(*covers):
        held = sum(np.dot(n, run.saved_bytes) * run.in_flight for n, run in zip(mix, runs, strict=True)).max()
        if held <= limit:
            found.append((int(sum(np.dot(n, run.again_ps) for n, run in zip(mix, runs, strict=True))), float(held)))
    return min(found, default=None)


@settings(max_examples=60, deadline=None)
@example(seed=123773560)  # its time less the bound, and the bound, sum to a little less than its time
@given(seed=st.integers(0, 2**32 - 1))
def test_the_best_of_all_mixes_is_found(seed: int) -> None:
    """Trying all of them gives the same time and bytes, which the price bounds from below."""
    runs, limit = drawn(seed)
    best, price = by_trying(runs, limit), price_of(runs, limit)
    if price is None:
        assert best is None
        return
    mix = fastest_mix(runs, limit, price)
    assert (None if mix is None else (mix.again_ps, mix.saved_bytes)) == best
    if mix is None:
        return
    assert price.bound_ps <= mix.again_ps * (1 + 1e-9)
    for run, counts in zip(runs, mix.counts, strict=True):
        assert counts @ run.layers == run.length
    assert sum(int(counts @ run.again_ps) for run, counts in zip(runs, mix.counts, strict=True)) == mix.again_ps
    assert fastest_mix(runs, limit, price, mix.again_ps) is not None
    assert fastest_mix(runs, limit, price, mix.again_ps - 1) is None


def test_a_bound_by_hand() -> None:
    """Ten layers keep 4 bytes each or 1 byte for 6 ps: of 25 bytes, five are dropped, and the bound is as large.

    A byte costs 6 / (4 - 1) = 2 ps, and 10 x (0 + 2 x 4) - 2 x 25 = 30 ps.
    """
    run = RunColumns(10, np.array([1, 1]), np.array([0, 6]), np.array([4.0, 1.0]), np.ones(1))
    price = price_of([run], 25.0)
    assert price == (30.0, 0, 2.0)
    mix = fastest_mix([run], 25.0, price)
    assert mix is not None
    assert (mix.again_ps, mix.saved_bytes, mix.counts[0].tolist()) == (30, 25.0, [5, 5])
    assert price_of([run], 9.0) is None


def test_too_many_mixes_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are enumerated end it, and are not left out in silence."""
    runs, limit = drawn(7)
    price = price_of(runs, limit)
    assert price is not None
    monkeypatch.setattr(module, "MOST_MIXES", 0)
    with pytest.raises(TooManyMixes, match="may be the fastest"):
        fastest_mix(runs, limit, price)
