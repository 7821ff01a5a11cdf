"""Layouts near a launch that its framework can express, simulated as that framework would run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.frameworks import load_target
from simpar.frameworks.target import Imported
from simpar.layout.deciders import state_choices
from simpar.plan.plan import Plan
from simpar.planner.problem import Problem
from simpar.report.result import Result
from simpar.simulation import simulate
from simpar.uncertainty.memory import AS_PREDICTED

if TYPE_CHECKING:
    from simpar.planner.nearby import Nearby

OF_ANY_STACK = frozenset(("micro_batch", "recompute"))
"""Choices that the arguments of a trainer say whatever shards its states."""


def layouts_near(imported: Imported, problem: Problem, plan: Plan, target: str) -> Nearby:
    """Layouts near a plan, which is resolved, that the options of a target say without changing the stack.

    Where another one shards (DeepSpeed, or none), the options of a trainer say the batch and what is recomputed.
    Gradients that wait for the last microbatch do so in layouts with several of them alone, so that layouts are looked
    for without it. What bounds neighbours is imported only where there are some.
    """
    from simpar.planner.nearby import nearby

    if plan.stack not in load_target(target).stacks:
        result, bucket = nearby(problem, plan, target, OF_ANY_STACK), problem.base.data_parallel.bucket_bytes
        return result if bucket is None else _again(problem, result, {"bucket_bytes": bucket})
    if not imported.sized.waits:
        return nearby(problem, plan, target)
    alone = replace(problem, base=problem.base.with_values(overlap_grad_reduce=None))
    result = nearby(alone, plan.with_values(overlap_grad_reduce=True), target)
    world, batch = problem.cluster.world_size, problem.training.global_batch
    simulated = [(imported.waiting(chosen, world, batch), told) for chosen, told in result.simulated]
    return replace(result, simulated=tuple(_fitting(problem, simulated)))


def _again(problem: Problem, result: Nearby, said: dict[str, object]) -> Nearby:
    """The simulated layouts with what another file says."""
    simulated = [(chosen, _simulated(problem, chosen)) for chosen in
                 (state_choices(each, said) for each, _ in result.simulated)]  # fmt: skip
    return replace(result, simulated=tuple(sorted(simulated, key=lambda one: one[1].step_time_s)))


def _fitting(problem: Problem, simulated: list[tuple[Plan, Result]]) -> Iterator[tuple[Plan, Result]]:
    """Layouts whose gradients wait, simulated again, that fit with the wanted probability; fastest first."""
    again = [(plan, _simulated(problem, plan) if plan.data_parallel.overlap_grad_reduce is False else result)
             for plan, result in simulated]  # fmt: skip
    yield from (one for one in sorted(again, key=lambda one: one[1].step_time_s) if _fits(problem, one[1]))


def _fits(problem: Problem, result: Result) -> bool:
    wanted = problem.constraints.fit_probability
    sure = result.certainty is None or result.certainty.fit_probability >= wanted
    return result.fits and (wanted == AS_PREDICTED or sure)


def _simulated(problem: Problem, plan: Plan) -> Result:
    return simulate(problem.graph, problem.cluster, plan, problem.training, stack=problem.stack, with_timeline=False)
