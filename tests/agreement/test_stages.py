"""A uniform plan written as stages is the same step: to the nanosecond, and to the byte of its states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import simpar
from simpar.cost.stack import load_stack
from simpar.errors import UserError
from simpar.files import bundled
from simpar.models.catalogue import load_model
from simpar.plan.stages import StagePlan
from simpar.plan.uniform_stages import as_stages
from simpar.program.lower_stages import messages
from simpar.simulation import make_job, simulate

TRAINING = simpar.Training(seq_len=1024, global_batch=32)


STACKS = sorted(bundled("stacks"))
MODELS = ("llama-3.2-1b", "gpt2-medium", "gemma-3-1b")
"""Grouped queries; positions and biases; tied tables, windows and a vocabulary of 262,000 words."""


def small(model, layers=4):
    """The first layers of a model."""
    graph = load_model(model)
    return replace(graph, layers=graph.layers[:layers])


def both(graph, plan, *, hardware="dgx-h100", stack="megatron"):
    """Results of a plan on two nodes and of the same written as stages."""
    cluster = simpar.Cluster(hardware, nodes=2)
    checked = make_job(graph, cluster, plan, TRAINING, stack).plan
    return tuple(
        simulate(graph, cluster, form, TRAINING, stack=stack) for form in (plan, as_stages(checked, graph))
    )


def answers(result):
    """What the two forms must agree on: every class of time in ns; static, highest and reserved bytes."""
    times = {name: round(seconds * 1e9) for name, seconds in result.time_breakdown_s.model_dump().items()}
    memory = result.memory
    moving = [(stage.activations, stage.peak_op, stage.peak_time_s) for stage in memory.stages]
    return (
        round(result.step_time_s * 1e9),
        times,
        memory.peak_memory_bytes,
        memory.peak_reserved_bytes,
        moving,
    )


@st.composite
def plans(draw):
    """Plans that both forms can say."""
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    keys = {
        "recompute": ["none", "selective", "full"],
        "micro_batch": [1, 2],
        "overlap_grad_reduce": [None, True, False],
        "overlap_param_gather": [None, True, False],
        "bucket_bytes": [None, 25_000_000, 100_000_000],
        "grad_dtype": [None, "bf16", "fp32"],
        "optimizer": ["adamw", "sgd", "lion"],
        "reduce_dtype": [None, "bf16", "fp32"],
        "gather_dtype": [None, "fp8", "fp32"],
        "sequence_parallel": [None, True, False] if tp > 1 else [None],
        "schedule": ["1f1b", "gpipe", "zb-h1", "zb-h2"] if pp > 1 else [None],
    }
    chosen = {name: draw(st.sampled_from(values)) for name, values in keys.items()}
    return {
        "tp": tp, "pp": pp, "zero": 1, **{name: v for name, v in chosen.items() if v is not None},
    }  # fmt: skip


@pytest.mark.parametrize("stack", STACKS)
@given(
    flat=plans(),
    model=st.sampled_from(MODELS),
    hardware=st.sampled_from(["dgx-h100", "rtx-3090-8", "a100-pcie-8"]),
)
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
def test_stages_of_one_kind_are_the_uniform_plan(stack, flat, model, hardware):
    """Tensor, sequence, data and pipeline parallelism fall out of roles and states, under every stack's habits.

    Also on nodes whose halves share a bridge or a NIC.
    """
    uniform, staged = both(small(model), simpar.Plan(**flat), hardware=hardware, stack=stack)
    assert answers(staged) == answers(uniform)


@pytest.mark.parametrize("flat", [{"tp": 2, "pp": 4, "layers": [10, 8, 8, 6]}, {"tp": 8, "pp": 2}], ids=str)
def test_whole_models_agree(flat):
    """With all layers, spread unevenly or not."""
    uniform, staged = both(load_model("llama-3-8b"), simpar.Plan(zero=1, **flat))
    assert answers(staged) == answers(uniform)


def test_late_hosts_and_slow_agreements_count_in_both_forms():
    """What a stack's host adds to every tensor-parallel collective is not left out of stages."""
    stack = load_stack("megatron")
    slow = stack.model_copy(update={"launch": stack.launch.model_copy(update={"dispatch_s": 5e-5})})
    graph, plan = small("llama-3.2-1b"), simpar.Plan(zero=1, tp=4, pp=2)
    uniform, staged = both(graph, plan, stack=slow)
    assert answers(staged) == answers(uniform)
    assert uniform.step_time_s > both(graph, plan)[0].step_time_s


def test_encoder_decoders_run_as_stages():
    """The encoder's output crosses every later boundary, and its reduction stands where it is made."""
    uniform, staged = both(load_model("t5-3b"), simpar.Plan(zero=1, tp=2, pp=4))
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
