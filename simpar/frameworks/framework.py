"""The framework behind a software stack, by its export target, and what it cannot run of a plan next to another."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.errors import UserError
from simpar.frameworks import Loss, load_target, losses, targets_of
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.stacks.stack import Stack


@dataclass(frozen=True)
class StackFramework:
    """The framework of a stack; ``known`` are its losses of the plan that is asked about, which count no further."""

    name: str
    stack: Stack
    target: Workload
    known: frozenset[tuple[str, str]]

    def refusal(self, plan: Plan) -> str:
        """Why it cannot run a plan, which has its dp, although it may run the one asked about; "" if it can."""
        try:
            lost = losses_of(plan, self.target, self.stack, self.name)
        except UserError as error:
            return str(error)
        return "; ".join(str(loss) for loss in lost if (loss.field, str(loss.value)) not in self.known)


def losses_of(plan: Plan, target: Workload, stack: Stack, name: str) -> tuple[Loss, ...]:
    """What an export target cannot express of a plan with its dp. Raises UserError if it cannot be asked."""
    named = plan.model_copy(update={"stack": stack.name})
    job = named, target.graph, target.training, name
    return losses(*job, own=stack, devices_per_node=target.devices_per_node)


def framework_of(plan: Plan, target: Workload, stack: Stack) -> StackFramework | None:
    """The framework that a stack belongs to: of its targets that run whole plans, the one that loses least of a plan.

    None if no target has the stack, or if the model cannot be described to any.
    """
    asked: list[tuple[int, str, tuple[Loss, ...]]] = []
    for name in targets_of(stack.known_as):
        if "a part" in load_target(name).features:
            continue
        try:
            lost = losses_of(plan, target, stack, name)
        except UserError:  # the model cannot be described, e.g. its config file is gone
            continue
        asked.append((len(lost), name, lost))
    if not asked:
        return None
    _, name, lost = min(asked, key=lambda each: each[0])
    return StackFramework(name, stack, target, frozenset((loss.field, str(loss.value)) for loss in lost))
