"""A first plan for a search that was stopped before it had one: the best of the plans people start from."""

from dataclasses import replace

from simpar.errors import UserError
from simpar.plan.choices import AXES, BY_NAME
from simpar.planner.certify.branch_and_bound import BranchAndBound, Field
from simpar.planner.problem import Problem


def first_plan(search: BranchAndBound, problem: Problem) -> None:
    """Simulate the best plain plan that fits, from a small space of its own; nothing is found if none fits.

    It takes about a second. The bounds of this space do not bound other plans: a search without bounds of its own stays
    without.
    """
    constraints = problem.constraints
    held = {axis.name: axis.untuned(problem) for axis in AXES if axis.untuned is not None}
    if constraints.schedules:
        del held["schedule"], held["vpp"]
    if problem.target:  # targets may allow only what their stack does by default
        held = {name: values for name, values in held.items() if not BY_NAME[name].by_stack}
    narrow = replace(constraints, fixed={**held, **constraints.fixed})
    try:
        frontier = Field.of(replace(problem, constraints=narrow)).frontier
    except UserError:
        return
    simulated = frontier.first_that(search.counts_for) if frontier is not None else None
    if simulated is not None:
        search.simulated.append(replace(simulated, problem=problem))
        search.is_bounded = bool(search.fields) and problem.objective != "devices"
