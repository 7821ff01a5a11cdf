"""What kinds of layouts cost is what their best plans cost."""

import pytest

import simpar
from simpar.planner import Constraints

FIXED = {
    "tp": (1, 2), "cp": 1, "pp": (1, 2, 4), "micro_batch": (1, 2), "schedule": ("1f1b", "interleaved"),
    "recompute": ("none", "full"), "zero": (0, 1), "hsdp": 1, "tp_overlap": False, "order": "tp-cp-dp-pp",
}  # fmt: skip


def search(**fixed):
    """The answer of a small search for time."""
    asked = Constraints(fixed=FIXED | fixed, portable="any", fit_probability=0.5)
    training = simpar.Training(seq_len=1024, global_batch=16)
    return simpar.search("gpt2", "dgx-h100", training, constraints=asked, objective="time")


def test_kinds_cost_what_their_best_plans_cost():
    """Each is the certified best of its own search, within the tolerance; or is bounded below it."""
    found = search()
    told = {one["kind"]: one for one in found.details["kinds"]}
    kinds = {
        "no tensor parallelism": {"tp": 1}, "tensor groups within a domain": {"tp": 2}, "no pipeline": {"pp": 1},
        "2 to 4 pipeline ranks": {"pp": (2, 4)}, "ZeRO-0": {"zero": 0}, "ZeRO-1": {"zero": 1},
        "recompute none": {"recompute": "none"}, "recompute full": {"recompute": "full"},
    }  # fmt: skip
    assert set(told) < set(kinds)
    for axes in ({"tp"}, {"pp"}, {"zero"}, {"recompute"}):  # the winner is of one kind of each
        assert sum(set(kind) == axes and name not in told for name, kind in kinds.items()) == 1
    for name, one in told.items():
        best_s = search(**kinds[name]).best.step_time_s
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
