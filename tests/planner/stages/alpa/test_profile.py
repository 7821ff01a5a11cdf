"""What ranges of blocks take on submeshes."""

from dataclasses import replace

import numpy as np
import pytest

import simpar
from simpar.planner.stages.alpa.profile import Profile, with_stages
from simpar.program.emission.collective_prices import Prices
from simpar.simulation import make_job


@pytest.fixture(scope="module")
def profile():
    """A tiny model on one node."""
    cluster = simpar.Cluster("dgx-h100")
    job = make_job("tiny-llama", cluster, simpar.Plan(zero=1), simpar.Training(seq_len=128, global_batch=8))
    job = replace(job, layout=replace(job.layout, micro_batch=2))
    prices = Prices.of_job(job, cluster.in_training)
    return Profile(job, cluster.in_training, prices, cluster.device.memory_bytes, ("none",))


def test_a_step_has_as_many_microbatches_as_one_replica(profile):
    """Stages have all data-parallel ranks in their mesh."""
    assert profile.num_microbatches == 4
    assert len(profile.chain.blocks) == len(profile.job.graph.layers) + 2


def test_longer_ranges_take_longer(profile):
    """Whatever option is the best of each: a range takes no less than a part of it."""
    times, _ = profile.ranges(2)
    blocks = len(profile.chain.blocks)
    for begin in range(blocks):
        for end in range(begin + 2, blocks + 1):
            assert times[..., begin, end].min() >= times[..., begin, end - 1].min() * (1 - 1e-9)


def test_options_are_on_meshes_of_their_size(profile):
    """Every option is a stage of the submesh, with metrics of every kind of block."""
    for option in profile.options(2):
        assert int(np.prod(option.stage.mesh)) == 2
        assert option.metrics.shape[1] == len(profile.chain.kinds)
        assert (option.metrics >= 0).all()


def test_stages_of_their_own_make_a_pipeline(profile):
    """As many ranks as stages; layers and recomputation are theirs to say."""
    stage = profile.options(2)[0].stage
    plan = with_stages(profile.job.layout.to_plan(), (stage, stage))
    assert plan.mesh.pp == 2
    assert plan.mesh.dp is None
    assert plan.pipeline.stages == (stage, stage)
    assert (plan.pipeline.layers, plan.memory.recompute) == (None, "none")
