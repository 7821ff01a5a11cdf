"""The layouts behind the first are the next best, by brute force with the public simulate; or are said not to be."""

import pytest

import simpar
from simpar.planner import Constraints
from simpar.planner.answer import ranking
from simpar.planner.answer.ranking import VARIANT_TOLERANCE
from simpar.planner.answer.terminal import certificate
from simpar.planner.progress import SearchProgress
from simpar.planner.space.jobs import fill_dp
from simpar.planner.space.rows import enumerate_space
from tests.gate import some

MODEL, TRAINING = "gpt2", simpar.Training(seq_len=1024, global_batch=16)
FIXED = {
    "tp": (1, 2), "cp": 1, "pp": (1, 2, 4), "micro_batch": (1, 2), "schedule": ("1f1b", "interleaved"),
    "recompute": ("none", "full"), "zero": (0, 1), "hsdp": 1, "tp_overlap": False, "order": "tp-cp-dp-pp",
}  # fmt: skip
VARIED = ("vpp", "zero", "overlap_grad_reduce", "overlap_param_gather")
"""What plans of one layout may differ in here."""


def search(cluster, top=5, **fixed):
    """The answer of a small search for time."""
    asked = Constraints(fixed=FIXED | fixed, portable="any", fit_probability=0.5)
    return simpar.search(
        MODEL, cluster, TRAINING, constraints=asked, objective="time", progress=SearchProgress(top=top, brief=True)
    )


def layout_of(plan):
    """The values of a plan that tell its layout from others."""
    mesh = plan.mesh
    return (
        mesh.tp,
        mesh.pp,
        plan.micro_batch,
        plan.schedule,
        plan.memory.recompute,
        plan.tensor_parallel.sequence_parallel,
    )


def every_step_s(cluster, problem_of_space):
    """The shortest step of every layout of a space, simulated plan by plan."""
    rows, best = enumerate_space(problem_of_space), {}
    for row in range(rows.count):
        plan = fill_dp(rows, row)
        result = simpar.simulate(MODEL, cluster, plan, TRAINING, with_timeline=False)
        if result.fits:
            name = layout_of(plan)
            best[name] = min(best.get(name, float("inf")), result.step_time_s)
    return best


@pytest.mark.parametrize("hardware", some(["dgx-h100", "rtx-3090-8"], 1))
def test_the_next_best_are_those_of_brute_force(hardware):
    """Of all plans of a space: five layouts in their order, each within the tolerance of its best variant."""
    cluster = simpar.Cluster(hardware)
    fixed = {"pp": (1, 2), "recompute": "none", "vpp": (1, 2, 3)}
    found = search(cluster, **fixed)
    asked = Constraints(fixed=FIXED | fixed, portable="any", fit_probability=0.5)
    problem = simpar.planner.make_problem(MODEL, cluster, TRAINING, constraints=asked)
    best = every_step_s(cluster, problem)
    assert len(best) >= 8
    told = found.details["runners_up"]
    assert (told["found"], told["certified"]) == (4, 4)
    assert [layout_of(one.plan) for one in found.candidates] == sorted(best, key=best.__getitem__)[:5]
    for one in found.candidates:
        least_s = best[layout_of(one.plan)]
        assert least_s <= one.step_time_s <= least_s / (1 - VARIANT_TOLERANCE)
    assert told["certified_step_time_s"] == found.candidates[-1].step_time_s
    assert any("no layout beside the 5 compared takes less than" in line for line in certificate(found))


def test_variants_of_a_layout_are_one_row():
    """No two rows differ in virtual stages alone, nor in data parallelism alone."""
    found = search(simpar.Cluster("dgx-h100"), top=12)
    names = [layout_of(one.plan) for one in found.candidates]
    assert len(names) == 12
    assert len(set(names)) == len(names)


def test_what_is_not_certain_is_said(monkeypatch):
    """With no effort left, what the search has simulated is listed, and the answer does not call it the next best."""
    monkeypatch.setattr(ranking.Continuation, "of", lambda frontier, *_: ranking.Continuation(frontier, 0.05))
    found = search(simpar.Cluster("dgx-h100"))
    told = found.details["runners_up"]
    assert told["certified"] < 4
    assert told["at_least_s"] >= found.best.step_time_s
    said = "\n".join(certificate(found))
    assert "not certified that" in said or "no other layout that was simulated fits" in said


def test_a_single_plan_comes_with_a_word():
    """A space of one layout has no second one, and the answer says so."""
    found = search(simpar.Cluster("dgx-h100"), tp=1, pp=1, micro_batch=2, recompute="none", schedule="1f1b")
    assert len(found.candidates) == 1
    assert "no other layout: no other layout fits" in list(certificate(found))
