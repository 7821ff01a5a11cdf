"""From a plan as written to one that can run: defaults resolved, combinations checked, schedule made. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.layout.check import check, schedule_of
from simpar.layout.decide import decide
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.plan.choices.target import Workload
from simpar.plan.megatron_roles import in_roles
from simpar.plan.offload import check_offload, decide_offload
from simpar.plan.plan import Plan
from simpar.plan.schedules.actions import Schedule
from simpar.plan.staged import refuse_in_roles
from simpar.plan.sync import fill_scheme_defaults
from simpar.runtime.strategy import Strategy, choose
from simpar.stacks.stack import load_stack

STACK = "simpar"


@dataclass(frozen=True)
class Prepared:
    """A resolved plan, its action table (None for a user's model), and its strategy in torch."""

    plan: Plan
    schedule: Schedule | None
    strategy: Strategy
    selective: str


def prepare(plan: Plan, graph: ModelGraph | None, training: Training, world_size: int) -> Prepared:
    """Resolve everything before torch starts. Raises UserError for plans that cannot run.

    ``graph`` is None for a user's model, which is data parallel only.
    """
    if training.documents is not None:
        raise UserError("training.documents: a real run takes the lengths that its data has; allowed: none")
    stack = load_stack(plan.stack or STACK)
    plan = resolve(plan, stack)
    if graph is None:
        dp = plan.mesh.dp or world_size
        data = fill_scheme_defaults(plan.data_parallel, 1)
        plan = plan.model_copy(update={"mesh": plan.mesh.model_copy(update={"dp": dp}), "data_parallel": data})
        check_offload(plan)
        plan = plan.model_copy(update={"offload": decide_offload(plan)})
        return Prepared(plan, None, choose(plan, None), stack.memory.selective)
    target = Workload(graph, training, world_size, world_size)
    plan = decide(plan, target, stack).to_plan()
    if stages := plan.pipeline.stages:
        plan = in_roles(plan, graph)
        if not any(stage.sharding for stage in stages):  # otherwise refused above, for another reason
            refuse_in_roles(plan, graph, "a real run gives every operator its role")
        plan = check(plan, target)
    schedule = schedule_of(Layout.of(plan), training)
    return Prepared(plan, schedule, choose(plan, schedule, graph), stack.memory.selective)
