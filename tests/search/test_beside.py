"""What stands beside the winner: the front of time and memory."""

from itertools import pairwise

import simpar


def test_no_point_of_the_front_is_beaten():
    """Down the front memory falls and the step grows, from the winner on."""
    model, cluster = simpar.Model("llama-3-8b"), simpar.Cluster("grand-teton-h100")
    found = simpar.search(model, cluster, simpar.Training(seq_len=8192, global_batch=16), stack="torchtitan")
    front = found.details["pareto"]
    assert len(front) > 3
    assert front[0]["step_time_s"] <= found.best.step_time_s * (1 + 1e-9)  # swept without contention
    for more, less in pairwise(front):
        assert less["needed_bytes"] < more["needed_bytes"]
        assert less["step_time_s"] > more["step_time_s"]


def test_runners_up_are_ranked_as_they_were_simulated():
    """With contention: no choice made without a search that fits comes before the second of the answer."""
    model, cluster = simpar.Model("olmoe-1b-7b"), simpar.Cluster("dgx-h100")
    found = simpar.search(model, cluster, simpar.Training(seq_len=4096, global_batch=32), stack="nemo")
    times = [one.step_time_s for one in found.candidates]
    assert times == sorted(times)
    naive = [one for one in found.details["naive"] if one["loses_s"] is not None]
    assert naive
    assert all(times[0] + one["loses_s"] >= times[1] for one in naive if one["loses_s"] > 0)
