"""What the framework behind a stack cannot run of a plan next to another."""

from simpar.architectures.catalogue import load_model
from simpar.frameworks.framework import framework_of
from simpar.plan.choices.target import Workload
from simpar.stacks.stack import load_stack

from .conftest import TRAINING, checked

TARGET = Workload(load_model("llama-3-8b"), TRAINING, 8, 8)


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
