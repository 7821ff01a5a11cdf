"""Schedules that look at durations get those of the job, and the plan remembers them."""

from __future__ import annotations

import pytest

from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.program.resolve.pass_costs import pass_costs
from simpar.report.result import Result
from simpar.simulation import make_job, simulate

SHAPE = Training(seq_len=8192, global_batch=32)


def run(**plan: object) -> Result:
    """GPT-3 175B on eight DGX H100, eight tensor-parallel and eight pipeline ranks."""
    return simulate("gpt3-175b", load_cluster("dgx-h100", 8), Plan(tp=8, pp=8, dp=1, **plan), SHAPE)


def test_backward_is_dearer_than_forward_and_recomputation_dearer_still() -> None:
    """Causal attention: input gradients cost more than a forward, weight gradients less; recomputing adds a forward."""
    cluster = load_cluster("dgx-h100", 8)
    for recompute, more in (("none", 0.0), ("full", 1.0)):
        plan = Plan(tp=8, pp=8, dp=1, schedule="zb-h1", recompute=recompute)
        forward, gradient, weight = pass_costs(make_job("gpt3-175b", cluster, plan, SHAPE), cluster)
        assert forward == 1.0
        assert 1.0 + more < gradient < 1.4 + more
        assert 0.5 < weight < 1.0


def test_a_pattern_made_for_true_durations_is_quicker() -> None:
    """V-Half for this model's durations beats V-Half for equal ones."""
    assert run(schedule="v-half").step_time_s < 0.98 * run(schedule="v-half", pass_costs=(1.0, 1.0, 1.0)).step_time_s


def test_the_plan_remembers_what_its_table_was_made_for() -> None:
    """The plan of a result gives the same table again, also where nothing could be measured."""
    first = run(schedule="v-half")
    assert first.setup.plan["pipeline"]["pass_costs"][0] == 1.0
    again = run(**Plan.model_validate(first.setup.plan).model_dump(include={"pipeline"}))
    assert again.step_time_s == first.step_time_s
    assert run(schedule="1f1b").setup.plan["pipeline"]["pass_costs"] is None


@pytest.mark.parametrize("costs", [(1.0, 0.0, 1.0), (1.0, float("nan"), 1.0), (1.0, 1e400, 1.0), (1.0, 1.0)])
def test_durations_are_positive_numbers(costs: tuple[float, ...]) -> None:
    """Three of them, above zero and finite."""
    with pytest.raises((UserError, ValueError), match="pass_costs"):
        Plan(schedule="zb-h1", pp=8, pass_costs=costs)
