"""What a plan leaves open, decided: every choice by one decider, in one visible order.

Four groups know more and more: the plan's other choices, the software stack, the model, the devices. What depends on
these and the stack (whether gradients of offloaded states leave the device) comes last. What depends on costs is
decided after them, on the layout: by the deciders of :mod:`simpar.program.resolve.by_cost`.
"""

from collections.abc import Mapping
from math import lcm
from typing import Any

from simpar.architectures.encoders import encoder_layers
from simpar.architectures.graph import ModelGraph
from simpar.errors import UserError
from simpar.layout.decider import Decider, fill_open_choices
from simpar.layout.layout import stated_choices
from simpar.plan.choices import (
    context_parallel,
    data_parallel,
    execution,
    left_to_stacks,
    numerics,
    path_of,
    tensor_parallel,
)
from simpar.plan.choices.experts import Experts
from simpar.plan.choices.target import Workload, format_divisors
from simpar.plan.offload import offloads_gradients
from simpar.plan.plan import Plan
from simpar.plan.stage_layers import layers_by_cost
from simpar.plan.stages import StagePlan
from simpar.plan.sync import scheme_defaults
from simpar.stacks.stack import Stack

Stages = tuple[StagePlan, ...] | None


def _stages_of_their_own(_: object, *, stages: Stages) -> Mapping[str, Any]:
    """Stages with devices of their own are the ranks of a pipeline; the mesh inside each is its own."""
    return {"pp": len(stages)} if stages else {}


def _layers(
    known: tuple[ModelGraph, Stack], *, pp: int, vpp: int, stages: Stages, encoder_in_bubbles: bool
) -> Mapping[str, Any]:
    """Layers as stages state them, or spread by cost where the stack does so; as evenly as possible, they stay open."""
    graph, stack = known
    if stages:
        return {"layers": tuple(stage.layers for stage in stages)}
    if stack.launch.pipeline_balance != "cost" or pp * vpp == 1:
        return {}
    return {"layers": layers_by_cost(graph, pp * vpp, encoder_layers(graph) if encoder_in_bubbles else 0)}


def _replicas(target: Workload, *, tp: int, cp: int, pp: int, dp: int | None, stages: Stages) -> Mapping[str, Any]:
    """The ranks that the other axes leave. Raises UserError unless the mesh has as many ranks as there are devices."""
    if stages:
        return {"dp": 1}
    factors = f"tp x cp x pp = {tp} x {cp} x {pp} = {tp * cp * pp}"
    left, rest = divmod(target.world_size, tp * cp * pp)
    if rest:
        nodes = lcm(tp * cp * pp, target.devices_per_node) // target.devices_per_node
        raise UserError(
            f"plan: {factors} does not divide the {target.world_size} devices; allowed: a product of "
            f"{format_divisors(target.world_size)}, or {nodes} nodes ({nodes * target.devices_per_node} devices)"
        )
    if dp not in (None, left):
        raise UserError(
            f"plan.dp = {dp}: {factors} on {target.world_size} devices leaves {left}; allowed: {left}, or no dp"
        )
    return {"dp": left}


def _scheme(target: Workload, *, sync: str) -> Mapping[str, Any]:
    return scheme_defaults(sync, -(-target.world_size // target.devices_per_node))


def _offloaded_gradients(
    stack: Stack | None, *, offload_optimizer: str, zero: int, dp: int | None, cp: int, stages: Stages
) -> Mapping[str, Any]:
    """Under stages of their own, :func:`simpar.layout.staged.stage_layout` decides for each what a stack leaves open.

    Without a stack, as for what `simpar run` runs, gradients leave where they may.
    """
    if stack is not None and stack.numerics.update.keeps_gradients and offload_optimizer != "none":
        return {"offload_gradients": False}
    sends = None if stages else offloads_gradients(offload_optimizer, None, zero, (dp or 1) * cp)
    return {"offload_gradients": sends}


DISPATCH = Decider[object](
    ("token_dispatch",),
    ("token_dispatch", "dispatcher"),
    lambda _, **needed: execution.resolve_dispatch(**needed),
    open_value=Experts().token_dispatch,
)
BY_PLAN: tuple[Decider[object], ...] = (DISPATCH, Decider(("pp",), ("stages",), _stages_of_their_own, open_value=1))
BY_STACK: tuple[Decider[Stack], ...] = (
    Decider(
        left_to_stacks("data_parallel"), ("kind", "zero", "pp", "stages", "overlap_grad_reduce"), data_parallel.by_stack
    ),
    Decider(left_to_stacks("context_parallel"), (), context_parallel.by_stack),
    Decider(left_to_stacks("tensor_parallel"), ("tp", "stages"), tensor_parallel.by_stack),
    Decider(left_to_stacks("numerics"), ("precision", "optimizer"), numerics.by_stack),
)
BY_MODEL: tuple[Decider[tuple[ModelGraph, Stack]], ...] = (
    Decider(("layers",), ("pp", "vpp", "stages", "encoder_in_bubbles"), _layers),
)
SCHEME = Decider[Workload](("sync_every", "staleness", "servers"), ("sync",), _scheme)
OFFLOAD = Decider[Stack | None](
    ("offload_gradients",), ("offload_optimizer", "zero", "dp", "cp", "stages"), _offloaded_gradients
)
BY_DEVICES: tuple[Decider[Workload], ...] = (Decider(("dp",), ("tp", "cp", "pp", "dp", "stages"), _replicas), SCHEME)
DECIDERS: tuple[Decider[Any], ...] = (*BY_PLAN, *BY_STACK, *BY_MODEL, *BY_DEVICES, OFFLOAD)
"""All of them, in the order in which they decide."""


_RESOLVING: tuple[Decider[Any], ...] = (DISPATCH, *BY_STACK)
_RESOLVED = tuple(dict.fromkeys(name for each in _RESOLVING for name in (*each.decides, *each.needs)))


def resolve(plan: Plan, stack: Stack) -> Plan:
    """The plan that also states what it leaves to its stack."""
    choices = fill_open_choices(stated_choices(plan, _RESOLVED), _RESOLVING, stack)
    decided = {name: choices[name] for decider in _RESOLVING for name in decider.decides}
    return state_choices(plan, decided).model_copy(update={"stack": stack.name})


def state_choices(plan: Plan, choices: Mapping[str, Any]) -> Plan:
    """The plan that also states the values of some choices of its sections, by name; None stays open."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in choices.items():
        section, field = path_of(name)
        if value is not None and getattr(getattr(plan, section), field) != value:
            sections.setdefault(section, {})[field] = value
    changed = {name: getattr(plan, name).model_copy(update=values) for name, values in sections.items()}
    return plan.model_copy(update=changed)
