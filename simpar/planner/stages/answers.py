"""Shared parts of the searches over unlike stages: values of axes, the optimum of even stages, and the answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from simpar.architectures.recompute import OPTIMAL
from simpar.dataclass import dataclass
from simpar.errors import Infeasible, Undecided, UserError
from simpar.plan.plan import Plan
from simpar.planner.answer.candidates import answer_of
from simpar.planner.answer.ties import num_compared
from simpar.planner.certify.exact import SimulatedPlan, exact, measure
from simpar.planner.certify.infeasible import explain_too_large
from simpar.planner.problem import Problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import Counts, SearchResult
from simpar.planner.space.rows import fixed_values, in_order
from simpar.planner.uniform import search_uniform
from simpar.report.result import Result
from simpar.simulation import refuse_whole_vocabulary
from simpar.uncertainty.memory import AS_PREDICTED

Value = int | float | str


def list_axis_values(
    problem: Problem, space: str, offered: Mapping[str, Sequence[Value]], others: Mapping[str, Sequence[Value] | None]
) -> dict[str, tuple[Value, ...]]:
    """The values of every axis of a space: those offered, or those asked for if the axis is held.

    ``others`` are further values that may be asked for (None: whatever a plan can have). Raises UserError for axes and
    values that the space does not search.
    """
    constraints, instead = problem.constraints, "allowed: --space uniform"
    if OPTIMAL in str(constraints.fixed.get("recompute", "")):
        raise UserError(
            f"plan.recompute = {OPTIMAL}: is not searched with --space {space}; allowed: none, selective, full, or "
            "--space uniform"
        )
    if not problem.is_of_time:
        raise UserError(
            f"objective {problem.objective}: space {space} looks for the shortest step; allowed: regret, time"
        )
    if space == "alpa":
        refuse_whole_vocabulary(problem.stack)
    if problem.export_target is not None:
        raise UserError(f"portable {problem.export_target}: not asked of plans in space {space}; {instead}")
    if constraints.deadline_s is not None:
        raise UserError(f"deadline: space {space} looks for the shortest step without one; {instead}")
    fixed = fixed_values(constraints.fixed)
    if constraints.schedules is not None:
        fixed.setdefault("schedule", constraints.schedules)
    for name, values in fixed.items():
        if name not in offered:
            raise UserError(f"--fix {name}: is not an axis of space {space}; allowed: {', '.join(offered)}")
        besides = others.get(name, ())
        for value in values:
            if besides is not None and value not in offered[name] and value not in besides:
                some = ", ".join(map(str, offered[name]))
                raise UserError(f"{name} = {value}: no plan of space {space} has it; allowed: {some}")
    return {name: in_order(fixed.get(name, values), values) for name, values in offered.items()}


def search_even_stages(problem: Problem, progress: SearchProgress) -> SearchResult | None:
    """The optimum of even stages; None if nothing fits or if nodes differ."""
    if problem.cluster.is_mixed:
        return None
    brief = replace(progress, top=1, brief=True)
    try:
        return search_uniform(replace(problem, objective="time"), brief)
    except Infeasible:
        return None
    finally:
        progress.interrupted, progress.timed_out = brief.interrupted, brief.timed_out


@dataclass
class StagesSearch(ABC):
    """State of a search over unlike stages: the shortest step so far, and the work done.

    ``values`` are those of every axis. ``open_s`` is a lower bound in seconds of all plans that were set aside, 0 until
    all are bounded. ``ops`` counts those of all simulated Programs. ``unsure_s`` is the shortest step of the plans that
    fit as predicted.
    """

    problem: Problem
    progress: SearchProgress
    values: dict[str, tuple[Value, ...]] = field(init=False)
    best_s: float = np.inf
    unsure_s: float = np.inf
    open_s: float = 0.0
    ops: int = 0
    simulated: int = 0

    space: ClassVar[str]
    meanings: ClassVar[tuple[str, ...]] = ()
    """Axes that mean something else than in the uniform space, in words."""
    knows_fits: ClassVar[bool] = True
    """Whether plans are known to fit without a simulation; otherwise ``feasible`` counts simulated plans."""

    @property
    def lowest_s(self) -> float:
        """A lower bound in seconds of all plans that were not simulated."""
        return self.open_s

    @abstractmethod
    def run(self) -> None:
        """Search; may be interrupted anywhere."""

    @abstractmethod
    def ranked(self) -> list[SimulatedPlan]:
        """Plans to show that fit, best first."""

    @abstractmethod
    def counts(self) -> Counts:
        """Numbers of plans by how far they were examined."""

    def unbuilt(self) -> int:
        """The number of plans that may win but whose Program has more ops than are built."""
        return 0

    def measured(self, plan: Plan) -> SimulatedPlan:
        """The simulated step of a plan. Raises UserError if it cannot be simulated."""
        done = measure(self.problem, plan)
        self.ops, self.simulated = self.ops + done.num_ops, self.simulated + 1
        if done.fits:
            self.best_s = min(self.best_s, done.step_time_s)
        if done.fits_as_predicted:
            self.unsure_s = min(self.unsure_s, done.step_time_s)
        self.progress.report("simulating", self.counts(), self.best_s if np.isfinite(self.best_s) else None)
        return done

    def answer(self, even: SearchResult | None) -> SearchResult:
        """The best of the plans found and of the even optimum, which competes.

        Plans with exactly equal time and memory are shown once, even stages before others. Raises Infeasible if there
        is no plan.
        """
        problem, progress = self.problem, self.progress
        self.best_s = even_s = even.best.step_time_s if even else np.inf
        with progress.stoppable():
            if not progress.interrupted:
                self.run()
        results = [exact(problem, even.best.plan)] if even else []
        count = num_compared(problem, progress.top)
        results += [done.report() for done in self.ranked()[:count]]
        distinct: dict[tuple[float, float], Result] = {}
        for result in results:
            distinct.setdefault((result.step_time_s, result.peak_memory_bytes), result)
        unbuilt = self.unbuilt() + (even.details["not_built"] if even else 0)
        if unbuilt and not distinct:
            raise explain_too_large(unbuilt)
        if not distinct and progress.interrupted:
            raise Undecided(f"stopped ({progress.stopped}) before any plan that fits was found")
        if not distinct:
            raise Infeasible(
                f"no plan of space {self.space} that was tried fits {problem.graph.name} on "
                f"{problem.cluster.profile.name}; try more nodes"
            )
        results = sorted(distinct.values(), key=lambda one: one.step_time_s)[:count]
        best_s = results[0].step_time_s
        lowest_s = min(self.lowest_s, best_s, even_s * (1 - even.gap) if even else best_s)
        more = {
            "space": self.space,
            "feasible_of": "all" if self.knows_fits else "simulated",
            "uniform_best_s": even_s if even else None,
            "lower_bound_s": lowest_s,
            "not_built": unbuilt,
            "margin": self._margin(best_s, even),
            "scope": {
                "searched": {name: list(values) for name, values in self.values.items() if len(values) > 1},
                "held": {name: values[0] for name, values in self.values.items() if len(values) == 1},
                "restricted": list(fixed_values(problem.constraints.fixed)),
                "left_out": [],
                "meanings": list(self.meanings),
            },
        }
        answer = answer_of(problem, progress, results, self.counts(), 1 - lowest_s / best_s, not progress.interrupted)
        return answer.with_details(more)

    def _margin(self, best_s: float, even: SearchResult | None) -> dict[str, object] | None:
        """The price of the requested probability of fitting, judged by simulated plans; None if none was requested."""
        if self.problem.constraints.fit_probability == AS_PREDICTED:
            return None
        of_even = even.details.get("margin") if even else None
        unsure_s = min(self.unsure_s, even.best.step_time_s / (1 + of_even["gain"]) if even and of_even else np.inf)
        return {"fit_probability": AS_PREDICTED, "gain": max(best_s / unsure_s - 1, 0.0)}
