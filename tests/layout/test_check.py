"""Which plans can be: every combination that cannot says why and what is allowed, in one line."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.layout.action_table import schedule_of
from simpar.layout.decide import complete_plan
from simpar.layout.layout import Layout
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.plan.schedules import make_schedule
from simpar.plan.stage_layers import layers_by_cost


def test_dp_and_the_schedule_are_filled_in(target):
    """What follows from the rest is written into the checked plan."""
    plan = complete_plan(Plan(tp=8, pp=2), target(64))
    assert (plan.mesh.dp, plan.pipeline.schedule) == (4, "1f1b")
    assert complete_plan(Plan(pp=2, vpp=2), target(2)).pipeline.schedule == "interleaved"
    assert complete_plan(plan, target(64)) == plan


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"tp": 8, "pp": 3},
            "24 does not divide the 64 devices; allowed: a product of 1, 2, 4, 8, 16, 32, 64, or 3 nodes (24",
        ),
        ({"tp": 8, "dp": 4}, "plan.dp = 4: tp x cp x pp = 8 x 1 x 1 = 8 on 64 devices leaves 8; allowed: 8"),
        ({"tp": 64}, "plan.tp = 64: does not divide the attention heads 32; allowed: 1, 2, 4, 8, 16, 32"),
        (
            {"cp": 64, "cp_method": "ulysses"},
            "plan.ulysses = 64: splits the heads of a rank, which has 32 (8 key-value); allowed: 1, 2, 4, 8, 16, 32",
        ),
        (
            {"cp": 8, "cp_method": "ulysses", "ulysses": 4},
            "plan.ulysses = 4: cp_method ulysses takes all of cp = 8; allowed: 8, or cp_method ring or all_gather",
        ),
        ({"cp": 8, "cp_method": "ring", "ulysses": 3}, "plan.ulysses = 3: does not divide cp = 8; allowed: 1, 2, 4, 8"),
        ({"ep": 2}, "plan.ep = 2: llama-3-8b has no experts; allowed: 1"),
        ({"sequence_parallel": True}, "plan.sequence_parallel = true: needs tp > 1"),
        ({"micro_batch": 3}, "plan.micro_batch = 3: does not divide the 4 sequences of a rank"),
        ({"pp": 64}, "64 stages for 32 layers; allowed: at most 34"),
        ({"pp": 2, "layers": (16, 15)}, "plan.layers: 31 layers in all; allowed: the model's 32"),
        ({"pp": 2, "layers": (32,)}, "plan.layers: 1 stages; allowed: one number for each of pp x vpp = 2"),
        ({"pp": 4, "layers": (0, 0, 16, 16)}, "plan.layers: stage 1 has none; allowed: 0 in the first and the last"),
        ({"pp": 2, "schedule": "gpipe", "vpp": 2}, "schedule gpipe: vpp = 2; allowed: 1"),
        ({"pp": 2, "schedule": "zb-v", "vpp": 1}, "schedule zb-v: vpp = 1; allowed: 2"),
        ({"pp": 8, "schedule": "dualpipev", "micro_batch": 4}, "8 microbatches; allowed: at least 2 x pp = 16"),
        ({"pp": 2, "schedule": "dualpipe", "sync": "local-sgd"}, "dualpipe has two copies of every stage"),
        ({"pp": 2, "actions": "0F0,0B0\n1F0,1B0"}, "the action table has 1 microbatches; allowed: 8"),
        ({"actions": "0F0"}, "needed are one F and either one B or one I and one W"),
        ({"hsdp": 2}, "plan.hsdp = 2: makes replicas of sharded states; allowed: with zero 1, 2 or 3"),
        ({"hsdp": 3, "zero": 3}, "plan.hsdp = 3: does not divide dp = 64"),
        ({"kind": "fsdp", "zero": 1}, "plan.kind = fsdp with zero = 1: fsdp shards gradients; allowed: zero 2 or 3"),
        ({"kind": "single_process"}, "plan.kind = single_process: 64 devices; allowed: those of one node, 8"),
        ({"kind": "single_process", "zero": 1}, "plan.zero = 1: single_process keeps all states"),
        ({"kind": "single_process", "pp": 2}, "plan.pp = 2: single_process is pure data parallelism; allowed: 1"),
    ],
)
def test_what_cannot_be_says_why(target, values, said):
    """The line names the culprit, its value, the rule and what is allowed."""
    with pytest.raises(UserError) as caught:
        complete_plan(Plan(**values), target(64))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "shape", "said"),
    [
        (
            {"tp": 2, "sequence_parallel": True},
            {"seq_len": 4095},
            "does not divide the seq_len (sequence parallel) 4095; allowed: 1, or plan.sequence_parallel = false",
        ),
        (
            {"cp": 2, "cp_balance": "zigzag"},
            {"seq_len": 126},
            "seq_len = 126 does not divide into 2 x 2 equal pieces (tp = 1, cp_balance = zigzag); allowed: 1, 3, 7",
        ),
        ({"cp": 2, "cp_balance": "zigzag"}, {"seq_len": 127}, "(tp = 1, cp_balance = zigzag); allowed: 1"),
        ({"cp": 2, "cp_balance": "zigzag"}, {"seq_len": 1}, "(tp = 1, cp_balance = zigzag); allowed: 1"),
        (
            {},
            {"global_batch": 96},
            "plan.dp = 64: does not divide global_batch = 96; allowed: a multiple of dp, such as 64",
        ),
        ({}, {"global_batch": 9}, "global_batch = 9; allowed: a multiple of dp, such as 64, or a dp that divides 9"),
        (
            {"pp": 8, "vpp": 2},
            {"global_batch": 96},
            "schedule interleaved: 12 microbatches; allowed: a multiple of pp = 8",
        ),
        ({}, {"global_batch": 2**40}, "larger micro-batches or more data parallelism"),
    ],
)
def test_the_training_shape_has_to_fit(target, values, shape, said):
    """Sequence length and batch are checked against the split."""
    with pytest.raises(UserError) as caught:
        complete_plan(Plan(**values), target(64, **shape))
    assert said in str(caught.value)
    assert not said.endswith("allowed: 1") or str(caught.value).endswith(said)


def test_key_value_heads_are_divided_or_copied(target):
    """With 8 key-value heads, tp 4 divides and tp 16 copies them."""
    for tp in (4, 16, 32):
        assert complete_plan(Plan(tp=tp), target(64)).mesh.tp == tp


@pytest.mark.parametrize("zero", [2, 3])
def test_sharded_gradients_and_pipelines_combine(target, zero):
    """ZeRO 2 and 3 are allowed with a pipeline, with and without replicas."""
    complete_plan(Plan(pp=4, zero=zero, hsdp=2, kind="fsdp"), target(64))


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "expected"),
    [
        (32, 4, 1, (8, 8, 8, 8)),
        (33, 4, 1, (8, 9, 8, 8)),
        (34, 4, 1, (8, 9, 9, 8)),
        (35, 4, 1, (9, 9, 9, 8)),
        (10, 2, 2, (2, 3, 3, 2)),
        (5, 1, 1, (5,)),
        (3, 2, 1, (2, 1)),
        (4, 6, 1, (0, 1, 1, 1, 1, 0)),
        (4, 5, 1, (1, 1, 1, 1, 0)),
    ],
)
def test_layers_are_spread_evenly(layers, pp, vpp, expected):
    """A remainder goes one each to stages without embedding and head, from the front; then first, last."""
    assert Layout.of(Plan(pp=pp, vpp=vpp)).stage_layers(layers) == expected


def test_llama_3_405b_has_one_layer_fewer_at_both_ends():
    """126 layers in 64 chunks are 2 each, 1 in the first and in the last [arXiv 2407.21783, 3.3.2]."""
    counts = Layout.of(Plan(pp=16, vpp=4)).stage_layers(126)
    assert counts == (1, *[2] * 62, 1)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (2, (18, 14)),  # the head counts as 2.4 layers, and a stage ends with the layer that fills it
        (32, (2, *30 * (1,), 0)),
        (34, None),
    ],
)
def test_layers_by_cost_leave_no_stage_empty_before_the_last(stages, expected):
    """The head is more than a stage's share of 32: nanotron leaves stages behind it without layers."""
    assert layers_by_cost(load_model("llama-3-8b"), stages) == expected


def test_layers_as_given(target):
    """An explicit list is taken as it is; the ends may hold embedding and head alone."""
    plan = complete_plan(Plan(pp=4, layers=(0, 16, 16, 0)), target(64))
    assert Layout.of(plan).stage_layers(32) == (0, 16, 16, 0)


def test_a_plan_can_carry_its_own_table(target):
    """A CSV of the right shape is the schedule; anything the table says is run."""
    table = make_schedule("zb-h2", 4, 16)
    plan = complete_plan(Plan(pp=4, actions=table.to_csv()), target(64))
    assert plan.pipeline.schedule == "custom"
    assert schedule_of(Layout.of(plan), target(64).training).to_csv() == table.to_csv()


def test_durations_reach_the_schedules_that_look_at_them(target):
    """V-Half made for the true durations is another table than for equal ones; 1F1B is not."""
    training = target(64).training
    for name, differs in (("v-half", True), ("1f1b", False)):
        plan = complete_plan(Plan(pp=8, schedule=name), target(64))
        tables = {
            schedule_of(Layout.of(plan.with_values(pass_costs=costs)), training).to_csv()
            for costs in ((1.0, 1.0, 1.0), (10.0, 12.0, 8.0))
        }
        assert (len(tables) == 2) is differs


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ep": 3}, "plan.ep = 3: does not divide the 16 experts; allowed: 1, 2, 4, 8, 16"),
        ({"tp": 8, "ep": 2, "etp": 16}, "plan.etp = 16: does not divide tp = 8 and the experts' ffn size 128"),
        (
            {"tp": 4, "ep": 16, "etp": 4, "pp": 2},
            "ep x etp = 16 x 4 does not divide the tp x cp x dp = 32 ranks of a stage; allowed: 1, 2, 4, 8",
        ),
        ({"tp": 2, "ep": 4, "sequence_parallel": False}, "take each token from one rank; allowed: true"),
        ({"ep": 16, "zero": 3, "hsdp": 8}, "plan.hsdp = 8: does not divide the 4 ranks that hold the same experts"),
    ],
)
def test_experts_that_cannot_be_spread_say_why(values, said):
    """Experts, their slices and the ranks that hold copies of them must divide."""
    plan = Plan(**values)
    target = Workload(load_model("tiny-mixture"), Training(seq_len=512, global_batch=64), 64, 8)
    with pytest.raises(UserError) as caught:
        complete_plan(plan, target)
    assert said in str(caught.value)


def test_rows_of_another_tower_have_to_divide():
    """Those of Whisper's encoder are 1,500, whatever the text's length."""
    said = "plan.cp = 8: 1500 rows of the other tower's output do not divide into 8 x 1 equal pieces; allowed: 1, 2, 3"
    with pytest.raises(UserError, match=said):
        simpar.simulate("whisper-tiny", "dgx-h100", simpar.Plan(cp=8), simpar.Training(seq_len=448, global_batch=8))
