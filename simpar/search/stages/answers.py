"""What spaces of unlike stages share: values of their axes, the optimum of even stages, their answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simpar.errors import Infeasible, UserError
from simpar.models.graph import ModelGraph
from simpar.plan.plan import Plan
from simpar.plan.torch_roles import refuse_roles
from simpar.plan.uniform_stages import as_uniform
from simpar.report.result import Result
from simpar.search.answer.explanations import why_it_loses, why_it_wins
from simpar.search.certify.exact import candidate, exact, is_allowed
from simpar.search.certify.scope import not_portable
from simpar.search.problem import Problem, details_of, refuse_optimal
from simpar.search.progress import Progress
from simpar.search.result import Counts, SearchResult
from simpar.search.space.rows import fixed_values, in_order
from simpar.search.uniform import search_uniform

RENAMED = {"order": "rank_order"}
"""Axes that these spaces have under another name."""


def chosen_values(
    problem: Problem,
    space: str,
    offered: Mapping[str, Sequence[Any]],
    others: Mapping[str, Callable[[Any], bool]] | None = None,
) -> dict[str, tuple[Any, ...]]:
    """The values of every axis of a space: those offered, or where they are held those that are asked for.

    ``others`` say which values may be asked for besides. Raises UserError for what the space does not search.
    """
    refuse_optimal(problem, space)
    constraints, instead = problem.constraints, "allowed: --space uniform"
    if problem.objective != "time":
        raise UserError(
            f"objective {problem.objective}: space {space} looks for the shortest step; allowed: time"
        )
    if constraints.portable is not None:
        raise UserError(f"portable {constraints.portable}: not asked of plans in space {space}; {instead}")
    if constraints.deadline_s is not None:
        raise UserError(f"deadline: space {space} looks for the shortest step without one; {instead}")
    fixed = {RENAMED.get(name, name): values for name, values in fixed_values(constraints.fixed).items()}
    if constraints.schedules is not None:
        fixed.setdefault("schedule", constraints.schedules)
    for name, values in fixed.items():
        if name not in offered:
            raise UserError(f"--fix {name}: is no axis of space {space}; allowed: {', '.join(offered)}")
        for value in values:
            if value not in offered[name] and not (others or {}).get(name, lambda _: False)(value):
                some = ", ".join(map(str, offered[name]))
                raise UserError(f"{name} = {value}: no plan of space {space} has it; allowed: {some}")
    return {name: in_order(fixed.get(name, values), values) for name, values in offered.items()}


def even_optimum(problem: Problem, progress: Progress) -> SearchResult | None:
    """The optimum of even stages, None where nothing fits."""
    brief = replace(progress, top=1, brief=True)
    try:
        return search_uniform(problem, brief)
    except Infeasible:
        return None
    finally:
        progress.ends_with(brief)


@dataclass
class Answer:
    """An answer under way: the ``even`` optimum, and what a space of unlike stages says of itself."""

    problem: Problem
    progress: Progress
    space: str
    even: SearchResult | None
    started: float = field(default_factory=time.perf_counter)

    @property
    def even_s(self) -> float:
        """The step of the even optimum."""
        return self.even.best.step_time_s if self.even else float("inf")

    def of(self, plans: Iterable[Plan], lowest_s: float, counts: Counts) -> SearchResult:
        """The best of simulated plans and the even optimum; below ``lowest_s`` seconds no other plan gets.

        Plans that take the same time and memory to the byte are shown once, even stages rather than others. Raises
        Infeasible without any.
        """
        problem, progress, even = self.problem, self.progress, self.even
        results: dict[tuple[float, float], Result] = {}
        for plan in (*([even.best.plan] if even else []), *plans):
            result = exact(problem, plan)
            if is_allowed(problem, result):
                results.setdefault((result.step_time_s, result.peak_memory_bytes), result)
        if not results:
            raise Infeasible(
                f"no plan of space {self.space} that was tried fits {problem.graph.name} on "
                f"{problem.cluster.profile.name}; try more nodes"
            )
        first, *others = sorted(results.values(), key=lambda one: one.step_time_s)[: progress.top]
        reasons = [why_it_wins(first, others), *(why_it_loses(other, first) for other in others)]
        found = tuple(
            candidate(number, result, (*why, *_taken(Plan.model_validate(result.setup.plan), problem.graph)))
            for number, (result, why) in enumerate(zip([first, *others], reasons, strict=True), start=1)
        )
        best_s = first.step_time_s
        lowest_s = min(lowest_s, best_s, self.even_s * (1 - even.gap) if even else best_s)
        details = {
            **details_of(problem, first.setup, [problem.cluster.nodes]),
            "space": self.space,
            "uniform_best_s": self.even_s if even else None,
            "not_portable": not_portable(problem, found[0].plan),
            "lower_bound_s": lowest_s,
            "stopped": progress.stopped,
        }
        gap = 1 - lowest_s / best_s
        certified = gap <= 0 and not progress.interrupted
        seconds = time.perf_counter() - self.started
        return SearchResult(found, counts, problem.objective, certified, gap, seconds, details)


def _taken(plan: Plan, graph: ModelGraph) -> tuple[str, ...]:
    """Whether `simpar run` runs the stages of a plan, and whether exports write them; nothing without stages."""
    if not plan.pipeline.stages:
        return ()
    try:
        refuse_roles(plan.pipeline.stages, graph)
        run = "`simpar run` runs its stages as they are"
    except UserError as error:
        run = f"`simpar run` does not run its stages: {error}"
    try:
        one = as_uniform(plan, graph).mesh
        export = f"exports write its stages as one layout: tp {one.tp}, pp {one.pp}, dp {one.dp}"
    except UserError as error:
        export = f"exports do not write its stages: {error}"
    return run, export
