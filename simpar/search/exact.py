"""The exact worth of a plan: the simulated step, contention and all, and the Candidate that it makes."""

from __future__ import annotations

from simpar.plan.plan import Plan
from simpar.report.result import Result
from simpar.search.problem import Problem
from simpar.search.result import Candidate
from simpar.simulation import simulate


def exact(problem: Problem, plan: Plan) -> Result:
    """Simulate a plan of the problem. Raises UserError where it cannot be."""
    return simulate(
        problem.graph,
        problem.cluster,
        plan,
        problem.training,
        stack=problem.stack,
        perturbation=problem.perturbation,
    )


def fits(problem: Problem, result: Result) -> bool:
    """Whether a simulated plan leaves the headroom that was asked for."""
    return result.memory.peak_reserved_bytes <= problem.memory_limit_bytes


def worth(problem: Problem, result: Result) -> float:
    """What the objective minimises: seconds a step, or dollars, joules or devices."""
    figures = {
        "time": result.step_time_s,
        "cost": result.bill.cost_usd_per_step,
        "energy": result.bill.energy_j_per_step,
        "devices": float(problem.cluster.world_size),
    }
    value = figures[problem.objective]
    return float("inf") if value is None else float(value)


def candidate(rank: int, result: Result, why: tuple[str, ...] = ()) -> Candidate:
    """A ranked candidate with its plan, resolved, and the figures predicted for it."""
    plan = Plan.model_validate(result.setup.plan)
    bill = result.bill
    figures = {
        "tokens_per_s": result.tokens_per_s,
        "bubble_fraction": result.bubble_fraction,
        "peak_reserved_bytes": result.memory.peak_reserved_bytes,
        "time_breakdown_s": result.time_breakdown_s.model_dump(),
        "cost_usd_per_step": bill.cost_usd_per_step,
        "energy_j_per_step": bill.energy_j_per_step,
    }
    predicted = {
        "step_time_s": result.step_time_s, "mfu": result.mfu, "peak_memory_bytes": result.peak_memory_bytes,
    }  # fmt: skip
    return Candidate(
        rank=rank,
        plan=plan.model_copy(update={"predicted": predicted}),
        step_time_s=result.step_time_s,
        mfu=result.mfu,
        peak_memory_bytes=result.peak_memory_bytes,
        figures=figures,
        why=why,
    )
