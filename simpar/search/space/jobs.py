"""From rows of the space to jobs without the checks that the axis table makes superfluous."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.cost.stack import resolve
from simpar.models.recompute import OPTIMAL
from simpar.plan.mirrored import BOTH_ENDS
from simpar.plan.offload import decided_offload
from simpar.plan.plan import Plan
from simpar.plan.schedules import EVEN_COSTS, looks_at_costs
from simpar.program.blocks.rank_view import Job
from simpar.search.problem import Problem
from simpar.search.space.axes import SLICED, Rows
from simpar.search.space.rows import plan_of
from simpar.simulation import balanced, checked_job


@dataclass
class Jobs:
    """Jobs of rows, made when asked for."""

    rows: Rows

    @property
    def problem(self) -> Problem:
        """The problem that the rows belong to."""
        return self.rows.problem

    def plan(self, row: int) -> Plan:
        """The resolved plan of a row, dp and schedule filled in."""
        problem = self.problem
        plan = plan_of(self.rows, row)
        if plan.memory.recompute == OPTIMAL:  # undecided: nothing takes less time than to recompute nothing
            plan = plan.model_copy(update={"memory": plan.memory.model_copy(update={"recompute": "none"})})
        mesh = plan.mesh.model_copy(update={"dp": int(self.rows["dp"][row])})
        pipeline = plan.pipeline.model_copy(update={"schedule": plan.schedule})
        if (
            plan.schedule == SLICED
        ):  # passes are priced whole; those of slices in search/certify/token_slices.py
            pipeline = pipeline.model_copy(update={"slices": (problem.training.seq_len,)})
        if plan.schedule == BOTH_ENDS:  # passes are priced as on a pipeline with one end
            pipeline = pipeline.model_copy(update={"schedule": "1f1b"})
        if looks_at_costs(plan.schedule):  # tables are made in search/bound/batched_sweep.py
            pipeline = pipeline.model_copy(update={"pass_costs": pipeline.pass_costs or EVEN_COSTS})
        filled = plan.model_copy(update={"mesh": mesh, "pipeline": pipeline})
        filled = filled.model_copy(update={"offload": decided_offload(filled)})
        return balanced(resolve(filled, problem.stack), problem.graph, problem.stack)

    def job(self, row: int) -> Job:
        """The job of a row."""
        problem = self.problem
        return checked_job(problem.graph, problem.cluster, self.plan(row), problem.training, problem.stack)
