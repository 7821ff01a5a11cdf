"""Tables of greedy schedules are made for the durations of passes that the simulator makes them for."""

import numpy as np
import pytest

from simpar.plan.schedules import EVEN_COSTS
from tests.search.conftest import make_frontier, random_problem

GREEDY = ("zb-h1", "zb-h2", "v-half", "v-min")


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_rows_share_the_durations_of_their_blocks(seed):
    """However blocks are spread over stages, a row's costs are those of its own job."""
    fixed = {"schedule": GREEDY, "micro_batch": 1, "tp": 1, "zero": 0, "overlap_grad_reduce": True}
    sweeps = make_frontier(random_problem(seed, **fixed), seed, 60).sweeps
    pipelines = sweeps.bounds.pipelines
    rows = np.unique(pipelines.index, return_index=True)[1].tolist()
    found = {row: sweeps.table_key(row)[-1] for row in rows}
    assert found == {row: pipelines.jobs.job(row).plan.pipeline.pass_costs or EVEN_COSTS for row in rows}
    assert len(set(found.values())) > 1, "all durations are alike"
    assert len(sweeps._blocks) < len(rows), "nothing is shared"
