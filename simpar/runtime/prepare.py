"""From a plan as written to one that can run: defaults resolved, combinations checked, schedule made. No torch."""

from dataclasses import replace
from functools import cached_property

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training, check_positions
from simpar.dataclass import dataclass
from simpar.layout.action_table import schedule_of
from simpar.layout.decide import decide
from simpar.layout.decider import fill_open_choices
from simpar.layout.deciders import OFFLOAD, SCHEME, resolve, state_choices
from simpar.layout.layout import Layout, stated_choices
from simpar.layout.rules import offload_refusals
from simpar.layout.staged import role_refusals
from simpar.plan.choices.target import Workload, refuse
from simpar.plan.megatron_roles import in_roles
from simpar.plan.plan import Plan
from simpar.plan.schedules.actions import Schedule
from simpar.plan.sync import scheme_defaults
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

    @cached_property
    def layout(self) -> Layout:
        """The layout that the plan states."""
        return Layout.of(self.plan)


def prepare(
    plan: Plan, graph: ModelGraph | None, training: Training, world_size: int, cut: ModelGraph | None = None
) -> Prepared:
    """Resolve everything before torch starts. Raises UserError for plans that cannot run.

    ``graph`` is None for a user's model, which is data parallel only, and for a class of transformers, of which a
    pipeline has stages if it is ``cut``.
    """
    stack = load_stack(plan.stack or STACK)
    if graph is None and cut is None:
        plan = _of_one_machine(resolve(plan, stack), world_size)
        return Prepared(plan, None, choose(plan, None), stack.memory.selective)
    whole = graph or cut
    assert whole is not None, "one of them is given"
    check_positions(whole.name, training.seq_len, whole.longest)
    target = Workload(whole, training, world_size, world_size)
    layout = decide(plan, target, stack)
    if layout.stages:
        plan = in_roles(layout.to_plan(), whole)
        if not any(stage.sharding for stage in layout.stages):  # otherwise refused above, for another reason
            in_their_roles = replace(layout, stages=plan.pipeline.stages)
            refuse(role_refusals(in_their_roles, whole, "a real run gives every operator its role"))
        layout = decide(plan, target, stack)
    plan, schedule = layout.to_plan(), schedule_of(layout, training)
    return Prepared(plan, schedule, choose(plan, schedule, graph), stack.memory.selective)


def _of_one_machine(plan: Plan, world_size: int) -> Plan:
    """The plan of a user's model, with what follows from one machine. Raises UserError."""
    choices = stated_choices(plan)
    choices["dp"] = plan.mesh.dp or world_size
    choices |= {name: value for name, value in scheme_defaults(choices["sync"], 1).items() if choices[name] is None}
    layout = Layout.of(plan, fill_open_choices(choices, (OFFLOAD,), None))
    refuse(offload_refusals(layout))
    return state_choices(plan, {name: getattr(layout, name) for name in ("dp", *SCHEME.decides, *OFFLOAD.decides)})
