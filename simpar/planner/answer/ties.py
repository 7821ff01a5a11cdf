"""The choice among plans whose predicted steps differ by less than predictions err."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import DEGREES
from simpar.plan.plan import Plan
from simpar.planner.problem import BY_REGRET, Problem
from simpar.planner.progress import TOP
from simpar.report.certainty import layouts_measured_on
from simpar.report.layouts import known_layout, layout_of
from simpar.report.result import Result
from simpar.uncertainty.joint import common_spread, joint_errors
from simpar.uncertainty.own_runs import MeasuredLayout
from simpar.uncertainty.ties import Standing, limit_s, rank_layouts, standing_from_draws
from simpar.units import Floats

DIGITS = 4
"""Decimals of probabilities and regrets: more would only show the noise of the random draws."""


@dataclass(frozen=True)
class RankedResults:
    """Results in display order: the chosen one, those tied with it, then the others.

    ``figures`` (one mapping per result) and ``why`` (what decided for the first) go into the candidates. A layout of
    the same spread that is not among the results would be tied with the best if its step were below ``limit_s``; None
    if nothing is chosen, or if the user's own measurements tell more about some layouts than about others.
    """

    results: tuple[Result, ...]
    figures: tuple[Mapping[str, object], ...]
    why: tuple[str, ...] = ()
    limit_s: float | None = None

    def figures_of(self, result: Result) -> Mapping[str, object]:
        """The figures of one of the results."""
        return next(own for one, own in zip(self.results, self.figures, strict=True) if one is result)

    def followed_by(self, more: Sequence[Result], figures: Sequence[Mapping[str, object]]) -> RankedResults:
        """These results and more of them, tied ones first; none of those is tied if the first of these is not."""
        open_ = bool(self.figures[0].get("tied"))
        marked = [{**each, "tied": open_ and each["tied"]} if "tied" in each else each for each in figures]
        every = [*zip(self.results, self.figures, strict=True), *zip(more, marked, strict=True)]
        every.sort(key=lambda one: not one[1].get("tied"))
        return replace(self, results=tuple(one for one, _ in every), figures=tuple(own for _, own in every))


def num_compared(problem: Problem, top: int) -> int:
    """How many results to compare if ``top`` are shown: the choice must not depend on how few are shown."""
    return max(top, TOP) if problem.objective == BY_REGRET else top


def tied_below_s(problem: Problem, results: Sequence[Result]) -> float | None:
    """``limit_s`` of the choice among results given fastest first."""
    if problem.objective != BY_REGRET or layouts_measured_on(problem.stack, problem.cluster.profile.name):
        return None
    return limit_s(*_predicted(results))


def rank_results(
    problem: Problem, results: Sequence[Result], others_s: Sequence[float] = (), *, longest_s: float | None = None
) -> RankedResults:
    """The choice among results given fastest first; their order stays if the objective is not regret.

    ``others_s`` are the steps in seconds of further layouts that may be the best, but cannot be chosen. They count as
    made up like the first result, unless own measurements tell the layouts apart. A single result is not compared with
    anything. ``longest_s`` is :func:`tied_below_s`, if it was asked before.
    """
    if problem.objective != BY_REGRET:
        return RankedResults(tuple(results), ({},) * len(results))
    known = layouts_measured_on(problem.stack, problem.cluster.profile.name)
    longest_s = tied_below_s(problem, results) if longest_s is None else longest_s
    if len(results) < 2:
        return RankedResults(tuple(results), ({},) * len(results), limit_s=longest_s)
    stands = _standing(results, known, others_s)
    plans = [one.plan for one in results]
    complexity = [_complexity(problem, plan) for plan in plans]
    first, tied, regret = stands.choice(complexity), stands.tied, stands.expected_regret
    order = sorted(range(len(results)), key=lambda at: (at != first, not tied[at], regret[at] if tied[at] else at))
    figures = tuple(
        {
            "best_probability": round(float(stands.best_probability[at]), DIGITS),
            "expected_regret": round(float(regret[at]), DIGITS),
            "tied": bool(tied[at] and tied.sum() > 1),
            **_measured(results[at], known),
        }
        for at in order
    )
    why = _what_decided(stands, order, plans, complexity) if tied.sum() > 1 else _what_told(stands, first, results)
    return RankedResults(tuple(results[at] for at in order), figures, why, longest_s)


def _standing(results: Sequence[Result], known: Sequence[MeasuredLayout], others_s: Sequence[float]) -> Standing:
    """How likely each result is the best, given the measurements of it and of others."""
    first, (step_s, parts_s, spread) = results[0].certainty, _predicted(results)
    if not known or first is None:
        more_s = np.asarray(others_s, dtype=float)
        alike_s = more_s[:, None] / step_s[0] * parts_s[0]
        every = rank_layouts(np.append(step_s, more_s), np.vstack([parts_s, alike_s]), spread)
        return Standing(every.best_probability[: len(results)], every.expected_regret[: len(results)])
    names = [layout_of(one) for one in results]
    layouts = {name: known_layout(one) for name, one in zip(names, results, strict=True)}
    errors = joint_errors(layouts, known, spread, common_spread(first.step_time_interval_s, spread))
    at = [list(layouts).index(name) for name in names]
    return standing_from_draws((np.log(step_s) + errors.mean[at])[:, None] + errors.draws[at])


def _predicted(results: Sequence[Result]) -> tuple[Floats, Floats, float]:
    """Predicted steps, their parts, and the spread of layouts, as :func:`rank_layouts` takes them."""
    return (
        np.array([one.step_time_s for one in results]),
        np.array([list(one.time_breakdown_s.model_dump().values()) for one in results]),
        max(one.certainty.layout_spread if one.certainty else 0.0 for one in results),
    )


def _measured(result: Result, known: Sequence[MeasuredLayout]) -> dict[str, float]:
    """The measured step of a result, if its layout was measured."""
    if not known:
        return {}
    name = layout_of(result)
    steps_s = [one.step_time_s for one in known if one.layout == name]
    return {"measured_step_time_s": steps_s[0]} if steps_s else {}


def _what_told(stands: Standing, first: int, results: Sequence[Result]) -> tuple[str, ...]:
    """Why a plan wins that is not the fastest as predicted and has no ties: measured runs decided."""
    if results[first].step_time_s <= min(one.step_time_s for one in results):
        return ()
    sure = f"{100 * stands.best_probability[first]:.0f} %"
    said = f"given the measurements, it is the fastest with a probability of {sure}"
    return (f"{said}, although another is predicted to be faster",)


def _what_decided(
    stands: Standing, order: Sequence[int], plans: Sequence[Plan], complexity: Sequence[tuple[int, int]]
) -> tuple[str, ...]:
    """Why the first of several tied plans is chosen, in words."""
    first, *others = [at for at in order if stands.tied[at]]
    least = min(others, key=lambda at: float(stands.expected_regret[at]))
    lost = stands.expected_regret
    tied = f"candidates 1 {'to' if others[1:] else 'and'} {len(others) + 1} are tied"
    behind = f"{lost[first]:.1%} of a step on average"
    if lost[first] <= lost[least]:
        return (f"{tied}; if predictions err, 1 loses least: {behind}, the next {lost[least]:.1%}",)
    reason = (
        "no tensor or context group of it spans several scale-up domains"
        if complexity[first][0] < complexity[least][0]
        else f"it uses fewer axes: {', '.join(_axes(plans[first])) or 'none'}, not {', '.join(_axes(plans[least]))}"
    )
    return (f"{tied}; if predictions err, 1 loses as little as any ({behind}), and {reason}",)


def _axes(plan: Plan) -> list[str]:
    """The axes of parallelism that a plan uses, with vpp, hsdp and unlike stages."""
    mesh, pipeline = plan.mesh, plan.pipeline
    used = [name for name in DEGREES if (getattr(mesh, name) or 1) > 1]
    return [
        *used,
        *["vpp"] * (pipeline.vpp > 1),
        *["hsdp"] * ((plan.data_parallel.hsdp or 1) > 1),
        *["unlike stages"] * bool(pipeline.stages or len(set(pipeline.layers or ())) > 1),
    ]


def _complexity(problem: Problem, plan: Plan) -> tuple[int, int]:
    """How hard a plan is to run well: kinds of tensor and context groups that span domains, and axes in use."""
    if plan.pipeline.stages:  # meshes of their own
        return 0, len(_axes(plan))
    domain = problem.cluster.domain_size
    spanning = [axis for axis in ("tp", "cp") if np.ptp(plan.mesh.groups(axis) // domain, axis=1).any()]
    return len(spanning), len(_axes(plan))
