"""The plans next to a plan: what they change, what comes with a change, and what follows from it."""

from itertools import pairwise

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.layout.deciders import resolve
from simpar.layout.moves import (
    IN_MENUS,
    changes_making_room,
    changes_to,
    dependent_choices,
    forgone_savings,
    is_size,
    leaders,
    menus,
    replacements,
    reset_dependents,
    savings,
    single_changes,
    values_around,
)
from simpar.plan.choices import BY_NAME, value_of
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES
from simpar.stacks.stack import load_stack

GPT2 = Workload(load_model("gpt2"), Training(seq_len=1024, global_batch=32), 8, 8)
MIXTRAL = Workload(load_model("mixtral-8x7b"), Training(seq_len=2048, global_batch=64), 16, 8)
PLANS = (
    Plan(dp=8),
    Plan(tp=2, dp=4, micro_batch=4, zero=3),
    Plan(pp=4, vpp=2, dp=2, recompute="full"),
    Plan(tp=2, pp=2, cp=2, dp=1, schedule="zb-v", offload_optimizer="cpu"),
    Plan(ep=4, dp=8, zero=1, sync="diloco", sync_every=8),
)


@pytest.mark.parametrize(
    ("plan", "wanted", "unwanted"),
    [
        (
            Plan(dp=1),
            ({"micro_batch": 2}, {"tp": 2}, {"pp": 2}, {"recompute": "full"}),
            ({"zero": 1}, {"schedule": "gpipe"}),
        ),
        (
            Plan(tp=2, dp=4),
            ({"tp": 1}, {"zero": 3}, {"sequence_parallel": True}, {"offload_optimizer": "cpu"}),
            ({"pp": 0}, {"cp": 2}),
        ),
        (
            Plan(pp=4, vpp=4, dp=1),
            ({"vpp": 2}, {"vpp": 8}, {"schedule": "1f1b", "vpp": 1}, {"pp": 2}),
            ({"schedule": "interleaved"},),
        ),
        (Plan(pp=2, vpp=2, dp=1), ({"pp": 1, "vpp": 1}, {"schedule": "gpipe", "vpp": 1}), ({"pp": 1},)),
        (
            Plan(pp=2, dp=1, actions="0F0"),
            ({"recompute": "full"},),
            ({"micro_batch": 2}, {"pp": 4}, {"schedule": "gpipe"}),
        ),
    ],
)
def test_single_changes_are_of_what_the_plan_has(plan, wanted, unwanted):
    """Degrees double and halve; choices that mean nothing for the plan are left out."""
    changes = list(single_changes(plan, GPT2))
    assert [change for change in wanted if change not in changes] == []
    assert [change for change in unwanted if change in changes] == []


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("is_measured", [False, True])
def test_single_changes_change_something(plan, is_measured):
    """Every one gives its choice another value, and none comes twice."""
    changes = list(single_changes(plan, GPT2, is_measured=is_measured))
    assert all(any(plan.get(name) != value for name, value in change.items()) for change in changes)
    assert [change for at, change in enumerate(changes) if change in changes[:at]] == []


def test_every_schedule_but_the_pointless_one_is_tried():
    """Whatever the folder declares."""
    tried = {change["schedule"] for change in single_changes(Plan(pp=4), GPT2) if "schedule" in change}
    assert tried == {name for name, each in SCHEDULES.items() if each.searched != "never"} - {"1f1b"}


def test_measured_runs_may_lack_what_a_stack_does():
    """Overlap that is off, buckets and stages that the head makes uneven are changed for them only."""
    plan = Plan(
        pp=2, dp=4, zero=1, kind="ddp", bucket_bytes="40 MiB", overlap_grad_reduce=False, overlap_param_gather=False
    )
    usual = list(single_changes(plan, GPT2))
    more = [change for change in single_changes(plan, GPT2, is_measured=True) if change not in usual]
    mib = 2**20
    assert more == [
        {"overlap_grad_reduce": True}, {"overlap_param_gather": True}, {"bucket_bytes": 160 * mib},
        {"bucket_bytes": 10 * mib},
    ]  # fmt: skip
    uneven = Plan(pp=2, dp=4, layers=(5, 7))
    assert {"layers": (6, 6)} in list(single_changes(uneven, GPT2, is_measured=True))


@pytest.mark.parametrize("target", [GPT2, MIXTRAL])
@pytest.mark.parametrize("stack", ["megatron", "fsdp"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_is_in_the_space_around_it_and_in_its_menus(plan, target, stack):
    """With distinct values; sizes are ascending, and of experts they divide the model's."""
    resolved = resolve(plan, load_stack(stack))
    for values in (values_around(resolved, target), menus(resolved, target)):
        for name, each in values.items():
            assert value_of(resolved, name) in each, name
            assert len(set(map(str, each))) == len(each), name
            if is_size(name):
                assert each == sorted(each), name
    experts = target.graph.dims["experts"] if target.graph.is_mixture else 1
    own = {plan.mesh.ep}
    assert all(experts % size == 0 for size in {*values_around(resolved, target)["ep"]} - own)
    assert set(menus(resolved, target)) == set(IN_MENUS)


def test_a_value_comes_with_what_it_needs():
    """Chunks with their schedule, a schedule with its chunks, one pipeline rank without chunks, more with fewer."""
    assert list(changes_to(Plan(pp=4), "vpp", 2)) == [{"vpp": 2, "schedule": "interleaved"}]
    assert list(changes_to(Plan(pp=4, vpp=2), "vpp", 4)) == [{"vpp": 4}]
    assert list(changes_to(Plan(pp=4, schedule="breadth-first", vpp=4), "vpp", 2)) == [{"vpp": 2}]
    assert list(changes_to(Plan(pp=4, vpp=2), "schedule", "1f1b")) == [{"schedule": "1f1b", "vpp": 1}]
    assert list(changes_to(Plan(pp=4, vpp=4), "pp", 8)) == [{"pp": 8}, {"pp": 8, "vpp": 2}]
    assert next(changes_to(Plan(pp=4, vpp=4), "pp", 1)) == {"pp": 1, "vpp": 1}
    assert list(changes_to(Plan(), "zero", 3)) == [{"zero": 3}]


def test_room_is_made_without_making_the_change_idle():
    """What leaves the mesh as it is comes first; chunks need more than one pipeline rank."""
    plan = Plan(pp=2, vpp=2, cp=2, micro_batch=4)
    roomy = list(changes_making_room(plan, {"tp": 4}))
    assert roomy[:4] == [
        {"micro_batch": 1, "tp": 4}, {"schedule": "1f1b", "vpp": 1, "tp": 4}, {"pp": 1, "tp": 4},
        {"cp": 1, "tp": 4},
    ]  # fmt: skip
    assert {"micro_batch": 1, "cp": 1, "tp": 4} in roomy[4:]
    assert all(change.get("pp") != 1 for change in changes_making_room(plan, {"vpp": 4}))
    assert {"pp": 2, "vpp": 4} in list(changes_making_room(Plan(pp=4), {"vpp": 4}))


def test_a_replacement_replaces():
    """Of the nearest value first; one that the plan has already is none, and a model's fields have none."""
    assert list(replacements(Plan(dp=8, zero=1), "zero")) == [{"zero": 2}, {"zero": 0}, {"zero": 3}]
    assert list(replacements(Plan(tp=2, dp=4), "tp")) == [{"tp": 1, "dp": 8, "sequence_parallel": None}]
    assert {"recompute": "full"} not in list(replacements(Plan(recompute="full"), "recompute"))
    assert list(replacements(Plan(), "norm")) == []


@pytest.mark.parametrize("name", BY_NAME)
def test_moves_name_choices(name):
    """Keys of replacements are keys of a plan, and what leads a choice is a choice."""
    plan = Plan(tp=2, pp=2, dp=2, recompute="every:2", cp_method="ring", offload_optimizer="nvme")
    for change in replacements(plan, name):
        assert isinstance(plan.with_values(**change), Plan)
    assert leaders(name) <= {*BY_NAME}


def test_values_are_ranked_by_the_memory_they_save():
    """More is sharded, recomputed or elsewhere: the other way round it is given up."""
    for name, values in (
        ("zero", (0, 1, 2, 3)),
        ("recompute", ("none", "every:2", "full")),
        ("offload_optimizer", ("none", "nvme")),
        ("offload_activations", (0.0, 0.5)),
    ):
        plans = [Plan(**{name: value}) for value in values]
        for less, more in pairwise(plans):
            assert forgone_savings(more, less) == (name,)
            assert forgone_savings(less, more) == forgone_savings(more, more) == ()
    assert forgone_savings(Plan(tp=2), Plan()) == ()
    plan = Plan(zero=2, recompute="selective")
    assert list(savings(plan)) == [{"zero": 3}, {"recompute": "full"}]


def test_what_follows_from_a_change_is_left_open():
    """Ranks of data parallelism follow from the other degrees, layers from stages; what was not said is not named."""
    plan = Plan(tp=2, dp=4, pp=2, layers=(20, 12))
    assert reset_dependents({"tp": 4}, plan) == {"dp": None}
    assert reset_dependents({"pp": 4}, plan) == {"dp": None, "layers": None}
    assert reset_dependents({"micro_batch": 2}, plan) == {}
    assert reset_dependents({"tp": 4, "dp": 2}, plan) == {}


def test_a_degree_of_one_leaves_open_what_it_idles():
    """A schedule of no pipeline and sequences sharded over one rank say nothing, before a change and after it."""
    plan = Plan(tp=2, pp=2, schedule="1f1b", sequence_parallel=True)
    assert reset_dependents({"tp": 1, "pp": 1}, plan) == {"sequence_parallel": None, "schedule": None}
    assert reset_dependents({"tp": 4, "pp": 4}, plan) == {}
    assert "sequence_parallel" in dependent_choices({"tp": 2}, before={"tp": 1})
    assert "sequence_parallel" not in dependent_choices({"tp": 4}, before={"tp": 2})
