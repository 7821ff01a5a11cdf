"""From a plan as it is asked for to its layout."""

from dataclasses import replace

from simpar.architectures.encoders import encoder_layers
from simpar.errors import UserError
from simpar.layout.check import check
from simpar.layout.decider import fill_open_choices
from simpar.layout.deciders import BY_DEVICES, BY_MODEL, BY_PLAN, BY_STACK, OFFLOAD, state_choices
from simpar.layout.layout import Layout, apply_execution_choices, stated_choices
from simpar.plan.choices.context_parallel import suit
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.stacks.stack import Stack, load_stack


def decide(plan: Plan, target: Workload, stack: Stack) -> Layout:
    """The layout of a plan on a model, its shape and devices, under a software stack.

    Everything is decided but what depends on costs. Raises UserError with the first rule that the plan breaks.
    """
    choices = fill_open_choices(stated_choices(plan), BY_PLAN, None)
    choices = fill_open_choices(choices, BY_STACK, suit(stack, target.graph))
    choices = fill_open_choices(choices, BY_MODEL, (target.graph, stack))
    choices = fill_open_choices(choices, BY_DEVICES, target)
    layout = Layout.of(plan, fill_open_choices(choices, (OFFLOAD,), stack))
    layout = replace(layout, record=layout.record.model_copy(update={"stack": stack.name}))
    if layout.encoder_in_bubbles:
        layout = replace(layout, encoder_layers=encoder_layers(target.graph))
    check(layout, target)
    if layout.has_narrow_masters and apply_execution_choices(stack, layout).numerics.parameter_dtype == "fp32":
        raise UserError(
            f"plan.master_dtype = {layout.master_dtype}: stack {stack.name} keeps parameters in fp32, with no master "
            "weights beside them; allowed: fp32, or parameter_dtype bf16"
        )
    return layout


def complete_plan(plan: Plan, target: Workload) -> Plan:
    """The checked plan that also states what follows from its devices; what it leaves to its stack stays open.

    It is checked under the stack that it names, else the default. Raises UserError as :func:`decide` does.
    """
    stack = load_stack(plan.usual_stack)
    layout = decide(plan, target, stack)
    names = ["schedule", *(name for decider in BY_DEVICES for name in decider.decides)]
    if not stack.numerics.update.keeps_gradients:
        names += OFFLOAD.decides
    if layout.stages:
        names += ["pp", "layers"]
    return state_choices(plan, {name: getattr(layout, name) for name in names})
