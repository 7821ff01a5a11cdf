"""Rows of the space as plans and as jobs, without the checks that the axis tables make superfluous."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.architectures.recompute import OPTIMAL
from simpar.dataclass import dataclass
from simpar.layout.decider import fill_open_choices
from simpar.layout.deciders import BY_MODEL, BY_STACK, DISPATCH, OFFLOAD
from simpar.layout.layout import Layout, stated_choices
from simpar.plan.choices import AXES, made_for, names_that_decide, path_of
from simpar.plan.choices.choice import LAYOUT, SIZES
from simpar.plan.choices.mesh import split_order
from simpar.plan.plan import Plan
from simpar.plan.schedules import EVEN_COSTS, HALF_SCHEDULES, default_schedule, looks_at_costs, natural_vpp, producer_of
from simpar.planner.problem import RECORDED_KEYS, Problem
from simpar.planner.space.table import Rows
from simpar.program.job import TrainingJob
from simpar.simulation import job_of_layout
from simpar.units import Counts, Ints


def plan_of(rows: Rows, index: int) -> Plan:
    """The plan of one row, on top of the problem's base plan, which also supplies axes that are not joined yet."""
    sections: dict[str, dict[str, Any]] = {}
    chosen: dict[str, Any] = {}
    for name in rows.domain:
        value = rows.domain[name][rows.code[name][index]]
        section, field = path_of(name)
        if section:
            sections.setdefault(section, {})[field] = value
        else:
            chosen[name] = value
    problem = rows.problem
    chosen |= {name: _section(problem, name, values) for name, values in sections.items()}
    return problem.checked_base.model_copy(update=chosen)


def _section(problem: Problem, name: str, values: dict[str, Any]) -> Any:
    """A section of the base plan with other values, checked once: many rows share it."""
    known = name, *values.items()
    if known not in problem.sections:
        base = getattr(problem.checked_base, name)
        values = {field: split_order(value) if field == "order" else value for field, value in values.items()}
        problem.sections[known] = type(base).model_validate({**base.model_dump(), **values})
    return problem.sections[known]


def fill_dp(rows: Rows, index: int) -> Plan:
    """The plan of one row with its data-parallel degree filled in, if its pipeline is known.

    If chunks are not joined yet, they are the fewest that the schedule takes.
    """
    plan = plan_of(rows, index)
    if "schedule" in rows.domain and "vpp" not in rows.domain:
        pipeline = plan.pipeline.model_copy(update={"vpp": natural_vpp(plan.schedule)})
        plan = plan.model_copy(update={"pipeline": pipeline})
    if "pp" not in rows.domain:
        return plan
    return plan.model_copy(update={"mesh": plan.mesh.model_copy(update={"dp": int(rows.at("dp", index))})})


def without_axes(plan: Plan) -> Plan:
    """A plan with every axis of every space at its default, and without what is made for its layout."""
    given = plan.model_dump(exclude=RECORDED_KEYS, exclude_unset=True)
    for name in (*(axis.name for axis in AXES), *made_for(LAYOUT)):
        section, field = path_of(name)
        holder = given.get(section, {}) if section else given
        if isinstance(holder, dict):
            holder.pop(field, None)
    return Plan.model_validate(given)


@dataclass
class RowJobs:
    """Jobs of rows, made on demand."""

    rows: Rows

    @property
    def problem(self) -> Problem:
        """The problem that the rows belong to."""
        return self.rows.problem

    def layout(self, row: int) -> Layout:
        """The layout of a row; what depends on costs is left open."""
        problem = self.problem
        plan = plan_of(self.rows, row)
        choices = stated_choices(plan) | {"dp": int(self.rows.at("dp", row))}
        if plan.memory.recompute == OPTIMAL:  # undecided: no recomputation takes the least time
            choices["recompute"] = "none"
        if producer_of(plan.schedule).runs_slices:  # whole passes; slices are in planner/certify/token_slices.py
            choices["slices"] = (problem.training.seq_len,)
        if plan.schedule in HALF_SCHEDULES:  # passes are priced as on a pipeline with one end
            choices["schedule"] = default_schedule()
        if looks_at_costs(plan.schedule):  # tables are made in planner/bound/batched_sweep.py
            choices["pass_costs"] = choices["pass_costs"] or EVEN_COSTS
        choices = fill_open_choices(choices, (DISPATCH, *BY_STACK, OFFLOAD), problem.stack)
        return Layout.of(plan, fill_open_choices(choices, BY_MODEL, (problem.graph, problem.stack)))

    def job(self, row: int) -> TrainingJob:
        """The job of a row."""
        problem = self.problem
        return job_of_layout(problem.graph, problem.cluster, self.layout(row), problem.training, problem.stack)

    def batch(self, which: NDArray[np.int64]) -> TrainingJob:
        """One job for rows int64[n] whose passes differ in SIZES only; its layout has int64[n] where they differ.

        It has the pipeline and the data parallelism of the first row.
        """
        derived = {"etp": "expert_tp"}  # where a plan leaves it open, it follows from tp and ep
        sizes = {name: column(self.rows.at(derived.get(name, name), which)) for name in names_that_decide(SIZES)}
        job = self.job(int(which[0]))
        return replace(job, layout=job.layout.with_columns(sizes))


def column(values: Ints) -> Counts:
    """The common value if all are equal, otherwise the column itself, [n]."""
    result: Counts = values if (values != values[0]).any() else values[0].item()
    return result
