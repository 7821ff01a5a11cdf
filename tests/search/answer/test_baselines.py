"""What stands beside the winner: the front of time and memory."""

from itertools import pairwise

import pytest

import simpar
from simpar.search import Constraints


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


@pytest.mark.parametrize(
    ("batch", "options", "fixed", "name", "words"),
    [
        (32, {}, {"tp": (1, 2)}, "TP = node", "--fix tp=1,2"),
        (4, {}, {}, "pure DDP", "a batch of 4 sequences does not divide over 8 replicas"),
        (
            32,
            {"base": simpar.Plan(kind="fsdp", zero=3)},
            {},
            "pure DDP",
            "plan.kind = fsdp has zero 2|3, not 0",
        ),
        (32, {}, {"zero": 1}, "pure ZeRO-3", "--fix zero=1"),
        (32, {}, {"tp": 4}, "TP = node", "--fix tp=4"),
    ],
)
def test_layouts_that_cannot_be_say_what_is_in_the_way(batch, options, fixed, name, words):
    """One reason, that which excludes them."""
    constraints = Constraints(fixed={"micro_batch": 1, "recompute": "none", "schedule": "1f1b", **fixed})
    found = simpar.search(
        "llama-3.2-1b",
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=512, global_batch=batch),
        constraints=constraints,
        **options,
    )
    said = {one["name"]: one["why"][0] for one in found.details["naive"]}
    assert said[name] == f"not in the space: {words}"
