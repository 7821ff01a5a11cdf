"""Tables of greedy schedules are made for the durations of passes that the simulator makes them for."""

import numpy as np
import pytest

from simpar.plan.schedules import EVEN_COSTS
from simpar.planner.certify.exact import job_of
from simpar.planner.space.jobs import plan_of
from tests.gate import some
from tests.planner.conftest import make_frontier, random_problem

GREEDY = ("zb-h1", "zb-h2", "v-half", "v-min")


@pytest.mark.parametrize("seed", some([0, 3, 5], 1))
def test_rows_share_the_durations_of_their_blocks(seed):
    """However blocks are spread over stages, a row's costs are those of its own job."""
    fixed = {"schedule": GREEDY, "micro_batch": 1, "tp": 1, "zero": 0, "overlap_grad_reduce": True}
    problem = random_problem(seed, **fixed)
    frontier = make_frontier(problem, seed, 60)
    rows = np.unique(frontier.bounds.pipelines.index, return_index=True)[1]
    jobs = [job_of(problem, plan_of(frontier.rows, row)) for row in rows.tolist()]
    found = frontier.sweeps.costs_of(rows)
    assert found == [job.layout.pass_costs or EVEN_COSTS for job in jobs]
    assert len(set(found)) > 1, "all durations are alike"
