"""More work is faster only where messages meet on a card, and nothing offers that as a gain."""

import numpy as np
import pytest

import simpar
from simpar.architectures.training import Training
from simpar.engine import choose_engine
from simpar.layout.moves import single_changes
from simpar.neighbours import BY_MEETING, advise, gains_by_meeting
from simpar.plan.plan import Plan
from simpar.planner import make_problem
from simpar.planner.nearby import Nearby
from simpar.preflight.meeting import without_beats
from simpar.simulation import lower_job, make_job, simulate

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


@pytest.fixture(scope="module")
def steps():
    """The arguments of simulate, and the result by recomputation."""
    inputs = {"model": "llama-2-13b", "cluster": CLUSTER, "training": Training(seq_len=4096, global_batch=64)}
    base = Plan(tp=2, pp=8, dp=2, zero=1, micro_batch=1)
    plans = {name: base.with_values(recompute=name) for name in ("none", "selective", "full")}
    return {**inputs, "plan": base}, {name: simulate(**inputs, plan=plan) for name, plan in plans.items()}


def test_what_meeting_gains_is_told_apart(steps):
    """More work that is faster with shared links and slower without; less work is never that, nor what is slower."""
    inputs, by_name = steps
    assert by_name["full"].step_time_s < 0.98 * by_name["none"].step_time_s
    assert gains_by_meeting(inputs, by_name["none"], by_name["full"])
    assert not gains_by_meeting(inputs, by_name["full"], by_name["none"])
    assert not gains_by_meeting(inputs, by_name["none"], by_name["none"])


def test_advice_says_that_such_a_gain_does_not_last(steps, monkeypatch):
    """It is named for what it is, and is no hint to type."""
    inputs, by_name = steps
    monkeypatch.setattr(
        "simpar.neighbours.single_changes", lambda *of: (one for one in single_changes(*of) if {*one} <= {"recompute"})
    )
    advised = advise(by_name["none"], inputs)
    assert min(advised.why.trials, key=lambda one: one.step_time_s or 99).change == "--recompute full"
    (hint,) = advised.why.hints
    assert hint.startswith("no gain to count on with --recompute full: it gains ")
    assert BY_MEETING.removeprefix("gains") in hint


def test_a_check_does_not_list_it(steps):
    """A note says so instead; other neighbours stay."""
    inputs, by_name = steps
    problem = make_problem(inputs["model"], inputs["cluster"], inputs["training"])
    near = Nearby(tuple((by_name[name].plan, by_name[name]) for name in ("full", "none")), 2, None)
    kept, told = without_beats(problem, by_name["none"], near)
    assert [plan.memory.recompute for plan, _ in kept.simulated] == ["none"]
    assert told == (f"with recompute full, a neighbour {BY_MEETING}: not listed",)
    assert without_beats(problem, by_name["full"], near) == (near, ())
