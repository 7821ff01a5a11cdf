"""A first plan for a search that was stopped before it had one: the best of the plans people start from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simpar.architectures.recompute import SIMPLE
from simpar.errors import UserError
from simpar.plan.choices.mesh import DEFAULT_ORDER
from simpar.plan.choices.tensor_parallel import tensor_degrees
from simpar.plan.schedules import usual_schedule
from simpar.planner.certify.branch_and_bound import BranchAndBound, Field
from simpar.planner.problem import Problem

PLAIN: dict[str, tuple[Any, ...]] = {
    "recompute": SIMPLE, "schedule": (usual_schedule(),), "vpp": (1,), "hsdp": (1,),
    "micro_batch": (1,), "tp_overlap": (False,), "overlap_grad_reduce": (True,), "overlap_param_gather": (True,),
    "order": (DEFAULT_ORDER,), "cp": (1,),
}  # fmt: skip
"""Values that people leave untuned at first; tensor parallelism stays inside nodes."""


def first_plan(search: BranchAndBound, problem: Problem) -> None:
    """Simulate the best plain plan that fits, from a small space of its own; nothing is found if none fits.

    It takes about a second. The bounds of this space do not bound other plans: a search without bounds of its own stays
    without.
    """
    constraints = problem.constraints
    degrees = [tp for tp in tensor_degrees(problem) if tp <= problem.cluster.domain_size]
    held: dict[str, Any] = {**PLAIN, "tp": degrees}
    if constraints.schedules:
        del held["schedule"], held["vpp"]
    if problem.target:  # targets may allow only their own way of overlapping
        del held["overlap_grad_reduce"], held["overlap_param_gather"], held["tp_overlap"]
    narrow = replace(constraints, fixed={**held, **constraints.fixed})
    try:
        frontier = Field.of(replace(problem, constraints=narrow)).frontier
    except UserError:
        return
    found = frontier.first_that(search.counts_for) if frontier is not None else None
    if found is not None:
        search.found.append(replace(found, problem=problem))
        search.is_bounded = bool(search.fields) and problem.objective != "devices"
