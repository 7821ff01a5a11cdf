"""More work is faster only where messages meet on a card."""

import numpy as np
import pytest

import simpar
from simpar.architectures.training import Training
from simpar.engine import choose_engine
from simpar.plan.plan import Plan
from simpar.simulation import lower_job, make_job

CLUSTER = simpar.Cluster("dgx-a100-40gb over 1x 10 Gb/s ethernet", nodes=4)


@pytest.fixture(scope="module")
def runs():
    """By recomputation, and by whether links are shared: the step in s, and the median message between nodes in s."""
    result = {}
    for recompute in ("none", "selective", "full"):
        plan = Plan(tp=2, pp=8, dp=2, micro_batch=1, recompute=recompute)
        job = make_job("llama-2-13b", CLUSTER, plan, Training(seq_len=4096, global_batch=96))
        for contention in (True, False):
            program = lower_job(job, CLUSTER, contention=contention).program
            timing = choose_engine("auto", program)(program)
            is_message = np.array([label.kind == "pp" for label in program.labels])[program.ops.label]
            took_s = (timing.finish_ns - timing.start_ns)[is_message] / 1e9
            result[recompute, contention] = timing.makespan_ns / 1e9, float(np.median(took_s[took_s > 1e-3]))
    return result


def test_recomputing_everything_is_faster_where_messages_share_a_card(runs):
    """Those that go forwards and backwards leave a node together in the shorter period, and apart in the longer."""
    steps_s, messages_s = ([runs[recompute, True][at] for recompute in ("none", "selective", "full")] for at in (0, 1))
    assert steps_s == sorted(steps_s, reverse=True)
    assert messages_s[0] > 1.4 * messages_s[2]


def test_with_links_of_their_own_more_work_takes_longer(runs):
    """And all messages take the same time."""
    steps_s, messages_s = ([runs[recompute, False][at] for recompute in ("none", "selective", "full")] for at in (0, 1))
    assert steps_s == sorted(steps_s)
    assert max(messages_s) == pytest.approx(min(messages_s))
    assert all(runs[recompute, False][0] < runs[recompute, True][0] for recompute in ("none", "selective", "full"))
