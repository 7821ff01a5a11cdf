"""The uniform space as a search."""

from dataclasses import replace

import pytest

from simpar.errors import Infeasible
from simpar.planner.problem import Constraints
from simpar.planner.progress import SearchProgress
from simpar.planner.uniform import node_counts, search_uniform

HELD = {"hsdp": 1, "tp": (1, 2), "pp": 1, "micro_batch": 1, "zero": 1, "recompute": "none"}


def test_numbers_of_nodes_are_halves(problem_of):
    """All nodes for the time; else down to one, or as long as they halve, fewest first."""
    problem = problem_of(1)
    for nodes, counts in ((8, [1, 2, 4, 8]), (12, [3, 6, 12]), (1, [1])):
        larger = replace(problem, cluster=replace(problem.cluster, nodes=nodes), objective="cost")
        assert node_counts(larger) == counts
        assert node_counts(replace(larger, objective="time")) == [nodes]


def test_the_answer_says_what_was_searched(problem_of):
    """Certified, the best first, with its problem, scope and counts."""
    problem = problem_of(5, **HELD)
    found = search_uniform(problem, SearchProgress(top=2, brief=True))
    assert found.certified_optimal
    assert found.gap == 0
    times = [one.step_time_s for one in found.candidates]
    assert times == sorted(times)
    assert found.details["node_counts"] == [problem.cluster.nodes]
    assert found.details["stack"] == problem.stack.name
    assert "naive" not in found.details
    assert found.counts.space_size >= found.counts.feasible >= found.counts.simulated >= 1


def test_without_a_plan_there_is_a_reason(problem_of):
    """A deadline that nothing meets is infeasible, with the time that every step takes at least."""
    problem = problem_of(5, **HELD)
    late = replace(problem, constraints=Constraints(fixed=HELD, deadline_s=1e-6))
    with pytest.raises(Infeasible, match=r"no plan meets the deadline of 1.* every step takes at least"):
        search_uniform(late, SearchProgress(brief=True))
