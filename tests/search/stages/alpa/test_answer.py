"""The answer is ranked by whole simulated steps, whatever shorter steps promised, and shows every plan once."""

from __future__ import annotations

import pytest

import simpar
from simpar.errors import UserError
from simpar.models.hf_config import read
from simpar.plan.megatron_roles import megatron_sharding
from simpar.plan.plan import Plan
from simpar.plan.uniform_stages import as_stages
from simpar.search.api import search
from simpar.search.certify.exact import candidate, exact
from simpar.search.problem import Constraints, Problem, make_problem
from simpar.search.stages.alpa.answer import Found, answer

TINY = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 256, "num_attention_heads": 4,
    "intermediate_size": 512, "num_hidden_layers": 4,
}  # fmt: skip


def problem(headroom: float = 0.0) -> Problem:
    """A tiny model on four processes of a laptop."""
    training = simpar.Training(seq_len=128, global_batch=8)
    constraints = Constraints(headroom=headroom)
    return make_problem(read(TINY, "tiny"), simpar.Cluster("laptop-cpu-4"), training, constraints=constraints)


def uniform_plan(of: Problem, **layout: object) -> Plan:
    """A uniform plan as it was resolved."""
    return Plan.model_validate(exact(of, Plan(zero=1, **layout)).setup.plan)


def test_ranks_are_those_of_whole_steps_and_figures_those_of_simulate() -> None:
    """A promise counts for nothing: candidates have the step, memory and order of ``simpar.simulate``."""
    of = problem()
    plans = [as_stages(uniform_plan(of, micro_batch=1, pp=pp), of.graph) for pp in (1, 2)]
    promised = [Found(seconds, 0.0, plan, "cut") for seconds, plan in zip((9.0, 1.0), plans, strict=True)]
    uniform = [candidate(1, exact(of, uniform_plan(of, micro_batch=1, tp=2)))]
    ranked, details = answer(of, uniform, promised, 5)
    assert [one.rank for one in ranked] == [1, 2, 3]
    times = [one.step_time_s for one in ranked]
    assert times == sorted(times)
    assert {len(one.plan.pipeline.stages or ()) for one in ranked} == {0, 1, 2}
    for one in ranked:
        again = simpar.simulate(of.graph, of.cluster, one.plan, of.training)
        assert (again.step_time_s, again.peak_memory_bytes) == (one.step_time_s, one.peak_memory_bytes)
        assert again.fits
    assert details["uniform_best_s"] == uniform[0].step_time_s


def test_a_plan_is_shown_once_and_only_where_it_fits() -> None:
    """What was found twice is one candidate; what leaves less room than was asked for is none."""
    of = problem()
    plan = as_stages(uniform_plan(of, micro_batch=1), of.graph)
    twice = [Found(1.0, 0.0, plan, "cut"), Found(2.0, 0.0, plan, "sharded again")]
    assert len(answer(of, (), twice, 5)[0]) == 1
    assert answer(problem(headroom=0.9999), (), twice, 5) == ((), {})


def test_every_plan_says_what_takes_it() -> None:
    """Stages that are one layout are exported as that; others are run only, or name what is not."""
    of = problem()
    plan = as_stages(uniform_plan(of, micro_batch=1, pp=2), of.graph)
    stages = tuple(
        stage.model_copy(
            update={"mesh": (1, 2), "sharding": megatron_sharding(of.graph, False)} if number else {}
        )
        for number, stage in enumerate(plan.pipeline.stages or ())
    )
    mixed = plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"stages": stages})})
    whys = [
        one.why for found in (plan, mixed) for one in answer(of, (), [Found(1.0, 0.0, found, "cut")], 1)[0]
    ]
    assert all("`simpar run` runs its stages as they are" in why for why in whys)
    assert "exports write its stages as one layout: tp 1, pp 2, dp 2" in whys[0]
    assert any("exports do not write its stages: plan.stages[1]: mesh (1, 2)" in line for line in whys[1])


@pytest.mark.parametrize("objective", ["cost", "energy", "devices"])
def test_only_the_time_is_an_objective(objective: str) -> None:
    """Other objectives choose among numbers of nodes, which this space does not."""
    of = problem()
    with pytest.raises(UserError, match="allowed: time"):
        search(of.graph, of.cluster, of.training, space="alpa", objective=objective)
