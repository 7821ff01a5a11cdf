"""What the requested probability of fitting costs."""

import pytest

import simpar
from simpar.planner import Constraints, make_problem
from simpar.planner.answer import margin
from simpar.planner.answer.margin import Margin
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.progress import SearchProgress

TRAINING = simpar.Training(seq_len=1024, global_batch=256)
FEW = {"tp": 1, "pp": 1, "cp": 1, "zero": 1, "recompute": ("none", "selective", "full")}


def searched(probability):
    """A finished search of a small space, and its best row."""
    constraints = Constraints(fixed=FEW, portable="any", fit_probability=probability)
    problem = make_problem("gpt2-medium", simpar.Cluster("rtx-4090-8"), TRAINING, constraints=constraints)
    search = BranchAndBound(fields_of(problem, [1]), SearchProgress())
    search.run()
    ((row, _),) = [one for one in search.frontiers[0].simulated.items() if one[1] is search.ranked()[0]]
    return search.fields[0], row


def test_a_plan_that_fits_as_predicted_has_no_margin():
    """Nothing was asked for that could cost anything."""
    assert Margin.of(*searched(0.5)) == Margin()


@pytest.mark.parametrize("probability", [0.95, 0.999])
def test_the_margin_is_against_the_best_that_fits_as_predicted(probability, monkeypatch):
    """As a search that asks for no margin finds, and with the number of plans that it simulated."""
    field, row = searched(probability)
    before, ran = len(field.frontier.simulated), list[object]()
    made = margin.Field.among

    def among(*given, **more):
        ran.append(made(*given, **more))
        return ran[-1]

    monkeypatch.setattr(margin.Field, "among", among)
    price = Margin.of(field, row)
    assert price.simulated == sum(len(one.frontier.simulated) for one in ran if one.frontier)
    assert len(field.frontier.simulated) == before
    loose, best = searched(0.5)
    mine_s, least_s = field.frontier.simulated[row].step_time_s, loose.frontier.simulated[best].step_time_s
    assert price.told["gain"] == pytest.approx(mine_s / least_s - 1, rel=1e-9)
    assert price.told["gain"] > 0.0
