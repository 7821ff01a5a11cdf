"""What is read off a table of two ranks holds for tables of any size; sums over stages are those of plain loops."""

import numpy as np
import pytest

from simpar.plan.schedules import SCHEDULES, make_schedule
from simpar.plan.schedules.actions import LETTERS
from simpar.planner.bound import shapes
from simpar.planner.bound.shapes import PipelineShape, outline, weigh


@pytest.mark.parametrize("name", [name for name, each in SCHEDULES.items() if each.searched == "by default"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 6])
def test_the_outline_is_that_of_the_table(name, ranks):
    """Placement, letters and pairs."""
    vpp = 3 if SCHEDULES[name].any_chunks else SCHEDULES[name].chunks
    table = make_schedule(name, ranks, 2 * ranks, vpp)
    letters = tuple(
        letter for code, letter in enumerate(LETTERS) if any((rank.code == code).any() for rank in table.ranks)
    )
    pairs = any(bool(rank.overlap.any()) for rank in table.ranks)
    assert outline(name, ranks, vpp) == (table.rank_of_stage, letters, pairs)


@pytest.mark.parametrize("ranks_of", [(0, 1, 2), (0, 1, 0, 1, 0, 1), (0, 1, 2, 2, 1, 0), (0, 0)])
def test_sums_over_the_stages_of_a_rank(ranks_of):
    """Of all its stages, and of a stage and those behind it."""
    shape = PipelineShape(((0,),) * len(ranks_of), 1, ranks_of, ("F", "B"))
    values = np.random.default_rng(1).integers(1000, size=(3, len(ranks_of))).astype(float)
    for row, whole, onwards in zip(values, shape.by_rank(values), shape.onwards(values), strict=True):
        placed = list(zip(row, ranks_of, strict=True))
        assert whole.tolist() == [sum(one for one, at in placed if at == rank) for rank in range(max(ranks_of) + 1)]
        expected = [sum(one for one, at in placed[stage:] if at == rank) for stage, rank in enumerate(ranks_of)]
        assert onwards.tolist() == expected


def test_weighted_sums_in_parts_are_those_of_one_product(monkeypatch):
    """Whatever the number of rows a part has, and for several axes before that of kinds."""
    random = np.random.default_rng(2)
    times, counts = random.integers(1000, size=(5, 2, 3)), random.integers(9, size=(4, 3)).astype(float)
    for most in (1, 12, 36, 10**6):
        monkeypatch.setattr(shapes, "MOST_AT_ONCE", most)
        for some in (counts, counts[:0]):  # frozen stages have no gradient buckets
            assert weigh(times, some).tolist() == (times @ some.T).tolist()
