"""What a plan leaves open, decided: every choice by one decider, in one visible order.

Three groups know more and more: the software stack, the model, the devices. What depends on costs (recomputation where
it is "optimal", durations of passes, token slices) is decided after them, on the layout, by
:func:`simpar.simulation.make_job`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from simpar.architectures.graph import ModelGraph
from simpar.plan.choices import CHOICES, context_parallel, data_parallel, execution, numerics, path_of, tensor_parallel
from simpar.plan.choices.target import Workload
from simpar.plan.offload import offloads_gradients
from simpar.plan.plan import Plan
from simpar.plan.stage_layers import layers_by_cost
from simpar.plan.staged import has_tensor_ranks
from simpar.plan.sync import scheme_defaults
from simpar.stacks.stack import Stack

Known = TypeVar("Known", contravariant=True)


@dataclass(frozen=True)
class Decider(Generic[Known]):
    """One step of deciding a plan.

    ``values`` are those of the choices that it ``decides``, for a plan that states what it ``needs`` and for what else
    is known. What a plan states itself stays.
    """

    decides: tuple[str, ...]
    needs: tuple[str, ...]
    values: Callable[[Plan, Known], Mapping[str, Any]]


def _by_cost(plan: Plan, known: tuple[ModelGraph, Stack]) -> Mapping[str, Any]:
    """Layers spread over stages by cost where the stack does so; as evenly as possible, they stay open."""
    (graph, stack), stages = known, plan.mesh.pp * plan.pipeline.vpp
    if stack.launch.pipeline_balance != "cost" or plan.pipeline.layers or stages == 1:
        return {}
    return {"layers": layers_by_cost(graph, stages)}


def _of_devices(plan: Plan, target: Workload) -> Mapping[str, Any]:
    mesh = plan.mesh
    return {"dp": target.world_size // (mesh.tp * mesh.cp * mesh.pp), "schedule": plan.schedule}


BY_STACK: tuple[Decider[Stack], ...] = (
    Decider(
        (
            "kind", "bucket_bytes", "first_bucket_bytes", "overlap_grad_reduce", "overlap_param_gather",
            "reshard_after_forward",
        ),
        ("zero", "pp", "stages"),
        lambda plan, stack: data_parallel.by_stack(
            plan.data_parallel, stack, max(plan.mesh.pp, len(plan.pipeline.stages or ()))
        ),
    ),
    Decider(("cp_method", "cp_balance"), (), lambda _, stack: context_parallel.by_stack(stack)),
    Decider(
        ("sequence_parallel", "tp_overlap"),
        ("tp", "stages"),
        lambda plan, stack: tensor_parallel.by_stack(stack, has_tensor_ranks(plan)),
    ),
    Decider(
        ("grad_dtype", "master_weights", "moment_dtype"),
        ("precision", "optimizer"),
        lambda plan, stack: numerics.by_stack(plan.numerics, stack),
    ),
)  # fmt: skip
BY_MODEL: tuple[Decider[tuple[ModelGraph, Stack]], ...] = (Decider(("layers",), ("pp", "vpp"), _by_cost),)
BY_DEVICES: tuple[Decider[Workload], ...] = (
    Decider(("dp", "schedule"), ("tp", "cp", "pp", "vpp", "actions"), _of_devices),
    Decider(
        ("sync_every", "staleness", "servers"),
        ("sync",),
        lambda plan, target: scheme_defaults(plan.data_parallel, -(-target.world_size // target.devices_per_node)),
    ),
    Decider(
        ("offload_gradients",),
        ("offload_optimizer", "zero", "dp", "cp"),
        lambda plan, _: {
            "offload_gradients": offloads_gradients(plan.offload, plan.data_parallel.zero, plan.mesh.gradient_ranks)
        },
    ),
)
DECIDERS: tuple[Decider[Any], ...] = (*BY_STACK, *BY_MODEL, *BY_DEVICES)
"""All of them, in the order in which they decide."""


def fill_open_choices(plan: Plan, deciders: Iterable[Decider[Known]], known: Known) -> Plan:
    """The plan in which some deciders have decided what it leaves open."""
    for decider in deciders:
        for name, value in decider.values(plan, known).items():
            section, field = path_of(name)
            part = getattr(plan, section)
            if value is not None and getattr(part, field) is None:
                plan = plan.model_copy(update={section: part.model_copy(update={field: value})})
    return plan


def resolve(plan: Plan, stack: Stack) -> Plan:
    """The plan with everything that it leaves to its stack decided."""
    sent = {"stack": stack.name, "experts": execution.resolve_dispatch(plan)}
    return fill_open_choices(plan, BY_STACK, stack).model_copy(update=sent)


def apply_execution_choices(stack: Stack, plan: Plan) -> Stack:
    """The stack that executes a step as a plan chose: its policies, with those of the plan in their place."""
    for choice in CHOICES:
        if choice.in_stack is not None and (value := plan.get(choice.name)) is not None:
            stack = choice.in_stack(stack, value)
    return stack
