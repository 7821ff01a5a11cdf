"""Where a target cannot express a plan, the nearest that it can is a plan, whole, and on as many devices."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.frameworks import TARGETS, unsupported
from simpar.frameworks.nearest import ExportJob, find_nearest, find_saving

from .conftest import TRAINING, checked

PLAN = {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "recompute": "selective", "schedule": "zb-h1"}


@pytest.mark.parametrize("target", TARGETS)
def test_the_nearest_can_be_said(target):
    """Nothing of it is lost; a model that a target cannot build has no plan near it."""
    model = "llama-3.1-8b" if target == "torchtitan-0.2" else "llama-3-8b"
    plan, graph = checked(model, **PLAN), load_model(model)
    assert unsupported(plan, graph, TRAINING, target)
    found = find_nearest(plan, ExportJob(graph, TRAINING, target, 8))
    assert found
    for near in found:
        assert not unsupported(near.plan, graph, TRAINING, target)
        assert near.plan.mesh.world_size == plan.mesh.world_size
        assert near.changes
    assert len({len(near.changes) for near in found}) == 1


def test_as_little_is_changed_as_can_be():
    """One field where one is enough, with the values that are near before those that are far."""
    graph = load_model("llama-3-8b")
    found = find_nearest(checked("llama-3-8b", dp=8, zero=1), ExportJob(graph, TRAINING, "torchtitan", 8))
    assert [near.changes for near in found] == [("zero = 2",), ("zero = 3",), ("zero = 0",)]
    assert [near.given_up for near in found] == [(), (), ("zero",)]
    whole = checked("llama-3-8b", dp=8, zero=3)
    assert [(near.plan, near.changes) for near in find_nearest(whole, ExportJob(graph, TRAINING, "torchtitan", 8))] == [
        (whole, ())
    ]


def test_axes_are_given_up_before_what_hangs_on_them():
    """Without tensor parallelism there is nothing to say about its sequences."""
    graph = load_model("llama-3-8b")
    plan = checked("llama-3-8b", tp=4, dp=2, zero=3, sequence_parallel=True)
    found = find_nearest(plan, ExportJob(graph, TRAINING, "accelerate", 8))
    assert [near.changes for near in found] == [("tp = 1, dp = 8",)]


def test_what_saves_memory_can_be_added():
    """First one field more, then two; nothing that the target cannot say, and no field twice."""
    graph = load_model("llama-3-8b")
    job = ExportJob(graph, TRAINING, "accelerate", 8)
    found = find_nearest(checked("llama-3-8b", tp=4, dp=2, zero=2), job)
    assert [near.changes for near in found] == [("tp = 1, dp = 8",)]
    one, two = find_saving(found, job)
    assert [near.changes[1:] for near in one] == [("zero = 3",), ("recompute = full",)]
    assert [near.changes[1:] for near in two] == [("recompute = full", "zero = 3")]
    (near,) = find_nearest(
        checked("llama-3-8b", dp=8, zero=3, recompute="selective"), ExportJob(graph, TRAINING, "nanotron", 8)
    )[:1]
    assert (near.plan.data_parallel.zero, near.plan.memory.recompute) == (1, "full")
    assert near.given_up == ("zero",)
    assert find_saving([near], job) == [[], []]


def test_models_have_no_nearest():
    """A loss that is the model is none of a plan's fields."""
    plan = checked("falcon-7b", dp=8)
    assert find_nearest(plan, ExportJob(load_model("falcon-7b"), TRAINING, "megatron", 8)) == []
