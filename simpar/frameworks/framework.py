"""The framework behind a software stack, by its export target, and what it cannot run of a plan."""

from __future__ import annotations

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks import load_target, losses, targets_of
from simpar.frameworks.subject import Loss
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.stacks.stack import Stack


@dataclass(frozen=True)
class StackFramework:
    """The framework of a stack, by the export target ``name``, asked about a plan.

    ``lost`` is what it cannot express of that plan; ``error`` says why it cannot be asked, such as a model whose config
    file is gone. ``runs_all``: what it cannot express, its stack cannot run.
    """

    name: str
    stack: Stack
    workload: Workload
    lost: tuple[Loss, ...] = ()
    error: str = ""
    runs_all: bool = True

    @staticmethod
    def asked(name: str, plan: Plan, workload: Workload, stack: Stack) -> StackFramework:
        """A target, asked about a plan with its dp."""
        lost, error = tuple[Loss, ...](), ""
        try:
            lost = losses_of(plan, workload, stack, name)
        except UserError as refused:
            error = str(refused)
        target = load_target(name)
        return StackFramework(name, stack, workload, lost, error, target.runs_all or target.adapts(plan))

    @property
    def reasons(self) -> list[str]:
        """Why it cannot run the plan that it was asked about; empty if it can."""
        return [self.error] if self.error else [str(loss) for loss in self.lost]

    def refusal(self, plan: Plan) -> str:
        """Why it cannot run a plan, which has its dp, although it may run the one it was asked about; "" if it can."""
        other = StackFramework.asked(self.name, plan, self.workload, self.stack)
        if other.error:
            return other.error if other.error != self.error else ""
        known = {(loss.field, str(loss.value)) for loss in self.lost}
        return "; ".join(str(loss) for loss in other.lost if (loss.field, str(loss.value)) not in known)

    def remark(self, plan: Plan) -> str:
        """Its name and why it cannot run a plan next to the one it was asked about; "" if it can."""
        refusal = self.refusal(plan)
        return f"{self.name}: {refusal}" if refusal else ""


def losses_of(plan: Plan, workload: Workload, stack: Stack, name: str) -> tuple[Loss, ...]:
    """What an export target cannot express of a plan with its dp. Raises UserError if it cannot be asked."""
    named = plan.model_copy(update={"stack": stack.name})
    job = named, workload.graph, workload.training, name
    return losses(*job, own=stack, devices_per_node=workload.devices_per_node)


def framework_of(plan: Plan, workload: Workload, stack: Stack) -> StackFramework | None:
    """The framework that a stack belongs to: of its targets, the one that loses least of a plan with its dp.

    Targets that write only a part of what their stack does are asked if it has no other, and of a plan with adapters
    those that have them, if any does; those that cannot be asked about the model come last. None if no target has the
    stack.
    """
    names = targets_of(stack.known_as)
    whole = [name for name in names if load_target(name).adapts(plan)]
    whole = whole or [name for name in names if load_target(name).runs_all]
    asked = [StackFramework.asked(name, plan, workload, stack) for name in whole or names]
    return min(asked, key=lambda each: (bool(each.error), len(each.lost)), default=None)
