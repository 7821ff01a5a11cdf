"""Loops over a step: compiled and numpy give the same to the last bit, and what plain Python gives."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.report import loops
from tests.compilers import both_ways, needs_compiler

SEEDS = st.integers(0, 2**32 - 1)


def both(call):
    """What numpy and the compiled loops give, which is the same, as lists."""
    results = []
    for result in both_ways(loops, call):
        columns = result if isinstance(result, tuple) else (result,)
        results.append([(column.dtype.str, column.tolist()) for column in columns])
    assert results[0] == results[1]
    return [values for _, values in results[0]]


@needs_compiler
@given(seed=SEEDS, slots=st.integers(0, 80), nodes=st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_counts_and_times_of_nodes(seed, slots, nodes):
    """Every slot counts once, for its node."""
    draw = np.random.default_rng(seed)
    node, duration = draw.integers(0, nodes, slots).astype(np.int32), draw.integers(0, 2**50, slots)
    count, total = both(lambda: loops.tally(node, duration))
    assert len(count) == max(node.tolist(), default=-1) + 1
    for at, (times, ns) in enumerate(zip(count, total, strict=True)):
        assert (times, ns) == ((node == at).sum(), sum(duration[node == at].tolist()))


@needs_compiler
@given(seed=SEEDS, slots=st.integers(0, 80))
@settings(max_examples=80, deadline=None)
def test_weighted_times(seed, slots):
    """Rounded to ticks, half to even."""
    draw = np.random.default_rng(seed)
    node, duration = draw.integers(0, 4, slots).astype(np.int32), draw.integers(0, 10**9, slots)
    less, factor, more = draw.uniform(-1, 1, (3, 4)) * [[1e6], [1], [1e3]]
    [result] = both(lambda: loops.weigh(node, duration, less, factor, more))
    for at, ns, ticks in zip(node.tolist(), duration.tolist(), result, strict=True):
        assert ticks == round((more[at] + (ns - less[at]) * factor[at]) * 64) / 64


@needs_compiler
@given(seed=SEEDS, count=st.integers(1, 60), gaps=st.integers(0, 20))
@settings(max_examples=80, deadline=None)
def test_gaps_are_cut_by_what_lies_behind_them(seed, count, gaps):
    """Pieces fill a gap from its end back to its beginning, or to where the chain begins."""
    draw = np.random.default_rng(seed)
    finish = np.sort(draw.integers(0, 400, count))
    binding = np.array([draw.integers(-1, op) if op else -1 for op in range(count)], dtype=np.int32)
    start = np.where(binding >= 0, finish[binding], 0)
    behind = draw.integers(-1, count, gaps)
    end = np.where(behind >= 0, finish[behind], 0)
    begin = np.maximum(end - draw.integers(0, 200, gaps), 0)
    gap, first, until, op = both(lambda: loops.follow_gaps(begin, end, behind, start, binding))
    expected = []
    for one in range(gaps):
        at, left = int(behind[one]), int(end[one])
        while at >= 0 and left > begin[one]:
            beginning = max(int(start[at]), int(begin[one]))
            if beginning < left:
                expected.append((one, beginning, left, at))
            left, at = min(left, beginning), int(binding[at])
    assert list(zip(gap, first, until, op, strict=True)) == expected


@needs_compiler
@given(seed=SEEDS, gaps=st.integers(0, 40), causes=st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_waiting_is_split_by_what_explains_it(seed, gaps, causes):
    """No cause is given more than its surplus, no gap more than its waiting, and nothing is left that a cause asks."""
    draw = np.random.default_rng(seed)
    wait, surplus = draw.integers(-2, 30, gaps), draw.uniform(-20, 60, (gaps, causes)).round(1)
    [shares] = both(lambda: loops.split_waiting(wait, surplus))
    given = np.zeros(causes, dtype=np.int64)
    for waiting, wanted, share in zip(wait.tolist(), surplus, shares, strict=True):
        left = max(waiting, 0) if (wanted >= 1.0).any() else 0
        for cause, part in enumerate(share):
            assert part == max(0, min(left, round(wanted[cause]) - given[cause]))
            left -= part
        given += share


@needs_compiler
@given(seed=SEEDS, count=st.integers(0, 60))
@settings(max_examples=80, deadline=None)
def test_unions(seed, count):
    """Every instant inside an interval lies in one union, and unions do not touch."""
    draw = np.random.default_rng(seed)
    start = draw.integers(0, 200, count)
    finish = start + draw.integers(0, 12, count)
    first, last = both(lambda: loops.unite(start, finish))
    inside = {instant for begin, end in zip(start, finish, strict=True) for instant in range(begin, end)}
    assert {instant for begin, end in zip(first, last, strict=True) for instant in range(begin, end)} == inside
    assert all(end < begin for end, begin in zip(last, first[1:], strict=False))
