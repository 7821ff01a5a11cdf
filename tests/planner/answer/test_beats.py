"""Plans that gain over less recomputation only by how messages meet are told apart, and nothing is asked elsewhere."""

import pytest

import simpar
from simpar.planner import Constraints
from simpar.planner.answer.beats import is_beat
from simpar.planner.answer.terminal import ties
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.problem import make_problem
from simpar.planner.progress import SearchProgress

FIXED = {
    "tp": 2, "pp": 8, "cp": 1, "zero": 1, "micro_batch": (1, 2), "schedule": "1f1b", "tp_overlap": False,
    "sequence_parallel": True, "overlap_grad_reduce": True, "overlap_param_gather": True, "order": "tp-cp-dp-pp",
    "recompute": ("none", "full"),
}  # fmt: skip
TOLD = "gains only by how messages meet on shared links"


def searched(network, **fixed):
    """13B on four nodes over a network, with and without recomputation."""
    cluster = simpar.Cluster(f"dgx-a100-40gb over {network}", nodes=4)
    return simpar.search(
        "llama-2-13b",
        cluster,
        simpar.Training(seq_len=4096, global_batch=64),
        constraints=Constraints(fixed=FIXED | fixed),
        objective="time",
        progress=SearchProgress(brief=True),
    )


@pytest.mark.slow
def test_a_beat_that_is_ranked_first_is_said_to_be_one():
    """Recomputing everything is first, and gains over none of it (the second) by meetings; no other plan does."""
    found = searched("1x 10 Gb/s ethernet")
    first, second, *others = found.candidates
    assert (first.plan.memory.recompute, second.plan.memory.recompute) == ("full", "none")
    assert first.plan.micro_batch == second.plan.micro_batch
    assert first.figures["gains_by_meeting"] is True
    assert any(TOLD in line for line in first.why)
    assert [one for one in (second, *others) if "gains_by_meeting" in one.figures] == []
    assert any(f"1 {TOLD}" in line for line in ties(found))


@pytest.mark.slow
def test_a_plan_that_was_not_simulated_is_for_this():
    """Where only the recomputing plan was simulated, the one without is, and counts beside the best."""
    found = searched("1x 10 Gb/s ethernet", micro_batch=1)
    assert found.best.figures["gains_by_meeting"] is True
    assert found.counts.simulated + found.details["simulated_beside"] == 2


def test_nothing_is_simulated_where_messages_do_not_meet(monkeypatch):
    """A card for every device: no meetings, and no question."""
    problem = make_problem(
        "llama-2-13b",
        simpar.Cluster("dgx-a100-40gb", nodes=2),
        simpar.Training(seq_len=4096, global_batch=16),
        constraints=Constraints(fixed=FIXED | {"micro_batch": 1}),
    )
    search = BranchAndBound(fields_of(problem, [2]), SearchProgress())
    search.run()
    frontier = search.frontiers[0]
    monkeypatch.setattr("simpar.planner.answer.beats.gains_by_meeting", None)
    for row in list(frontier.simulated):
        assert not is_beat(frontier, row)
