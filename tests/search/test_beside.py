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
