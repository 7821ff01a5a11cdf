"""Slices of tokens: tables, and lengths by dynamic programming against brute force."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.errors import UserError
from simpar.plan.schedules import make_schedule
from simpar.plan.schedules.actions import verify
from simpar.plan.schedules.terapipe import find_fastest_slices, pipeline_s, slice_schedule

from .conftest import run_table


def compositions(units: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut a sequence of so many units."""
    if units == 0:
        yield ()
    for first in range(1, units + 1):
        yield from ((first, *rest) for rest in compositions(units - first))


@given(units=st.integers(1, 9), stages=st.integers(1, 24), m=st.integers(1, 6), seed=st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_dynamic_programming_is_brute_force(units: int, stages: int, m: int, seed: int) -> None:
    """No cut of a sequence has a shorter pipeline than the one found, whatever slices take."""
    times = np.random.default_rng(seed).uniform(1, 9, (units + 1, units + 1)) + np.arange(units + 1)
    found = find_fastest_slices(times, stages, m)
    best = min(pipeline_s(times, lengths, stages, m) for lengths in compositions(units))
    assert sum(found) == units
    assert pipeline_s(times, found, stages, m) == pytest.approx(best)


def test_causal_cost_makes_later_slices_shorter() -> None:
    """With time a + b x tokens + c x pairs of a causal mask slices shorten towards the end of the sequence."""
    ends = np.arange(17)
    tokens = ends[None, :] - ends[:, None]
    pairs = (ends[None, :] ** 2 - ends[:, None] ** 2) / 2
    free = find_fastest_slices(tokens + pairs, 64, 1)  # nothing is lost by cutting: the last unit rules
    assert pipeline_s(tokens + pairs, free, 64, 1) == pipeline_s(tokens + pairs, (1,) * 16, 64, 1)
    lengths = find_fastest_slices(8.0 + tokens + pairs, 8, 1)
    assert 1 < len(lengths) < 16
    assert list(lengths) == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "terapipe", "v-half"])
@pytest.mark.parametrize("count", [1, 3])
def test_tables_of_slices_can_run(name: str, count: int) -> None:
    """Every table of whole microbatches is one of slices: forwards in order, gradients in reverse."""
    table = slice_schedule(make_schedule(name, 4, 8), count)
    verify(table)
    assert table.num_microbatches == 8 * count
    for rank in range(4):
        letters, stages, passes = table.letters(rank)
        for stage in set(stages.tolist()):
            for letter, step in (("F", 1), ("B", -1), ("I", -1)):
                mine = [u for kind, s, u in zip(letters, stages, passes, strict=True) if (kind, s) == (letter, stage)]
                groups = [mine[i : i + count] for i in range(0, len(mine), count)]
                assert all((np.diff(group) == step).all() for group in groups)


@pytest.mark.parametrize(("p", "m", "count"), [(4, 1, 8), (4, 3, 4), (8, 2, 16)])
def test_equal_slices_have_the_bubble_of_as_many_microbatches(p: int, m: int, count: int) -> None:
    """(p - 1)(F + B) of a slice: GPipe with m x slices microbatches."""
    run = run_table(slice_schedule(make_schedule("terapipe", p, m), count), 1, 1, 1)
    assert run.makespan == m * count * 3 + (p - 1) * 3
    assert run.makespan == run_table(make_schedule("gpipe", p, m * count), 1, 1, 1).makespan


def test_pairs_are_not_sliced() -> None:
    """Passes that overlap in pairs are refused."""
    with pytest.raises(UserError, match="run in pairs"):
        slice_schedule(make_schedule("dualpipev", 4, 16), 2)
