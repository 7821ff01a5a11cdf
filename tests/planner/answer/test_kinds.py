"""What kinds of layouts cost is what their best plans cost."""

import pytest

import simpar
from simpar.planner import Constraints
from tests.gate import some

FIXED = {
    "tp": (1, 2), "cp": 1, "pp": (1, 2, 4), "micro_batch": (1, 2), "schedule": ("1f1b", "interleaved"),
    "recompute": ("none", "full"), "zero": (0, 1), "hsdp": 1, "tp_overlap": False, "order": "tp-cp-dp-pp",
}  # fmt: skip


def search(**fixed):
    """The answer of a small search for time."""
    asked = Constraints(fixed=FIXED | fixed, portable="any", fit_probability=0.5)
    training = simpar.Training(seq_len=1024, global_batch=16)
    return simpar.search("gpt2", "dgx-h100", training, constraints=asked, objective="time")


KINDS = {
    "no tensor parallelism": {"tp": 1}, "tensor groups within a domain": {"tp": 2}, "no pipeline": {"pp": 1},
    "2 to 4 pipeline ranks": {"pp": (2, 4)}, "ZeRO-0": {"zero": 0}, "ZeRO-1": {"zero": 1},
    "recompute none": {"recompute": "none"}, "recompute full": {"recompute": "full"},
}  # fmt: skip


@pytest.mark.parametrize("axis", some(["tp", "pp", "zero", "recompute"], 1))
def test_kinds_cost_what_their_best_plans_cost(axis):
    """Each is the certified best of its own search, within the tolerance; or is bounded below it."""
    found = search()
    told = {one["kind"]: one for one in found.details["kinds"]}
    assert set(told) < set(KINDS)
    (name,) = (name for name, fixed in KINDS.items() if axis in fixed and name in told)  # the winner is of the other
    one, best_s = told[name], search(**KINDS[name]).best.step_time_s
    assert one["at_least_s"] <= best_s * (1 + 1e-9)
    assert best_s <= one["step_time_s"]
    assert one["loses_s"] == pytest.approx(one["step_time_s"] - found.best.step_time_s)


def test_kinds_that_do_not_fit_say_what_they_need():
    """No plan without tensor ranks fits in a device: its kind has no plan, but the bytes that it needs."""
    few = Constraints(fixed={"pp": 1, "cp": 1, "zero": 0, "micro_batch": 1, "recompute": "none"})
    training = simpar.Training(seq_len=2048, global_batch=8)
    found = simpar.search("llama-3-8b", "dgx-h100", training, constraints=few)
    (none,) = (one for one in found.details["kinds"] if one["kind"] == "no tensor parallelism")
    assert none["plan"] is None
    assert none["why"].startswith("does not fit: needs ")
