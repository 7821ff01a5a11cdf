"""From a plan as it is asked for to its layout."""

from __future__ import annotations

from simpar.layout.check import check
from simpar.layout.deciders import BY_MODEL, fill_open_choices, resolve
from simpar.layout.layout import Layout
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.stacks.stack import Stack


def decide(plan: Plan, target: Workload, stack: Stack) -> Layout:
    """The layout of a plan on a model, its shape and devices, under a software stack.

    Everything is decided but what depends on costs. Raises UserError with the first rule that the plan breaks.
    """
    by_model = fill_open_choices(resolve(plan, stack), BY_MODEL, (target.graph, stack))
    return Layout.of(check(by_model, target))
