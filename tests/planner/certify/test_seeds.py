"""A search that is stopped, at any moment, answers with a plan that was simulated and fits, and with its gap."""

import itertools
import threading

import pytest

import simpar
from simpar.planner.answer import beside, continuation
from simpar.planner.answer.baselines import AlternativesSearch
from simpar.planner.answer.ranking import LayoutRanking
from simpar.planner.certify import frontier as frontier_module
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.certify.frontier import STEP, Frontier
from simpar.planner.certify.seeds import first_plan
from simpar.planner.progress import SearchProgress
from simpar.planner.space.table import Rows
from simpar.planner.uniform import search_uniform
from simpar.simulation import simulate
from tests.gate import some

MOMENTS = (
    (Rows, "join", 1), (Frontier, "of", 1), (Frontier, "raise_bound", 4), (frontier_module, "measure", 1),
    (LayoutRanking, "find", 1), (continuation, "refusals", 2), (beside, "front", 1),
    (Rows, "join", 12), (Frontier, "raise_bound", 1), (frontier_module, "plan_of", 1),
    (AlternativesSearch, "simulate_quickest", 2),
    (beside, "naive_choices", 1), (beside, "cost_kinds", 1),
)  # fmt: skip
"""Functions of all phases of a search, and the call of them in which the user stops it; every phase comes first."""


HELD = {
    "hsdp": 1, "tp": (1, 2), "pp": (1, 2), "micro_batch": 1, "schedule": ("1f1b", "gpipe"), "zero": (0, 1),
    "recompute": ("none", "full"), "tp_overlap": False, "order": "tp-cp-dp-pp",
}  # fmt: skip


@pytest.fixture(scope="module")
def problem(problem_of):
    """A small problem, whose search still takes several simulations."""
    return problem_of(5, **HELD)


@pytest.fixture(scope="module")
def usual(problem):
    """Its search without a stop."""
    return search_uniform(problem, SearchProgress(top=2, brief=True))


@pytest.fixture(scope="module")
def best_s(usual):
    """Its certified optimum."""
    return usual.best.step_time_s


def run_again(problem, found):
    """The step of the best plan, simulated by the public function, which must find that it fits."""
    result = simulate(problem.graph, problem.cluster, found.best.plan, problem.training, stack=problem.stack)
    assert result.fits
    return result.step_time_s


@pytest.mark.parametrize(("owner", "name", "call"), some(MOMENTS, [MOMENTS[at] for at in (0, 2, 4)], tuples=True))
def test_ctrl_c_at_any_moment_leaves_an_answer(owner, name, call, problem, best_s, monkeypatch):
    """The best so far, as simulate runs it, and a gap that holds the optimum; certified where the search had ended."""
    calls, usual = itertools.count(1), getattr(owner, name)

    def stopped(*arguments, **options):
        if next(calls) == call:
            raise KeyboardInterrupt
        return usual(*arguments, **options)

    monkeypatch.setattr(owner, name, staticmethod(stopped) if name == "of" else stopped)
    progress = SearchProgress()
    found = search_uniform(problem, progress)
    monkeypatch.undo()
    assert progress.interrupted
    assert progress.is_user_stop
    assert next(calls) > call
    assert found.details["stopped"] == "interrupted"
    assert run_again(problem, found) == found.best.step_time_s
    assert (1 - found.gap) * found.best.step_time_s <= best_s <= found.best.step_time_s
    assert found.certified_optimal == (owner in (AlternativesSearch, beside, continuation, LayoutRanking))
    assert (found.gap == 0) == found.certified_optimal


def test_a_row_that_was_being_simulated_stays_open(problem, monkeypatch):
    """Stopped inside a simulation, the row's bound still counts for the gap."""
    under_way = BranchAndBound(fields_of(problem, [problem.cluster.nodes]), SearchProgress())
    frontier = under_way.frontiers[0]
    row = frontier.shortest(frontier.bound_s > 0, STEP)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(frontier_module, "measure", stopped)
    with pytest.raises(KeyboardInterrupt):
        under_way.simulate(frontier, row)
    assert row not in frontier.simulated
    frontier.prune(float("inf"))
    assert row in frontier.open_from(STEP)


@pytest.mark.parametrize("inside_a_thread", [False, True])
def test_a_time_limit_ends_a_search_with_an_answer(inside_a_thread, problem):
    """Not certified, and no error; in a thread, where no alarm rings, as well."""
    answers, progress = [], SearchProgress(time_limit_s=1e-9)
    work = threading.Thread(target=lambda: answers.append(search_uniform(problem, progress)))
    if inside_a_thread:
        work.start()
        work.join()
    else:
        answers.append(search_uniform(problem, progress))
    (found,) = answers
    assert found.details["stopped"] == "time limit"
    assert progress.timed_out
    assert not progress.is_user_stop
    assert not found.certified_optimal
    assert 0 < found.gap <= 1
    assert run_again(problem, found) == found.best.step_time_s


@pytest.mark.parametrize("space", ["alpa", "uneven"])
def test_a_time_limit_ends_other_spaces_alike(space):
    """What the uniform space had found so far, and whose limit it was."""
    shape = "tiny-llama", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=512, global_batch=16)
    found = simpar.search(*shape, space=space, time_limit_s=1e-9)
    assert found.details["stopped"] == "time limit"
    assert not found.certified_optimal
    assert found.gap > 0


def test_a_limit_that_is_not_reached_changes_nothing(problem, usual):
    """The same candidates, certified, and the alarm is off."""
    found = search_uniform(problem, SearchProgress(top=2, brief=True, time_limit_s=1e6))
    assert found.certified_optimal
    assert [one.to_dict() for one in found.candidates] == [one.to_dict() for one in usual.candidates]


@pytest.mark.parametrize("number", some([1, 4, 9], [4]))
def test_a_plain_plan_keeps_the_constraints(number, problem_of):
    """Stopped before anything was simulated, or bounded, a search has a usual plan, and what was held is held."""
    problem = problem_of(number, micro_batch=2)
    under_way = BranchAndBound([], SearchProgress())
    first_plan(under_way, problem)
    assert under_way.gap() == 1
    under_way.fields = fields_of(problem, [problem.cluster.nodes])
    first_plan(under_way, problem)
    assert 0 <= under_way.gap() < 1
    (found, again) = under_way.simulated
    assert found.plan == again.plan
    assert (found.plan.micro_batch, found.plan.tensor_parallel.overlap, found.plan.mesh.cp) == (2, False, 1)
    assert under_way.ranked()
