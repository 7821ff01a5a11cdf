"""Layouts near a launch that its framework can express, simulated as that framework would run them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.frameworks import load_target
from simpar.layout.deciders import state_choices
from simpar.plan.plan import Plan
from simpar.planner.problem import Problem
from simpar.report.result import Result
from simpar.simulation import simulate

if TYPE_CHECKING:
    from simpar.planner.nearby import Nearby

OF_ANY_STACK = frozenset(("micro_batch", "recompute"))
"""Choices that the arguments of a trainer say whatever shards its states."""


def layouts_near(problem: Problem, plan: Plan, target: str, *, fits: bool) -> Nearby:
    """Layouts near a plan, which is resolved, that the options of a target say without changing the stack.

    Where another one shards (DeepSpeed, or none), the options of a trainer say the batch and what is recomputed. Unless
    the plan ``fits``, gradients that wait for the last microbatch need not. What bounds neighbours is imported only
    where there are some.
    """
    from simpar.planner.nearby import ALL, WAITS, nearby

    if plan.stack not in load_target(target).stacks:
        result, bucket = nearby(problem, plan, target, OF_ANY_STACK), problem.base.data_parallel.bucket_bytes
        return result if bucket is None else _again(problem, result, {"bucket_bytes": bucket})
    return nearby(problem, plan, target, ALL if fits else ALL | {WAITS})


def _again(problem: Problem, result: Nearby, said: dict[str, object]) -> Nearby:
    """The simulated layouts with what another file says."""
    simulated = [(chosen, _simulated(problem, chosen)) for chosen in
                 (state_choices(each, said) for each, _ in result.simulated)]  # fmt: skip
    return replace(result, simulated=tuple(sorted(simulated, key=lambda one: one[1].step_time_s)))


def _simulated(problem: Problem, plan: Plan) -> Result:
    return simulate(problem.graph, problem.cluster, plan, problem.training, stack=problem.stack, with_timeline=False)
