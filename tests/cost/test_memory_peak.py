"""What a schedule has in flight on a pipeline rank, and what the host holds because it runs ahead."""

from __future__ import annotations

import pytest

from simpar.cost.memory.moments import most_in_flight
from simpar.cost.stack import load_stack, resolve
from simpar.errors import UserError
from simpar.models.catalogue import load_model
from simpar.models.training import Training
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, make_schedule
from tests.cost.account import builder_of

TRAINING = Training(seq_len=512, global_batch=32)
EXACT = ("naive", "gpipe", "1f1b", "interleaved", "breadth-first", "zb-v", "dualpipev")
SHAPES = [(1, 1, 1), (2, 8, 1), (4, 4, 1), (4, 32, 1), (4, 8, 2), (4, 32, 2), (2, 16, 4)]


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in ("terapipe", "dualpipe")])
def test_in_flight_is_the_table_s(name: str) -> None:
    """Of orders that are fixed as many forwards as the table's peak; of greedy ones no more."""
    for p, m, vpp in SHAPES:
        try:
            schedule = make_schedule(name, p, m, vpp)
        except UserError:
            continue
        plan = Plan(pp=p, vpp=vpp, schedule=name, dp=1)
        training = Training(seq_len=512, global_batch=m)
        found = [most_in_flight(plan, training, rank) for rank in range(p)]
        peaks = [schedule.peak_in_flight(rank) for rank in range(p)]
        assert all(most <= peak for most, peak in zip(found, peaks, strict=True))
        if name in EXACT and m >= 2 * p:
            assert found == peaks


def test_held_outputs_need_tensor_parallelism_and_a_host_that_runs_ahead() -> None:
    """Partial sums pile up under tp without a pipeline or in its warm-up, not with tp = 1 or two stages."""
    graph, habits = load_model("llama-3-8b"), load_stack("nanotron")

    def held(**plan: int) -> float:
        resolved = resolve(Plan(dp=1, **plan), habits)
        return builder_of(graph, resolved, TRAINING, habits).held_outputs_bytes(0)

    assert held(tp=1, pp=1) == held(tp=8, pp=2) == 0
    assert held(tp=8, pp=1) > held(tp=8, pp=4) > 0
