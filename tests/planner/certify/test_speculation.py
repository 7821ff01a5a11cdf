"""Simulations of rows that are likely to be next."""

import numpy as np
import pytest

from simpar.planner.certify import speculation
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import SWEPT, TABLED
from simpar.planner.certify.speculation import SpeculativeWorkers, likely, measure_in_worker
from simpar.planner.space.jobs import plan_of
from simpar.program.emission.emit import MOST_OPS
from simpar.workers import Workers
from tests.planner.certify.test_openings import long_pipelines, swept


@pytest.fixture
def frontier(problem_of, frontier_of):
    """Rows of which a few are swept."""
    found = frontier_of(problem_of(3, hsdp=1, recompute="none"), 3, 20)
    left = np.ones(found.rows.count, dtype=bool)
    for _ in range(3):
        left[found.shortest(left, SWEPT)] = False
    return found


def test_elsewhere_is_what_is_found_here(frontier):
    """The same step and the same need, without what is large."""
    problem = frontier.rows.problem
    plan = plan_of(frontier.rows, frontier.next())
    found, here = measure_in_worker([problem], (0, plan, MOST_OPS)), measure(problem, plan)
    assert (found.step_time_s, found.needed_bytes, found.fits) == (here.step_time_s, here.needed_bytes, here.fits)


def test_what_cannot_be_simulated_is_left_to_whoever_needs_it(frontier):
    """It says why then."""
    problem, row = frontier.rows.problem, frontier.next()
    plan = plan_of(frontier.rows, row)
    whole = plan.model_copy(update={"mesh": plan.mesh.model_copy(update={"tp": 3})})
    assert measure_in_worker([problem], (0, whole, MOST_OPS)) is None
    slots = measure(problem, plan).num_slots
    assert measure_in_worker([problem], (0, plan, slots)) is not None
    assert measure_in_worker([problem], (0, plan, slots - 1)) is None


def test_likely_rows_are_swept_and_better_than_the_best(frontier, monkeypatch):
    """Lowest first, without the one whose turn it is; none that a target refuses or that is no better."""
    waiting, pool = SpeculativeWorkers([frontier], Workers(2)), Workers(2).pool(len)
    swept = [row for _, row in likely(frontier, np.inf, [])]
    assert (frontier.level[swept] >= (TABLED if frontier.meets else SWEPT)).all()
    assert (np.diff(frontier.worth(np.array(swept))) >= 0).all()
    assert len(swept) > 1
    assert [row for _, row in waiting._likely(pool, (0, swept[0]))] == swept[1:]
    waiting.best = float(frontier.worth(swept[-1]))
    assert swept[-1] not in [row for _, row in waiting._likely(pool, (0, swept[0]))]
    monkeypatch.setattr(speculation, "refusals", lambda *_: ["refused"])
    fresh = SpeculativeWorkers([frontier], Workers(2))
    assert list(fresh._likely(pool, (0, swept[0]))) == []


def test_where_messages_meet_one_of_those_that_open_alike_is_likely():
    """Tables are enough; rows that are expected to beat the best come first, and one asked for stands for all."""
    found, every = swept(long_pipelines(tp=2))
    found._raise(every, found.bound_s[every], TABLED)
    kinds = {found.openings.kind(row) for row in every.tolist()}
    assert 1 < len(kinds) < len(every)
    first = [row for _, row in likely(found, np.inf, [])]
    assert {found.openings.kind(row) for row in first} == kinds
    assert len(first) == len(kinds)
    assert {row for _, row in likely(found, np.inf, [first[0]])} == {*first[1:]}
    found._above[found._family[first]] = np.linspace(2.0, 1.0, len(first))
    best = float(np.median(found.expected(np.array(first))))
    late = [late for (late, _), _ in likely(found, best, [])]
    assert late == sorted(late)
    assert {*late} == {False, True}


def test_alone_a_row_is_simulated_when_its_turn_comes(frontier):
    """And nothing else."""
    row = frontier.next()
    with SpeculativeWorkers([frontier], Workers()) as alone:
        found = alone.simulate(0, row, np.inf)
    assert frontier.simulated == {row: found}
