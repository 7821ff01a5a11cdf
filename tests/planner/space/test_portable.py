"""Export targets and frameworks leave out what they do not have, and nothing else."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import simpar
from simpar.errors import Infeasible
from simpar.frameworks import TARGETS, load_target, targets_of, unsupported
from simpar.planner import Constraints, make_problem
from simpar.planner.certify.scope import scope
from simpar.planner.progress import SearchProgress
from simpar.planner.space.jobs import fill_dp, plan_of
from simpar.planner.space.portable import losses, of_its_framework, refusals
from simpar.planner.space.rows import enumerate_space
from simpar.planner.uniform import search_runnable
from simpar.stacks.stack import load_stack
from tests.gate import some
from tests.target_bases import BASES

HELD = {"micro_batch": 1, "vpp": (1, 2), "cp": (1, 2), "tp": (1, 8)}


def problem_of(model="llama-3-8b", stack=None, fixed=HELD, base=None, **constraints):
    """A small model on one node of eight."""
    training = simpar.Training(seq_len=512, global_batch=16)
    asked = Constraints(fixed=fixed, **constraints)
    more = {} if base is None else {"base": base}
    return make_problem(model, simpar.Cluster("dgx-h100"), training, stack=stack, constraints=asked, **more)


def layout(rows, row):
    """The plan of a row, of which the order of ranks says nothing without replicas."""
    plan = plan_of(rows, row)
    plan = plan.with_values(rank_order="tp-cp-dp-pp") if rows["dp"][row] == 1 else plan
    return plan.model_dump_json()


GATE = [(target, None, 50) for target in ("torchtitan",)]


@pytest.mark.parametrize(
    ("target", "stack", "count"), some([*GATE, *product(TARGETS, (None, "megatron"), (300,))], GATE, tuples=True)
)
def test_no_layout_that_a_target_can_express_is_left_out(target, stack, count):
    """Of the whole space those that it takes are rows, with schedules that it takes without replicas alone."""
    scaled = "llama-3.1-8b"  # whose positions are scaled, as those of torchtitan 0.2's flavours
    model = scaled if target == "torchtitan-0.2" else "llama-3-8b"
    asked = problem_of(model, stack, base=BASES.get(target), portable=target)
    narrow, whole = (enumerate_space(asked), enumerate_space(replace(asked, constraints=Constraints(fixed=HELD))))
    there = {layout(narrow, row) for row in range(narrow.count)}
    looked_at = np.unique(np.linspace(0, whole.count - 1, count, dtype=np.int64))
    taken = [row for row in looked_at if not losses(asked, fill_dp(whole, int(row)), target)]
    assert {layout(whole, int(row)) for row in taken} <= there
    assert 0 < narrow.count < whole.count
    assert any(not refusals(narrow, row) for row in range(0, narrow.count, max(narrow.count // 40, 1)))
    if target in ("torch", "torchtitan"):
        assert narrow.one_of("schedule", "zb-v").any()


def test_a_target_is_predicted_for_its_own_stack():
    """Where no stack is given."""
    assert [problem_of(portable=name).stack.name for name in TARGETS] == [load_target(name).stack for name in TARGETS]
    assert problem_of(portable="any").stack.name == "megatron"
    assert problem_of(stack="nemo", portable="torchtitan").stack.name == "nemo"


def test_zero_3_is_deepspeeds():
    """That nothing is gathered once a step under ZeRO-3 is no choice against its habit."""
    rows = enumerate_space(problem_of(portable="deepspeed"))
    assert (rows["zero"] == 3).any()
    assert not refusals(rows, int(np.flatnonzero(rows["zero"] == 3)[0]))


@pytest.mark.parametrize(
    ("stack", "target"),
    [
        ("megatron", "megatron"), ("nemo", "megatron-bridge"), ("torchtitan", "torchtitan"), ("fsdp", "accelerate"),
        ("deepspeed", "deepspeed"), ("nanotron", "nanotron"), ("simpar", None), ("ddp", None), ("maxtext", None),
    ],
)  # fmt: skip
def test_the_framework_behind_a_stack_decides(stack, target):
    """Stacks without a target, and those that `simpar run` runs, keep the whole space."""
    problem = problem_of(stack=stack)
    decided = of_its_framework(problem)
    assert decided.target == target
    assert (decided is problem) == (target is None)
    if target:
        assert stack in load_target(target).stacks
        assert target in targets_of(stack)
    assert of_its_framework(replace(problem, constraints=Constraints(portable="any"))).target is None
    assert of_its_framework(problem_of(stack=stack, portable="torch")).target == "torch"


def test_a_learnt_stack_keeps_its_framework():
    """A profile of one's own runs what the one it was learnt from runs."""
    ours = load_stack("nemo").model_copy(update={"name": "ours", "learned_from": "nemo"})
    cluster, training = simpar.Cluster("dgx-h100"), simpar.Training(seq_len=4096, global_batch=32)
    known, own = (of_its_framework(make_problem("llama-3-8b", cluster, training, stack=one)) for one in ("nemo", ours))
    assert own.framework is not None
    assert own.framework == known.framework


@pytest.mark.parametrize(
    ("stack", "target"),
    some([("megatron", "megatron"), ("fsdp", "accelerate"), ("nanotron", "nanotron")], 1, tuples=True),
)
def test_what_choices_alone_decide_is_refused_in_every_layout(stack, target):
    """Layouts that agree in the choices which decide a loss all have it, so that one of them tells of all."""
    asked = problem_of(stack=stack, portable="any")
    rows = enumerate_space(asked)
    each = [fill_dp(rows, int(row)) for row in np.linspace(0, rows.count - 1, 60, dtype=np.int64)]
    lost = [losses(asked, plan, target) for plan in each]

    def decided(plan, names):
        sizes = {**plan.mesh.model_dump(), "schedule": plan.schedule}
        return tuple(sizes[name] if name == "schedule" else (sizes[name] or 1) > 1 for name in names)

    known = {(one.field, one.decided_by, decided(plan, one.decided_by))
             for plan, all_ in zip(each, lost, strict=True) for one in all_ if one.decided_by}  # fmt: skip
    assert known
    for plan, all_ in zip(each, lost, strict=True):
        refused = {one.field for one in all_}
        assert {field for field, names, values in known if decided(plan, names) == values} <= refused


def test_a_framework_is_asked_once_about_a_schedule_that_it_does_not_have(monkeypatch):
    """What it says of one layout holds for all with a pipeline."""
    asked = list[str]()

    def noted(problem, plan, target):
        asked.append(plan.schedule)
        return losses(problem, plan, target)

    monkeypatch.setattr("simpar.planner.space.portable.losses", noted)
    rows = enumerate_space(of_its_framework(problem_of()))
    assert "zb-v" in rows.left_out["schedule"]
    assert [asked.count(name) for name in ("zb-v", "gpipe", "dualpipev")] == [1, 1, 1]


def test_what_was_asked_for_stays():
    """Schedules that are listed and axes that are held are searched, whatever the framework has; others are not."""
    usual = enumerate_space(of_its_framework(problem_of()))
    assert set(np.unique(usual.code["schedule"])) == {
        usual.domain["schedule"].index(n) for n in ("1f1b", "interleaved")
    }
    assert "zb-v" in usual.left_out["schedule"]
    listed = enumerate_space(of_its_framework(problem_of(schedules=("1f1b", "zb-v"))))
    assert listed.one_of("schedule", "zb-v").any()
    held = enumerate_space(of_its_framework(problem_of(stack="nanotron", fixed={**HELD, "zero": (0, 3)})))
    assert (held["zero"] == 3).any()
    assert "recompute" in held.left_out


@pytest.mark.parametrize(
    ("model", "base"), some([("llama-3.2-1b", simpar.Plan(optimizer="muon")), ("bert-base", None)], 1, tuples=True)
)
def test_models_and_plans_that_no_target_can_be_told_are_searched(model, base):
    """Still with the schedules of the framework alone, which is said, and how to widen the space."""
    problem = problem_of(model, fixed={**HELD, "tp": 1, "cp": 1, "pp": (1, 2)}, base=base)
    answer = search_runnable(problem, SearchProgress(top=1, brief=True))
    told = answer.details["scope"]["decided_by"]
    assert (told["target"], told["asked"]) == ("megatron", False)
    assert "zb-v" in told["left_out"]["schedule"]
    assert "zb-v" not in answer.details["scope"]["searched"]["schedule"]
    assert answer.details["not_portable"]
    with pytest.raises(Infeasible, match=r"megatron can express none, not even the simplest: (model|optimizer) = "):
        enumerate_space(replace(problem, constraints=Constraints(portable="megatron")))


def test_the_scope_has_no_values_that_were_left_out():
    """Nor does it say that anything decided where nothing did."""
    problem = of_its_framework(problem_of(stack="fsdp"))
    rows = enumerate_space(problem)
    told = scope(problem, rows.left_out)
    assert told["held"]["pp"] == 1
    assert set(told["decided_by"]["left_out"]["pp"]) == {2, 4, 8}
    assert scope(problem_of())["decided_by"] is None


@pytest.mark.parametrize(
    ("hardware", "most"), some([("dgx-h100", 8), ("gb200-nvl72", 4), ("tpu-v5p-pod", 16)], 2, tuples=True)
)
def test_a_search_refuses_what_the_export_refuses_on_its_cluster(hardware, most):
    """MaxText spreads experts inside of a node of GPUs, whatever its size, and over all of a pod of TPUs."""
    name, target = "qwen3-30b-a3b", "maxtext"
    training = simpar.Training(seq_len=512, global_batch=64)
    held = {**HELD, "pp": 1, "cp": 1, "tp": (1, 2), "zero": 3, "recompute": "full", "ep": (2, 4, 8, 16)}
    cluster = simpar.Cluster(hardware, nodes=4)
    asked = make_problem(name, cluster, training, constraints=Constraints(fixed={**held, "etp": 1}, portable=target))
    rows = enumerate_space(asked)
    taken = set()
    for row in range(0, rows.count, max(rows.count // 60, 1)):
        where = {"stack": asked.stack.name, "cluster": {"hardware": hardware, "nodes": 4}}
        plan = fill_dp(rows, row).model_copy(update=where)
        said = unsupported(plan, asked.graph, training, target)
        assert refusals(rows, row) == said
        taken |= set() if said else {plan.mesh.ep}
    assert max(taken) == most
