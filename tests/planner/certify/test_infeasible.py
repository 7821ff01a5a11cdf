"""Why there is no answer."""

import re
from dataclasses import replace

import pytest

import simpar
from simpar.errors import Infeasible
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.certify.infeasible import _rounded_up, explain_no_answer, explain_too_large
from simpar.planner.problem import Constraints
from simpar.planner.progress import SearchProgress
from tests.gate import some

HELD = {"hsdp": 1, "tp": 1, "pp": 1, "micro_batch": 1, "recompute": "none", "zero": 0}


@pytest.mark.parametrize("seconds", [0.0123, 1.0, 999.9, 3.14159e-4])
def test_rounded_up_is_a_little_more(seconds):
    """In three digits: a deadline that is met."""
    assert seconds < _rounded_up_number(seconds) <= seconds * 1.011
    assert len(_rounded_up(seconds).replace(".", "").strip("0").split("e")[0]) <= 4


def _rounded_up_number(seconds):
    return float(_rounded_up(seconds))


def searched(problem, progress):
    """A search that has bounded its rows and simulated none."""
    return BranchAndBound(fields_of(problem, [problem.cluster.nodes]), progress)


def test_memory_is_said_with_what_fills_it(problem_of):
    """What the smallest layout needs, of what, on which stage."""
    problem = problem_of(5, **HELD)
    small = replace(problem, constraints=Constraints(fixed=HELD, headroom=0.999))
    said = str(explain_no_answer(searched(small, SearchProgress(brief=True)), small))
    assert said.startswith("nothing fits: the smallest layout needs at least ")
    assert " on stage 0 to be 95 % sure, mostly " in said
    assert "; try " not in said


def test_a_hint_is_a_flag_with_which_something_fits(problem_of):
    """Less headroom where that is what is in the way."""
    problem = problem_of(5, **HELD)
    small = replace(problem, constraints=Constraints(fixed=HELD, headroom=0.999))
    said = str(explain_no_answer(searched(small, SearchProgress()), small))
    assert "--headroom 0." in said.partition("; try ")[2]


@pytest.mark.parametrize(
    ("model", "seq_len", "stack", "fixed", "headroom", "hint"),
    some(
        [
            ("gpt2", 512, "megatron", {"optimizer": "shampoo"}, 0.94, "--fix optimizer=adamw"),
            ("gpt2", 512, "nemo", {"grad_dtype": "fp32"}, 0.95, "--fix grad_dtype=bf16"),
            ("small-mixture", 2048, "megatron", {"capacity_factor": 8.0}, 0.96, "no --fix capacity_factor"),
        ],
        1,
        tuples=True,
    ),
)
def test_an_axis_that_nobody_else_asked_for_has_a_hint(model, seq_len, stack, fixed, headroom, hint):
    """Its value without the flag: that of the plan, of the stack, or none; and with the hint something fits."""
    training, cluster = simpar.Training(seq_len=seq_len, global_batch=16), simpar.Cluster("dgx-h100", 1)

    def search(**fixed):
        constraints = Constraints(fixed={**HELD, "cp": 1, **fixed}, headroom=headroom)
        return simpar.search(model, cluster, training, stack=stack, constraints=constraints)

    with pytest.raises(Infeasible) as refused:
        search(**fixed)
    assert hint in re.split("; try | or ", str(refused.value))[1:]
    _, _, flag = hint.partition("--fix ")
    name, _, value = flag.partition("=")
    assert search(**({name: value} if value else {})).best


def test_a_stopped_search_says_that_it_was_stopped(problem_of):
    """Not that nothing fits."""
    problem = problem_of(5, **HELD)
    stopped = BranchAndBound([], SearchProgress(interrupted=True))
    assert str(explain_no_answer(stopped, problem)) == "stopped (interrupted) before any plan that fits was found"
    nowhere = BranchAndBound([], SearchProgress())
    assert str(explain_no_answer(nowhere, problem)) == "no plan is possible on any number of nodes"


def test_plans_of_too_many_ops_are_counted():
    """With what is allowed."""
    assert str(explain_too_large(1234)).startswith(
        "none of the 1,234 plans that may be best can be simulated: more than "
    )
