"""The answer of the Alpa space: simulated plans in the order of their steps, each of them run in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from simpar.errors import UserError
from simpar.models.graph import ModelGraph
from simpar.plan.plan import Plan
from simpar.plan.torch_roles import refuse_roles
from simpar.plan.uniform_stages import as_uniform
from simpar.report.result import Result
from simpar.search.certify.exact import candidate, exact, is_allowed
from simpar.search.problem import Problem, details_of
from simpar.search.result import Candidate


@dataclass(frozen=True)
class Found:
    """One plan with stages of its own: seconds that its step promises, bytes that its fullest rank allocates.

    ``slowest`` is the stage whose passes take longest.
    """

    step_time_s: float
    peak_memory_bytes: float
    plan: Plan
    how: str
    slowest: int = 0


def answer(
    problem: Problem, uniform: Sequence[Candidate], promised: Sequence[Found], top: int
) -> tuple[tuple[Candidate, ...], dict[str, Any]]:
    """Up to ``top`` plans by their simulated step, and what is said of the search.

    ``uniform`` candidates were run in full. Of ``promised`` plans shorter steps were told from: those are run here,
    and kept where they fit.
    """
    results = [exact(problem, found.plan) for found in promised]
    known = min((one.step_time_s for one in uniform), default=None)
    own = [
        candidate(0, result, _why(result, known, _taken(found.plan, problem.graph)))
        for result, found in zip(results, promised, strict=True)
        if is_allowed(problem, result)
    ]
    said = [replace(one, why=("a layout of the uniform space, alike in all stages",)) for one in uniform]
    ranked = sorted(_distinct([*said, *own]), key=lambda one: one.step_time_s)[:top]
    if not ranked:
        return (), {}
    setup = results[0].setup if results else exact(problem, ranked[0].plan).setup
    details = {
        **details_of(problem, setup, [problem.cluster.nodes]),
        "space": "alpa",
        "uniform_best_s": known,
        "gain_over_uniform": None if not known else 1 - ranked[0].step_time_s / known,
    }
    return tuple(replace(one, rank=number) for number, one in enumerate(ranked, start=1)), details


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Every plan once."""
    return list({one.plan.model_dump_json(exclude={"predicted"}): one for one in candidates}.values())


def _why(result: Result, uniform: float | None, taken: tuple[str, ...]) -> tuple[str, ...]:
    """What binds a plan with stages of its own, what it gains over the uniform optimum, and what takes it."""
    gain = () if not uniform else (f"{1 - result.step_time_s / uniform:+.1%} against the uniform optimum",)
    return (*gain, *taken, *result.why.binds)


def _taken(plan: Plan, graph: ModelGraph) -> tuple[str, str]:
    """Whether `simpar run` runs the stages of a plan, and whether exports write them."""
    try:
        refuse_roles(plan.pipeline.stages or (), graph)
        run = "`simpar run` runs its stages as they are"
    except UserError as error:
        run = f"`simpar run` does not run its stages: {error}"
    try:
        one = as_uniform(plan, graph).mesh
        export = f"exports write its stages as one layout: tp {one.tp}, pp {one.pp}, dp {one.dp}"
    except UserError as error:
        export = f"exports do not write its stages: {error}"
    return run, export
