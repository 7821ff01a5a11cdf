"""What is read off a table of two ranks holds for tables of any size."""

import pytest

from simpar.plan.schedules import SCHEDULES, make_schedule
from simpar.plan.schedules.actions import LETTERS
from simpar.planner.bound.shapes import outline


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
