"""Small engines and sections whose numbers can be followed by hand."""

import numpy as np
import pytest

from simpar.plan.post_training import PostTraining
from simpar.posttraining.iterations import NO_WINDOW, IterationTimes
from simpar.posttraining.replica import Replica, ReplicaLimits


@pytest.fixture
def times_of():
    """Times of iterations with a base and rates that no other numbers divide."""

    def make(most, windows=(NO_WINDOW,), rates=(7_000_003,)):
        base = np.array([0, *(5_000_001 + 3_007 * n for n in range(1, most + 1))])

        def with_prompts_ns(sequences, pieces):
            return 5_000_001 + 3_007 * sequences + sum(2_003 * p.tokens + p.tokens * p.before // 101 for p in pieces)

        return IterationTimes(base, windows, rates, with_prompts_ns)

    return make


@pytest.fixture
def replica_of(times_of):
    """An idle replica."""

    def make(*, budget=64, most=8, block=16, blocks=500, sharing=True, skips=True):
        return Replica(times_of(most), ReplicaLimits(budget, most, block, blocks, sharing), skips)

    return make


@pytest.fixture
def section_of():
    """A section with short texts; values lie over its own."""

    def make(**values):
        lengths = {"prompt": {"mean": 30, "p99": 60}, "response": {"mean": 100, "p99": 500}}
        rollout = {"nodes": 1} if values.get("placement", "colocated") != "colocated" else {}
        return PostTraining(**{"prompts": 3, "samples": 4, "lengths": lengths, "rollout": rollout, **values})

    return make
