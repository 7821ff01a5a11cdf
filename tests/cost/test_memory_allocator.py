"""The allocator: what it needs, what it reserves, and what it gives back under pressure."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.memory.allocator import reserve
from simpar.stacks.stack import AllocatorHabits
from simpar.units import GIB, MIB

HABITS = AllocatorHabits(fragmentation=0.1, churn=0.2)
SEGMENT = 2 * MIB


def test_what_stays_leaves_no_gaps() -> None:
    """Only what moves fragments; alternating passes add the churn."""
    alone = reserve(10 * GIB, 10 * GIB, HABITS, alternates=False)
    mixed = reserve(10 * GIB, 10 * GIB, HABITS)
    assert alone.needed_bytes == pytest.approx(21 * GIB, abs=SEGMENT)
    assert mixed.needed_bytes == pytest.approx(23 * GIB, abs=SEGMENT)


def test_held_blocks_are_reserved_but_not_needed() -> None:
    """Blocks that another stream still uses count in the statistic, not in what must fit."""
    found = reserve(GIB, GIB, HABITS, held_bytes=4 * GIB)
    assert found.reserved_bytes - found.needed_bytes == pytest.approx(4 * GIB, abs=SEGMENT)


def test_cached_blocks_are_given_back() -> None:
    """Under a limit the reservation shrinks to it, but never below what is needed."""
    tight = reserve(GIB, GIB, HABITS, held_bytes=4 * GIB, limit_bytes=3 * GIB)
    assert tight.reserved_bytes == 3 * GIB
    full = reserve(4 * GIB, GIB, HABITS, held_bytes=4 * GIB, limit_bytes=3 * GIB)
    assert full.reserved_bytes == full.needed_bytes > 3 * GIB


def test_segments_that_expand_need_less_where_it_is_tight() -> None:
    """Recipes turn them on near the limit: the reservation gives its gaps back, down to two percent."""
    tight = AllocatorHabits(fragmentation=0.1, churn=0.2, settling=0.1, expandable=True)
    roomy = reserve(GIB, 10 * GIB, tight)
    assert roomy.reserved_bytes == reserve(GIB, 10 * GIB, HABITS).reserved_bytes
    assert roomy.needed_bytes == pytest.approx(11.2 * GIB, abs=SEGMENT)
    assert reserve(GIB, 10 * GIB, tight, limit_bytes=12 * GIB).reserved_bytes == 12 * GIB


def test_first_steps_need_more_than_later_ones_report() -> None:
    """What fits has to get through them; a peak that is printed is that of a later step."""
    settling = AllocatorHabits(fragmentation=0.1, churn=0.2, settling=0.05)
    found = reserve(GIB, 10 * GIB, settling)
    assert found.reserved_bytes == reserve(GIB, 10 * GIB, HABITS).reserved_bytes
    assert found.needed_bytes == pytest.approx(14.5 * GIB, abs=SEGMENT)
    assert (
        reserve(GIB, 10 * GIB, settling, held_bytes=5 * GIB, limit_bytes=12 * GIB).reserved_bytes == found.needed_bytes
    )


def test_arrays_give_what_scalars_give() -> None:
    """Sizes broadcast."""
    moving, alternates = np.array([1.0, 2.0, 3.0]) * GIB, np.array([True, False, True])
    bulk = reserve(GIB, moving, HABITS, alternates=alternates).reserved_bytes
    single = [reserve(GIB, m, HABITS, alternates=a).reserved_bytes for m, a in zip(moving, alternates, strict=True)]
    assert bulk.tolist() == [float(one) for one in single]
