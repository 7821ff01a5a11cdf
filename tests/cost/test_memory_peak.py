"""What a schedule has in flight on a pipeline rank, and what the host holds because it runs ahead."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.cost.collectives.measured import calibrate_cluster
from simpar.cost.memory.moments import most_in_flight
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, looks_at_costs, make_schedule
from simpar.program.footprint import footprints
from simpar.simulation import lower_job, make_job
from simpar.stacks.stack import load_stack
from tests.cost.account import builder_of

TRAINING = Training(seq_len=512, global_batch=32)
SHAPES = [(1, 1, 1), (2, 8, 1), (4, 4, 1), (4, 32, 1), (4, 8, 2), (4, 32, 2), (2, 16, 4)]


@pytest.mark.parametrize(
    "name", [each.name for each in SCHEDULES.values() if not each.runs_slices and not each.half_schedule]
)
def test_in_flight_is_the_table_s(name: str) -> None:
    """Of orders that are fixed as many forwards as the table's peak; of greedy ones no more."""
    for p, m, vpp in SHAPES:
        try:
            schedule = make_schedule(name, p, m, vpp)
        except UserError:
            continue
        plan = Plan(pp=p, vpp=vpp, schedule=name, dp=1)
        training = Training(seq_len=512, global_batch=m)
        found = [most_in_flight(Layout.of(plan), training, rank) for rank in range(p)]
        peaks = [schedule.peak_in_flight(rank) for rank in range(p)]
        assert all(most <= peak for most, peak in zip(found, peaks, strict=True))
        if not looks_at_costs(name) and m >= 2 * p:
            assert found == peaks


def test_held_outputs_need_tensor_parallelism_and_a_host_that_runs_ahead() -> None:
    """As many partial sums as the queue of launches holds, whatever the stage; held up, only while stages wait."""
    graph, habits = load_model("llama-3-8b"), load_stack("nanotron")

    def held(*, held_up: bool = False, **plan: int) -> float:
        resolved = resolve(Plan(dp=1, **plan), habits)
        return builder_of(graph, resolved, TRAINING, habits).held_outputs_bytes(0, held_up=held_up)

    each = TRAINING.seq_len * graph.dims["hidden"] * 2
    assert held(tp=1, pp=1) == 0
    assert held(tp=8, pp=1) == held(tp=8, pp=2) == habits.memory.allocator.held_outputs * each
    assert held(tp=8, pp=1, micro_batch=2) == 2 * held(tp=8, pp=1)
    waiting = [held(held_up=True, tp=8, pp=pp) for pp in (1, 2, 4, 8)]
    assert waiting[:2] == [0, 0]
    assert 0 < waiting[2] < waiting[3] == held(tp=8, pp=8)


@pytest.mark.parametrize(("micro_batch", "waits"), [(1, True), (16, False)])
def test_late_members_keep_the_host_behind_small_microbatches(micro_batch: int, waits: bool) -> None:
    """On a disturbed node the host is held up by collectives as long as kernels are short; elsewhere it never is."""
    graph, stack = load_model("llama-3-8b"), load_stack("nanotron")
    plan, training = Plan(tp=8, dp=1, micro_batch=micro_batch), Training(seq_len=4096, global_batch=32)
    reserved = []
    for intra in (457e9, 425e9):
        cluster = calibrate_cluster(load_cluster("aws-p5", 1), {"intra_all_reduce": intra})
        job = make_job(graph, cluster, plan, training, stack)
        lowered = lower_job(job, cluster)
        found = footprints(lowered, choose_engine("auto", lowered.program)(lowered.program), cluster)
        reserved.append(found[0].held_outputs_bytes)
    assert reserved[0] > 0
    assert (reserved[1] == 0) == waits
