"""Optimal checkpointing: the square-root rule, agreement with trying everything, and budgets that cannot be met."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from math import isqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.errors import Infeasible
from simpar.program.resolve import fastest_mix, recompute_choices
from simpar.program.resolve.recompute_choices import LayerRun, RecomputeChoice, choose
from tests.gate import some

ONE = np.ones((1, 1))


def chain(length: int, *more: RecomputeChoice) -> LayerRun:
    """Layers whose tensors are as large as their inputs: 1 byte, 1 s of forward; none, full, and segments."""
    segments = [RecomputeChoice(f"full:{k}", k, 1.0, k - 1.0, float(k)) for k in range(1, length + 1)]
    return LayerRun(length, (RecomputeChoice("none", 1, 1.0, 0.0, 0.0), *more, *segments))


def peak(taken: list[tuple[RecomputeChoice, int]]) -> float:
    """Bytes kept, and the largest workspace."""
    return sum(choice.saved_bytes * n for choice, n in taken) + max(choice.held_bytes for choice, _ in taken)


def seconds(taken: list[tuple[RecomputeChoice, int]]) -> float:
    """Time of what runs again."""
    return sum(choice.again_s * n for choice, n in taken)


@pytest.mark.parametrize("length", some([4, 16, 64, 144], 2))
def test_the_square_root_rule_emerges(length: int) -> None:
    """The least memory of a uniform chain is 2 sqrt(L) - 1, in segments of sqrt(L), for at most one more forward."""
    root = isqrt(length)
    (taken,) = choose([chain(length)], ONE, 2 * root - 1)
    assert peak(taken) == 2 * root - 1
    assert seconds(taken) <= length
    assert max(choice.layers for choice, _ in taken) == root
    with pytest.raises(Infeasible, match="no choice of what to recompute fits"):
        choose([chain(length)], ONE, 2 * root - 2)


def test_room_is_used() -> None:
    """With room for everything nothing runs again; time never grows with the budget."""
    times = [seconds(choose([chain(16)], ONE, budget)[0]) for budget in (7, 8, 10, 13, 16)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == 0


def compositions(run: LayerRun, left: int) -> Iterator[list[RecomputeChoice]]:
    """Every way to cover the layers."""
    if left == 0:
        yield []
    for choice in run.choices:
        if choice.layers <= left:
            for rest in compositions(run, left - choice.layers):
                yield [choice, *rest]


sizes = st.floats(0, 10).map(lambda value: round(value, 2))


@settings(max_examples=30, deadline=None)
@given(
    more=st.lists(st.tuples(sizes, sizes, sizes), max_size=2),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    flights=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=2),
    budget=st.floats(1, 60),
)
def test_nothing_better_exists(
    more: list[tuple[float, float, float]], lengths: list[int], flights: list[tuple[int, int]], budget: float
) -> None:
    """Trying every choice of every layer of small chains finds no faster one that fits."""
    extra = [RecomputeChoice(f"m{at}", 1, *values) for at, values in enumerate(more)]
    runs = [chain(length, *extra) for length in lengths]
    in_flight = np.array(flights, dtype=float)[:, : len(runs)]
    best = np.inf
    covers = [list(compositions(run, run.length)) for run in runs]
    for first in covers[0]:
        for second in covers[1] if len(covers) > 1 else [[]]:
            both = [first, second][: len(runs)]
            saved = in_flight @ [sum(choice.saved_bytes for choice in one) for one in both]
            held = max(choice.held_bytes for one in both for choice in one)
            if saved.max() + held <= budget:
                best = min(best, sum(choice.again_s for one in both for choice in one))
    try:
        found = sum(seconds(taken) for taken in choose(runs, in_flight, budget + 1e-7))
    except Infeasible:
        assert best == np.inf
        return
    assert found <= best + 1e-6


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), budget=st.floats(0, 1.2))
def test_integer_programs_find_nothing_faster(seed: int, budget: float) -> None:
    """What is enumerated takes the time that HiGHS finds, with large numbers and equal ones, and no more bytes."""
    draw = np.random.default_rng(seed)
    runs = []
    for _ in range(draw.integers(1, 4)):
        unit = float(draw.choice([1.0, 1e9 / 3]))
        values = np.round(draw.uniform(0, 5, (draw.integers(1, 6), 3)), int(draw.integers(0, 3))) * [unit, unit, 1e-3]
        single = [RecomputeChoice(f"m{at}", 1, *each) for at, each in enumerate(values.tolist())]
        full = single[-1]
        joint = [RecomputeChoice(f"full:{k}", k, full.saved_bytes, k * unit, k * full.again_s) for k in range(2, 6)]
        runs.append(LayerRun(int(draw.integers(1, 12)), (*single, *joint)))
    in_flight = draw.integers(0, 9, (int(draw.integers(1, 4)), len(runs))).astype(float)
    most = max(choice.held_bytes for run in runs for choice in run.choices)
    most += (in_flight @ [run.length * max(choice.saved_bytes for choice in run.choices) for run in runs]).max()

    def answer() -> tuple[float, float]:
        try:
            taken = choose(runs, in_flight, budget * most)
        except Infeasible:
            return np.inf, np.inf
        held = max(choice.held_bytes for one in taken for choice, _ in one)
        saved = in_flight @ [sum(choice.saved_bytes * n for choice, n in one) for one in taken]
        return sum(seconds(one) for one in taken), held + saved.max()

    ours_s, ours_bytes = answer()
    assert ours_s == np.inf or ours_bytes <= budget * most * (1 + 1e-9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastest_mix, "MOST_MIXES", 0)
        solved_s, solved_bytes = answer()
    assert ours_s >= solved_s * (1 - 1e-9)
    if solved_bytes <= budget * most:  # HiGHS lets pass a millionth more
        assert ours_s == pytest.approx(solved_s, rel=1e-9, abs=1e-12)
        assert ours_bytes <= solved_bytes * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), budget=st.floats(0.1, 1.0))
def test_equal_chunks_may_change_places(seed: int, budget: float) -> None:
    """Of equal runs, those with more in flight keep no more: what HiGHS then finds is what is enumerated."""
    draw = np.random.default_rng(seed)
    values = draw.uniform(0, 5, (int(draw.integers(2, 5)), 3)).round(int(draw.integers(0, 3)))
    run = LayerRun(
        int(draw.integers(1, 4)), tuple(RecomputeChoice(f"m{at}", 1, *each) for at, each in enumerate(values.tolist()))
    )
    count = int(draw.integers(2, 6))
    in_flight = draw.integers(0, 4, (int(draw.integers(1, 4)), count)).astype(float)
    if draw.random() < 0.7:  # as in the chunks of a rank
        in_flight = -np.sort(-in_flight, axis=1)
    most = values[:, 1].max() + (in_flight.sum(axis=1) * run.length * values[:, 0].max()).max()

    def again_s() -> float:
        try:
            return sum(seconds(one) for one in choose([run] * count, in_flight, budget * most))
        except Infeasible:
            return np.inf

    ours_s = again_s()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastest_mix, "MOST_MIXES", 0)
        assert again_s() == pytest.approx(ours_s, rel=1e-5, abs=1e-12)


def test_forty_equal_chunks_are_solved() -> None:
    """Those of an interleaved pipeline: permutations of mixes are not tried one by one."""
    sizes = [(600, 1, 0), (599, 2, 620), (33, 3, 7359), (533, 2, 59), (532, 3, 679), (248, 4, 4885), (247, 5, 5505)]
    choices = tuple(RecomputeChoice(f"m{at}", 1, *each) for at, each in enumerate(sizes))
    moments = [[4] * k + [2] * (40 - 2 * k - 1) + [1] + [0] * k for k in range(20)]
    taken = choose([LayerRun(1, choices)] * 40, np.array(moments, dtype=float), 40_000.0)
    saved = [sum(choice.saved_bytes * count for choice, count in one) for one in taken]
    assert saved == sorted(saved)
    assert max(np.array(moments) @ saved) <= 40_000.0


def test_what_compiled_code_prints_is_dropped(capfd) -> None:  # type: ignore[no-untyped-def]
    """Also what waits in the buffer of C, while our own words before and behind come through."""
    os.write(1, b"before ")
    with recompute_choices._silent():
        os.write(1, b"unbuffered ")
        ctypes.CDLL(None).puts(b"buffered")
    os.write(1, b"behind")
    assert capfd.readouterr().out == "before behind"
