"""The answer of spaces of unlike stages: ranked by whole simulated steps, every plan once, and who takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.errors import Infeasible
from simpar.plan.megatron_roles import megatron_sharding
from simpar.plan.plan import Plan
from simpar.planner.certify.exact import SimulatedPlan, exact
from simpar.planner.problem import Constraints, Problem, make_problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import Counts, SearchResult
from simpar.planner.stages.answers import StagesSearch
from tests.as_stages import as_stages

TINY = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 256, "num_attention_heads": 4,
    "intermediate_size": 512, "num_hidden_layers": 4,
}  # fmt: skip


def problem(headroom: float = 0.0) -> Problem:
    """A tiny model on four processes of a laptop."""
    training = simpar.Training(seq_len=128, global_batch=8)
    constraints = Constraints(headroom=headroom)
    return make_problem(
        read(TINY, "tiny"), simpar.Cluster("laptop-cpu-4"), training, objective="time", constraints=constraints
    )


def uniform_plan(of: Problem, **layout: Any) -> Plan:
    """A uniform plan as it was resolved."""
    return Plan.model_validate(exact(of, Plan(zero=1, **layout)).setup.plan)


@dataclass
class Known(StagesSearch):
    """A search that measures some plans and ranks those that fit."""

    plans: Sequence[Plan] = ()
    bound_s: float = 0.0
    found: list[SimulatedPlan] = field(default_factory=list)

    space = "alpa"

    def __post_init__(self) -> None:
        self.values = {"pp": (1, 2), "schedule": ("1f1b",)}

    def run(self) -> None:
        """Measure all."""
        self.open_s = self.bound_s
        self.found = [done for plan in self.plans if (done := self.measured(plan)).fits]

    def ranked(self) -> list[SimulatedPlan]:
        """Those that fit."""
        return self.found

    def counts(self) -> Counts:
        """How many there were."""
        return Counts(simulated=self.simulated)


def answer(of: Problem, *plans: Plan, lowest_s: float = 0.0) -> SearchResult:
    """The answer that some plans give, without an optimum of even stages."""
    return Known(of, SearchProgress(), plans=plans, bound_s=lowest_s).answer(None)


def test_ranks_are_those_of_whole_steps_and_figures_those_of_simulate() -> None:
    """Candidates have the step, memory and order of ``simpar.simulate``; the gap is what the bound leaves."""
    of = problem()
    plans = [as_stages(uniform_plan(of, micro_batch=1, pp=pp), of.graph) for pp in (2, 1)]
    found = answer(of, *plans, uniform_plan(of, micro_batch=1, tp=2), lowest_s=1e-6)
    assert [one.rank for one in found.candidates] == [1, 2, 3]
    times = [one.step_time_s for one in found.candidates]
    assert times == sorted(times)
    assert {len(one.plan.pipeline.stages or ()) for one in found.candidates} == {0, 1, 2}
    for one in found.candidates:
        again = simpar.simulate(of.graph, of.cluster, one.plan, of.training)
        assert (again.step_time_s, again.peak_memory_bytes) == (one.step_time_s, one.peak_memory_bytes)
    assert found.gap == pytest.approx(1 - 1e-6 / times[0])
    assert not found.certified_optimal
    assert answer(of, *plans, lowest_s=1.0).certified_optimal


def test_a_plan_is_shown_once_and_only_where_it_fits() -> None:
    """What was found twice, or as even stages and as stages of its own, is one; what leaves too little room is none."""
    of = problem()
    even = uniform_plan(of, micro_batch=1)
    plan = as_stages(even, of.graph)
    shown = answer(of, even, plan, plan).candidates
    assert [one.plan.pipeline.stages for one in shown] == [None]
    with pytest.raises(Infeasible, match="no plan of space alpa that was tried fits"):
        answer(problem(headroom=0.9999), plan)


def test_every_plan_says_what_takes_it() -> None:
    """Stages that are one layout are exported as that; others are run only, or name what is not."""
    of = problem()
    plan = as_stages(uniform_plan(of, micro_batch=1, pp=2), of.graph)
    stages = tuple(
        stage.model_copy(update={"mesh": (1, 2), "sharding": megatron_sharding(of.graph, False)} if number else {})
        for number, stage in enumerate(plan.pipeline.stages or ())
    )
    mixed = plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"stages": stages})})
    whys = [answer(of, each).best.why for each in (plan, mixed)]
    assert all("`simpar run` runs its stages as they are" in why for why in whys)
    assert "exports write its stages as one layout: tp 1, pp 2, dp 2" in whys[0]
    assert any("exports do not write its stages: plan.stages[1]: mesh (1, 2)" in line for line in whys[1])
