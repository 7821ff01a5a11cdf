"""Messages between stages: who sends is numbered rightly, and equal messages are one object."""

from __future__ import annotations

import numpy as np
import pytest

from simpar import Cluster, Plan, Training
from simpar.program.orders import ways
from simpar.simulation import lower_job, make_job

PLANS = (
    Plan(tp=2, pp=4, micro_batch=1),
    Plan(tp=2, pp=4, vpp=2, schedule="interleaved", micro_batch=1),
    Plan(pp=2, schedule="zb-v", micro_batch=1),
    Plan(pp=4, schedule="dualpipe", micro_batch=1),
)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.schedule)
def test_equal_numbers_are_equal_senders(plan: Plan) -> None:
    """Stages that wait under the same number wait for the same ranks, whichever stages they are."""
    cluster = Cluster("dgx-h100")
    job = make_job("gpt2", cluster, plan, Training(seq_len=256, global_batch=32))
    maker = lower_job(job, cluster).maker
    messages, quotient = maker.messages, maker.network.quotient
    count, found = 0, dict[tuple[int, int], list[int]]()
    for rank in range(maker.schedule.num_ranks):
        classes = np.flatnonzero(maker.stage_of_class == rank)
        mine = [stage for stage, at in enumerate(maker.schedule.rank_of_stage) if at == rank]
        for stage in mine:
            for source in (stage - 1, stage, stage + 1):
                if 0 <= source < maker.schedule.num_stages:
                    each = np.array([stage]), np.array([source])
                    number = int(ways(maker.schedule, *each, by_stage=messages.by_stage)[0])
                    senders = messages.senders(quotient, classes, stage, source).ravel().tolist()
                    assert found.setdefault((rank, number), senders) == senders
                    count += 1
    shared = plan.schedule in {"interleaved", "zb-v"}  # ranks have several stages, and no mirror image
    assert (count > len(found)) == shared, "chunks share the numbers of their neighbours"


def test_stages_apart_send_one_message_ahead_and_one_back() -> None:
    """Every stage but the last sends activations, every stage but the first gradients; weight gradients stay."""
    cluster = Cluster("dgx-h100")
    job = make_job("gpt2", cluster, PLANS[1], Training(seq_len=256, global_batch=32))
    messages = lower_job(job, cluster).maker.messages
    last = messages.schedule.num_stages - 1
    for stage in range(last + 1):
        ahead, back = messages.sends("F", stage), messages.sends("B", stage)
        assert (len(ahead), len(back)) == (int(stage < last), int(stage > 0))
        assert messages.sends("W", stage) == ()
        assert all(node.collective is not None for node in (*ahead, *back))
    assert messages.sends("F", 0) is messages.sends("F", 1)
    assert messages.of("B", last) == ((), messages.sends("B", last))
