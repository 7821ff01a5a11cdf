"""From simulated results to the candidates of an answer."""

import pytest

import simpar
from simpar.plan.plan import Plan
from simpar.planner.answer.candidates import answer_of, plan_of
from simpar.planner.problem import make_problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import Counts


@pytest.fixture(scope="module")
def problem():
    """A tiny model on one node."""
    shape = "tiny-llama", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=128, global_batch=8)
    return make_problem(*shape, objective="time")


@pytest.fixture(scope="module")
def results(problem):
    """Two layouts, simulated, the quicker first."""
    plans = (Plan(tp=1, micro_batch=1), Plan(tp=2, micro_batch=1))
    found = [
        simpar.simulate(problem.graph, problem.cluster, plan, problem.training, stack=problem.stack) for plan in plans
    ]
    return sorted(found, key=lambda one: one.step_time_s)


def test_a_found_plan_says_what_was_predicted_where(problem, results):
    """It is resolved, and simulates to the same; it names its cluster and the probability that was wanted."""
    plan = plan_of(problem, results[0])
    assert plan.predicted["step_time_s"] == results[0].step_time_s
    assert plan.search.fit_probability == problem.constraints.fit_probability
    assert plan.mesh.dp is not None
    again = simpar.simulate(problem.graph, problem.cluster, plan, problem.training, stack=problem.stack)
    assert again.step_time_s == results[0].step_time_s


def test_candidates_are_ranked_with_their_figures(problem, results):
    """As many as are wanted are shown, the others are kept beside them."""
    answer = answer_of(problem, SearchProgress(top=1), results, Counts(), 0.0, True)
    assert [one.rank for one in (*answer.candidates, *answer.not_shown)] == [1, 2]
    assert [one.step_time_s for one in (*answer.candidates, *answer.not_shown)] == [one.step_time_s for one in results]
    best = answer.best
    assert best.figures["tokens_per_s"] == results[0].tokens_per_s
    assert best.figures["nodes"] == 1
    assert any("runner-up is slower" in each for each in best.why)
    assert answer.not_shown[0].why[0].startswith("slower by ")


@pytest.mark.parametrize(("gap", "whole", "certified"), [(0.0, True, True), (0.0, False, False), (0.1, True, False)])
def test_an_answer_is_certified_where_nothing_is_left(problem, results, gap, whole, certified):
    """Without a gap, and of a search that went to its end."""
    answer = answer_of(problem, SearchProgress(), results, Counts(), gap, whole)
    assert answer.certified_optimal is certified
    assert answer.details["stopped"] is None
    assert answer.details["node_counts"] == [1]
