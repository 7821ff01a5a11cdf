"""Cuts of a chain of blocks into stages, against trying all of them."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.planner.stages.cuts import cuts_within, find_fastest_cut, moves, sum_before, sum_between


def every_cut(blocks: int, stages: int) -> list[tuple[int, ...]]:
    """All numbers of blocks by stage, at least one each."""
    bounds = ((0, *inner, blocks) for inner in combinations(range(1, blocks), stages - 1))
    return [tuple(end - begin for begin, end in pairwise(each)) for each in bounds]


def slowest(cut: tuple[int, ...], costs: np.ndarray) -> float:
    """Time of the slowest stage of a cut."""
    bounds = [0, *np.cumsum(cut)]
    return float(max(costs[stage, begin:end].sum() for stage, (begin, end) in enumerate(pairwise(bounds))))


@given(stages=st.integers(1, 4), blocks=st.integers(4, 9), seed=st.integers(0, 10_000), limited=st.booleans())
@settings(max_examples=80, deadline=None)
def test_dynamic_programming_is_brute_force(stages: int, blocks: int, seed: int, limited: bool) -> None:
    """The slowest stage of the found cut is the fastest possible, under limits too."""
    random = np.random.default_rng(seed)
    costs = random.uniform(1, 9, (stages, blocks))
    most = random.integers(1, blocks + 1, stages) if limited else np.full(stages, blocks)
    allowed = [cut for cut in every_cut(blocks, stages) if (np.array(cut) <= most).all()]
    found = find_fastest_cut(costs, most)
    if not allowed:
        assert found is None
        return
    assert found in allowed
    assert slowest(found, costs) == pytest.approx(min(slowest(cut, costs) for cut in allowed))


def test_moves_keep_blocks_and_stages() -> None:
    """A block moves from one stage to another, none is lost, no stage empties."""
    assert set(moves((2, 1, 3))) == {(1, 2, 3), (1, 1, 4), (3, 1, 2), (2, 2, 2)}


def test_cuts_within_a_limit_are_all_of_them() -> None:
    """Enumerated cuts are those of trying everything whose slowest stage stays below the limit, unless too many."""
    random = np.random.default_rng(3)
    costs = random.uniform(1, 9, (3, 9))
    times = {cut: slowest(cut, costs) for cut in every_cut(9, 3)}
    for limit in np.quantile(list(times.values()), (0.0, 0.1, 0.5, 1.0)) + 1e-9:
        wanted = {cut for cut, taken in times.items() if taken < limit}
        found = cuts_within(costs, float(limit), len(times))
        assert found is not None
        assert {tuple(cut) for cut in found.tolist()} == wanted
        assert len(found) == len(wanted)
        if wanted:
            assert cuts_within(costs, float(limit), len(wanted) - 1) is None


def test_sums_between_blocks() -> None:
    """Of blocks k to j - 1; before the first is nothing."""
    each = np.array([3.0, 1.0, 4.0])
    assert sum_before(each).tolist() == [0.0, 3.0, 4.0, 8.0]
    sums = sum_between(each)
    assert (sums[0, 3], sums[1, 2], sums[2, 2]) == (8.0, 1.0, 0.0)


def test_equal_cuts_hold_less_at_the_end() -> None:
    """Of cuts with equally slow stages the one whose other stages are faster."""
    costs = np.array([[5.0, 1.0, 1.0, 1.0]] * 3)
    assert find_fastest_cut(costs) == (1, 2, 1)
    assert find_fastest_cut(costs[:, :2]) is None
