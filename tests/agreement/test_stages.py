"""A uniform plan written as stages is the same step: to the nanosecond, and to the byte of its states."""

from __future__ import annotations

import numpy as np
import pytest

import simpar
from simpar.errors import UserError
from simpar.models.catalogue import load_model
from simpar.plan.stages import StagePlan
from simpar.plan.uniform_stages import as_stages
from simpar.program.lower_stages import messages
from simpar.simulation import make_job, simulate

TRAINING = simpar.Training(seq_len=1024, global_batch=32)


def both(model, plan, *, hardware="dgx-h100"):
    """Results of a plan on two nodes and of the same written as stages."""
    graph, cluster = load_model(model), simpar.Cluster(hardware, nodes=2)
    checked = make_job(graph, cluster, plan, TRAINING).plan
    return simulate(graph, cluster, plan, TRAINING), simulate(
        graph, cluster, as_stages(checked, graph), TRAINING
    )


@pytest.mark.parametrize(
    "flat",
    [
        {"tp": 1, "pp": 1},
        {"tp": 2, "pp": 4},
        {"tp": 8, "pp": 2},
        {"tp": 2, "pp": 2, "recompute": "full"},
        {"tp": 4, "pp": 4, "recompute": "selective"},
        {"tp": 1, "pp": 8, "schedule": "zb-h1"},
        {"tp": 4, "pp": 1, "sequence_parallel": False},
        {"tp": 2, "pp": 4, "schedule": "gpipe", "layers": [10, 8, 8, 6]},
        {"tp": 2, "pp": 4, "micro_batch": 2, "overlap_grad_reduce": False, "overlap_param_gather": False},
    ],
    ids=str,
)
def test_stages_of_one_kind_are_the_uniform_plan(flat):
    """Tensor, sequence, data and pipeline parallelism fall out of roles and states, overlap and all."""
    uniform, staged = both("llama-3-8b", simpar.Plan(zero=1, **flat))
    assert staged.step_time_s == pytest.approx(uniform.step_time_s, rel=1e-9)
    assert staged.memory.static_memory_bytes == pytest.approx(uniform.memory.static_memory_bytes, rel=1e-6)
    assert staged.peak_memory_bytes == pytest.approx(uniform.peak_memory_bytes, rel=2e-3)


@pytest.mark.parametrize("hardware", ["rtx-3090-8", "a100-pcie-8"])
@pytest.mark.parametrize(
    "flat", [{"pp": 8}, {"tp": 2, "pp": 4}, {"tp": 4, "pp": 2, "recompute": "selective"}, {"tp": 4}], ids=str
)
def test_they_are_on_nodes_of_two_halves(hardware, flat):
    """Groups that cross the bridge between the halves of a node, or share a NIC, pay for it in either form.

    Tied embeddings, windows and a vocabulary of 262,000 words: what searched stages gain most on.
    """
    uniform, staged = both("gemma-3-1b", simpar.Plan(zero=1, **flat), hardware=hardware)
    assert staged.step_time_s == pytest.approx(uniform.step_time_s, rel=1e-9)
    assert staged.time_breakdown_s.model_dump() == pytest.approx(uniform.time_breakdown_s.model_dump())
    assert staged.peak_memory_bytes == pytest.approx(uniform.peak_memory_bytes, rel=2e-3)


def test_without_sequence_parallelism_pieces_are_gathered():
    """Between stages every device sends its own piece: the receivers, which need the whole, gather it."""
    plan = simpar.Plan(zero=1, tp=4, pp=2, sequence_parallel=False)
    uniform, staged = both("llama-3-8b", plan)
    assert uniform.step_time_s < staged.step_time_s < 1.01 * uniform.step_time_s


def test_encoder_decoders_run_as_stages():
    """The encoder's output crosses every later boundary, and its reduction stands where it is made."""
    uniform, staged = both("t5-3b", simpar.Plan(zero=1, tp=2, pp=4))
    assert staged.step_time_s == pytest.approx(uniform.step_time_s, rel=0.02)
    assert staged.memory.static_memory_bytes == pytest.approx(uniform.memory.static_memory_bytes, rel=1e-3)


@pytest.mark.parametrize(("senders", "receivers"), [(4, 4), (8, 2), (2, 8), (6, 4)])
def test_every_piece_crosses_once(senders, receivers):
    """Messages of a boundary carry every piece from one sender to the receiver that owns it, evenly."""
    one = StagePlan(layers=1, first_device=0, mesh=(senders,), sharding={})
    two = StagePlan(layers=1, first_device=senders, mesh=(receivers,), sharding={})
    pairs = np.concatenate(messages(one, two))
    pieces = np.lcm(senders, receivers)
    assert len(pairs) == pieces
    for column, count in ((0, senders), (1, receivers)):
        assert np.bincount(pairs[:, column] - pairs[:, column].min()).tolist() == [pieces // count] * count


def test_uneven_stages_on_different_meshes_run():
    """A deep narrow stage and a shallow wide one: all devices work, the plan survives its file."""
    graph, cluster = load_model("llama-3-8b"), simpar.Cluster("dgx-h100", nodes=2)
    plan = as_stages(make_job(graph, cluster, simpar.Plan(zero=1, tp=4, pp=2), TRAINING).plan, graph)
    first, second = plan.pipeline.stages
    stages = (
        first.model_copy(update={"layers": 8, "mesh": (1, 4)}),
        second.model_copy(update={"layers": 24, "mesh": (3, 4), "first_device": 4}),
    )
    training = simpar.Training(seq_len=1024, global_batch=48)
    uneven = plan.model_copy(
        update={"micro_batch": 3, "pipeline": plan.pipeline.model_copy(update={"stages": stages})}
    )
    again = simpar.Plan.model_validate_json(uneven.model_dump_json())
    results = [simulate(graph, cluster, each, training) for each in (uneven, again)]
    assert results[0].step_time_s == results[1].step_time_s
    assert [stage.stage for stage in results[0].memory.stages] == [0, 1]
    assert results[0].setup.fold["classes"] >= 2


def spoiled(plan, **changes):
    """The plan with fields of its first stage replaced."""
    first, *rest = plan.pipeline.stages
    stages = (first.model_copy(update=changes), *rest)
    return plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"stages": stages})})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 3}, "layers in all"),
        ({"first_device": 1}, "exactly one stage"),
    ],
)
def test_impossible_stages_say_why(change, message):
    """The broken rule and what is allowed, in one line."""
    graph, cluster = load_model("tiny-llama"), simpar.Cluster("dgx-h100")
    plan = as_stages(make_job(graph, cluster, simpar.Plan(zero=1, tp=2, pp=2), TRAINING).plan, graph)
    with pytest.raises(UserError, match=message):
        simulate(graph, cluster, spoiled(plan, **change), TRAINING)


def test_impossible_roles_say_why():
    """An attention has no rows of a matrix to share out."""
    graph, cluster = load_model("tiny-llama"), simpar.Cluster("dgx-h100")
    plan = as_stages(make_job(graph, cluster, simpar.Plan(zero=1, tp=2, pp=2), TRAINING).plan, graph)
    sharding = plan.pipeline.stages[0].sharding
    layer = sharding["layer"]
    wrong = layer.model_copy(update={"operators": {**layer.operators, "attention": ("batch", "row")}})
    with pytest.raises(UserError, match=r"layer\.attention as 'row'"):
        simulate(graph, cluster, spoiled(plan, sharding={**sharding, "layer": wrong}), TRAINING)
