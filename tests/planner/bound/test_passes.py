"""Phases of many keys as numbers."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def passes(frontier):
    """A backward of a layer for all keys of a batch."""
    blocks = frontier.bounds.pipelines.blocks
    batch, _, _ = next(iter(blocks.batches(np.unique(blocks.key))))
    return blocks.kept(batch, "B", (1,))[1]


def test_no_stream_carries_more_than_the_passes_take(passes):
    """And together with the launches they take no less than any of them."""
    everything = slice(None)
    carried, took = passes.carried_ns(everything, 1.0), passes.took_ns(everything, 1.0)
    assert (carried.max(axis=0) <= took).all()
    assert (passes.issue_ns <= took).all()
    assert carried.sum() == passes.spans_ns(everything, 1.0).sum()


def test_slower_kernels_take_longer_and_collectives_as_long(passes):
    """Only kernels are slowed."""
    everything = slice(None)
    usual, slow = passes.spans_ns(everything, 1.0), passes.spans_ns(everything, 2.0)
    assert np.array_equal(usual[~passes.kernels], slow[~passes.kernels])
    assert (slow[passes.kernels] >= usual[passes.kernels]).all()
    assert (passes.took_ns(everything, 2.0) >= passes.took_ns(everything, 1.0)).all()


def test_some_keys_are_those_of_all(passes):
    """Whichever are asked for."""
    which = np.arange(len(passes.issue_ns))[::2]
    assert np.array_equal(passes.took_ns(which, 1.3), passes.took_ns(slice(None), 1.3)[which])
    assert np.allclose(passes.compute_s, passes.seconds.sum(axis=0))
