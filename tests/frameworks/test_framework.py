"""What the framework behind a stack cannot run of a plan next to another."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.frameworks import TARGETS, load_target, targets_of, unsupported
from simpar.frameworks.framework import framework_of, losses_of
from simpar.frameworks.target import STACKS
from simpar.layout.decide import decide
from simpar.plan.choices.target import Workload
from simpar.stacks.stack import load_stack
from tests.as_stages import as_stages

from .conftest import TRAINING, checked

TARGET = Workload(load_model("llama-3-8b"), TRAINING, 8, 8)


def test_every_target_has_its_stacks_in_the_table():
    """Under the name that it is listed by, and its own has habits of its own."""
    assert STACKS.keys() == TARGETS.keys()
    assert all(load_target(name).name == name for name in TARGETS)
    assert all(load_stack(stacks[0]).name == stacks[0] for stacks in STACKS.values())


def test_what_a_plan_already_loses_counts_no_further():
    """A neighbour is refused for what it changes, not for what was asked for."""
    stack = load_stack("torchtitan")
    framework = framework_of(checked("llama-3-8b", dp=8, zero=3), TARGET, stack)
    assert framework is not None
    assert framework.refusal(checked("llama-3-8b", dp=8, zero=2)) == ""
    assert framework.refusal(checked("llama-3-8b", dp=8, zero=1)).startswith("zero = 1: ")
    from_one = framework_of(checked("llama-3-8b", dp=8, zero=1), TARGET, stack)
    assert from_one.refusal(checked("llama-3-8b", dp=8, zero=1, micro_batch=2)) == ""


def test_a_stack_without_a_target_has_no_framework():
    """As those of published runs; variants of a stack learnt from it have that of the stack."""
    plan = checked("llama-3-8b", dp=8, zero=1)
    assert framework_of(plan, TARGET, load_stack("hai-llm")) is None
    megatron = load_stack("megatron")
    own = megatron.model_copy(update={"name": "ours", "learned_from": "megatron"})
    assert framework_of(plan, TARGET, own).name == framework_of(plan, TARGET, megatron).name


@pytest.mark.parametrize(
    ("release", "newest"), [("megatron-sc21", "megatron"), ("megatron-22", "megatron"), ("nemo-24", "nemo")]
)
def test_an_earlier_release_has_the_framework_of_its_stack(release, newest):
    """The newest profile names it, and no target does."""
    assert release in load_stack(newest).earlier.values()
    framework = framework_of(checked("llama-3-8b", dp=4, tp=2, zero=1), TARGET, load_stack(release))
    assert framework.name in targets_of(newest)


def test_targets_that_write_a_part_stand_in_where_there_is_no_other():
    """They say what they cannot express, but not that the stack cannot run it."""
    plan = checked("llama-3-8b", dp=4, tp=2, zero=1)
    framework = framework_of(plan, TARGET, load_stack("maxtext"))
    assert (framework.name, framework.runs_all) == ("maxtext", False)
    assert framework.reasons == unsupported(plan, TARGET.graph, TRAINING, "maxtext") != []
    other = framework_of(plan, TARGET, load_stack("fsdp"))
    assert other.runs_all
    assert other.name in {name for name in targets_of("fsdp") if load_target(name).runs_all}


def test_what_cannot_be_asked_at_all_is_no_refusal_of_a_neighbour():
    """Stages with layouts of their own, which no target has, are the reason, and not for a neighbour with the same."""
    uniform = checked("llama-3-8b", dp=4, pp=2, zero=1)
    staged = as_stages(uniform, TARGET.graph)
    swapped = tuple(
        each.model_copy(update={"first_device": first})
        for each, first in zip(staged.pipeline.stages, (4, 0), strict=True)
    )
    staged = staged.model_copy(update={"pipeline": staged.pipeline.model_copy(update={"stages": swapped})})
    framework = framework_of(staged, TARGET, load_stack("megatron"))
    assert framework.reasons == [framework.error] != [""]
    assert framework.refusal(staged) == ""
    assert framework.remark(uniform) == ""
    beside = framework_of(uniform, TARGET, load_stack("megatron"))
    assert beside.remark(staged) == f"{beside.name}: {framework.error}"


def test_dtypes_that_a_stack_decides_are_lost_where_a_plan_states_others():
    """A layout states its stack's dtype of optimizer states: it is exported as if it were left open."""
    stack = load_stack("megatron")
    numerics = stack.numerics.model_copy(update={"moment_dtype": "bf16"})
    ours = stack.model_copy(update={"numerics": numerics, "name": "ours", "learned_from": "megatron"})
    plan = checked("llama-3-8b", dp=8, zero=1)
    stated = decide(plan, TARGET, ours).to_plan()
    assert stated.numerics.moment_dtype == "bf16"
    left_open, as_stated, other = (
        [loss.field for loss in losses_of(each, TARGET, ours, "megatron")]
        for each in (plan, stated, plan.with_values(moment_dtype="fp16"))
    )
    assert left_open == as_stated == []
    assert other == ["numerics.moment_dtype"]
