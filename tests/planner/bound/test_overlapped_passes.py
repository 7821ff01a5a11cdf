"""Pairs of passes that run together."""

import numpy as np
import pytest

from simpar.planner.bound.overlapped_passes import OverlappedPasses

LAYER = 1


@pytest.fixture(scope="module")
def pairs(frontier):
    """Pairs of the blocks of some rows, and the keys of these."""
    blocks = frontier.bounds.pipelines.blocks
    return OverlappedPasses(blocks), np.unique(blocks.key)


def test_a_pair_takes_no_less_than_its_longer_half_and_no_more_than_both(pairs):
    """As without anything else on their rank."""
    together, keys = pairs
    alone = {one: together.blocks.plain_ns(keys, (one,))[one][:, LAYER] for one in "FB"}
    both = together.pairs_ns(keys, (LAYER,), (LAYER,), "B")
    assert (both >= np.maximum(alone["F"], alone["B"]) * 0.999).all()
    assert (both <= 1.5 * (alone["F"] + alone["B"])).all()


def test_blocks_that_meet_nobody_run_alone(pairs):
    """Of the stage that has more of them."""
    together, keys = pairs
    one = together.pairs_ns(keys, (LAYER,), (LAYER,), "B")
    longer = together.pairs_ns(keys, (LAYER, LAYER), (LAYER,), "B")
    assert np.array_equal(longer - one, together.blocks.plain_ns(keys, ("F",))["F"][:, LAYER])
    none = together.pairs_ns(keys, (), (LAYER,), "B")
    assert np.array_equal(none, together.blocks.plain_ns(keys, ("B",))["B"][:, LAYER])


def test_keys_together_are_keys_alone(pairs):
    """In any order, more than once; what is found for one key answers for no other."""
    together, keys = pairs
    again = np.concatenate([keys[::-1], keys])
    found = OverlappedPasses(together.blocks).pairs_ns(again, (LAYER,), (LAYER,), "B")
    alone = {one: OverlappedPasses(together.blocks).pairs_ns(np.array([one]), (LAYER,), (LAYER,), "B") for one in keys}
    assert [float(alone[key][0]) for key in again.tolist()] == found.tolist()


def test_blocks_that_meet_several_times_count_as_often(pairs):
    """Each time alike."""
    together, keys = pairs
    one, three = (together.pairs_ns(keys, (LAYER,) * count, (LAYER,) * count, "B") for count in (1, 3))
    assert np.array_equal(three, 3 * one)


def test_a_slow_rank_takes_longer_over_a_pair(pairs):
    """Its kernels take the factor as long, and nothing else does."""
    together, keys = pairs
    healthy, slow = (together.pairs_ns(keys, (LAYER,), (LAYER,), "B", factor=factor) for factor in (1.0, 2.0))
    kernels = sum(together.blocks.kernels_ns("FB")[one][keys][:, LAYER] for one in "FB")
    assert (slow >= healthy).all()
    assert (slow >= 1.9 * kernels).all()
    assert (slow <= 2.0 * healthy * 1.001).all()
