"""The best plan on every number of nodes, and its whole run.

On a given number of nodes, days and dollars are both proportional to the step, so the plan with the shortest step is
the best in both. A certified search for the shortest step on every number of nodes therefore certifies the answer over
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import Infeasible, UserError
from simpar.hardware.operation import Operation
from simpar.operate.whole_run import add_operation
from simpar.plan.plan import Plan
from simpar.planner.api import find_space
from simpar.planner.certify.exact import exact
from simpar.planner.problem import Problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import SearchResult
from simpar.report.bill import WholeRun
from simpar.units import number_of

FIGURES = ("step_time_s", "mfu", "fit_probability")
"""Figures of a row about the step of its plan."""


@dataclass(frozen=True)
class Row:
    """A number of nodes: the best plan there with its whole run, or the reason why there is none.

    ``gap`` is the share of the step by which an unseen plan may be shorter: 0 if it is certified.
    """

    nodes: int
    devices: int
    run: WholeRun | None = None
    plan: Plan | None = None
    figures: dict[str, Any] | None = None
    is_certified: bool = False
    gap: float = 0.0
    reason: str = ""

    @property
    def node_words(self) -> str:
        """The number of nodes in words."""
        return number_of(self.nodes, "node")

    @property
    def days(self) -> float:
        """Days of the run; infinite without a plan."""
        return float("inf") if self.run is None else self.run.days.value

    @property
    def dollars(self) -> float:
        """Dollars of the run; infinite without a plan."""
        return float("inf") if self.run is None or self.run.cost_usd is None else self.run.cost_usd.value

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Row:
        """A row from plain data. Raises KeyError or TypeError for other data, UserError for an invalid plan."""
        run, plan = data["whole_run"], data["plan"]
        return Row(
            data["nodes"],
            data["devices"],
            None if run is None else files.parse(WholeRun, run, source="whole_run"),
            None if plan is None else files.parse(Plan, plan, source="plan"),
            None if plan is None else {name: data[name] for name in FIGURES},
            data["certified"],
            data["gap"],
            data["reason"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "nodes": self.nodes,
            "devices": self.devices,
            "whole_run": None if self.run is None else self.run.model_dump(mode="json"),
            **(self.figures or {}),
            "certified": self.is_certified,
            "gap": self.gap,
            "reason": self.reason,
            "plan": None if self.plan is None else self.plan.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Search:
    """How every number of nodes is searched: the space, the progress, and the reliability of the run."""

    space: str | None = None
    progress: Callable[[], SearchProgress] = lambda: SearchProgress(top=1, brief=True)
    operation: Operation | None = None
    seed: int = 0


def halves(nodes: int) -> list[int]:
    """A number of nodes and its halves down to an odd number, in ascending order."""
    counts = [nodes]
    while counts[-1] % 2 == 0:
        counts.append(counts[-1] // 2)
    return counts[::-1]


def rows_of(problem: Problem, counts: Sequence[int], how: Search) -> Iterator[Row]:
    """The best plan on each number of nodes, in order; ends early if the user stops it. Raises UserError."""
    cluster = problem.cluster
    if problem.training.tokens is None:
        raise UserError("training.tokens is missing: give --tokens, such as 15T; days and dollars are of a whole run")
    if cluster.is_mixed:
        raise UserError(f"hardware {cluster.profile.name}: has several kinds of nodes; allowed: nodes of one kind")

    for nodes in counts:
        here = replace(problem, cluster=replace(cluster, nodes=nodes), objective="time")
        progress = how.progress()
        try:
            result = find_space(how.space, here.cluster)(here, progress)
        except Infeasible as reason:
            if progress.is_user_stop:
                return
            yield Row(nodes, here.cluster.world_size, reason=str(reason))
            continue
        yield _row(here, result, how)
        if progress.is_user_stop:
            return


def _row(problem: Problem, values: SearchResult, how: Search) -> Row:
    """A number of nodes with the whole run of its best plan, including failures if a reliability is known."""
    plan = values.shortest.plan
    inputs = {"model": problem.graph, "cluster": problem.cluster}
    result = exact(problem, plan)
    result = add_operation(result, inputs, how.operation, seed=how.seed)
    known = result.certainty
    return Row(
        nodes=problem.cluster.nodes,
        devices=problem.cluster.world_size,
        run=result.whole_run,
        plan=plan,
        figures={
            "step_time_s": result.step_time_s,
            "mfu": result.mfu,
            "fit_probability": known and known.fit_probability,
        },
        is_certified=values.certified_optimal,
        gap=values.gap,
    )
