"""The answer of the Alpa space: simulated plans in the order of their steps, the best of them in full."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from simpar.plan.plan import Plan
from simpar.report.result import Result
from simpar.search.exact import candidate, exact
from simpar.search.problem import Problem, details_of
from simpar.search.result import Candidate

UNIFORM = "uniform"


@dataclass(frozen=True)
class Found:
    """One simulated plan: seconds of its step, bytes that its fullest rank allocates, whether links were shared.

    ``slowest`` is the stage whose passes take longest.
    """

    step_time_s: float
    peak_memory_bytes: float
    plan: Plan
    how: str
    contention: bool = False
    slowest: int = 0


def answer(
    problem: Problem, known: list[Found], top: int
) -> tuple[Candidate, list[Candidate], dict[str, Any]]:
    """The best plan, the others up to ``top`` by their step, and what is said of the search.

    ``known`` plans, at least one, are simulated with contention.
    """
    uniform = min((found.step_time_s for found in known if found.how == UNIFORM), default=None)
    ranked, result = _settled(problem, known)
    best = candidate(1, result, _why(ranked[0], uniform))
    others = [
        replace(
            best,
            rank=rank + 2,
            plan=found.plan.model_copy(update={"predicted": {"step_time_s": found.step_time_s}}),
            step_time_s=found.step_time_s,
            mfu=best.mfu * best.step_time_s / found.step_time_s,
            peak_memory_bytes=found.peak_memory_bytes,
            figures={},
            why=_why(found, uniform),
        )
        for rank, found in enumerate(ranked[1:top])
    ]
    details = {
        **details_of(problem, result.setup, [problem.cluster.nodes]),
        "space": "alpa",
        "uniform_best_s": uniform,
        "gain_over_uniform": None if not uniform else 1 - best.step_time_s / uniform,
    }
    return best, others, details


def _settled(problem: Problem, known: list[Found]) -> tuple[list[Found], Result]:
    """Plans by their step, and the result of the first, whose whole step no other beats.

    Steps of many microbatches were told from shorter ones: whoever comes first on such a step is run in full.
    """
    waiting, run = list(known), dict[int, Result]()
    while True:
        waiting.sort(key=lambda found: found.step_time_s)
        first = waiting[0]
        if id(first) in run:
            return waiting, run[id(first)]
        result = exact(problem, first.plan)
        waiting[0] = replace(first, step_time_s=result.step_time_s)
        run[id(waiting[0])] = result


def _why(found: Found, uniform: float | None) -> tuple[str, ...]:
    """How a plan was found, and what it gains over the uniform optimum."""
    if found.how == UNIFORM:
        return ("the optimum of the uniform space",)
    stages = found.plan.pipeline.stages or ()
    shapes = ", ".join(f"{stage.layers} layers on {' x '.join(map(str, stage.mesh))}" for stage in stages)
    words = [f"{len(stages)} stages of their own: {shapes}"]
    if uniform:
        words.append(f"{1 - found.step_time_s / uniform:+.1%} against the uniform optimum")
    return tuple(words)
