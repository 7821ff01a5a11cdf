"""``recompute: optimal`` in a simulated step: it fits, nothing tried is faster, and the plan says what it is."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.recompute import by_layer, count_modes, of_layer
from simpar.errors import Infeasible, UserError
from simpar.hardware.catalogue import load_cluster
from simpar.planner import Constraints
from simpar.report.result import Result
from tests.gate import some

PLANS = {
    "zero": {"dp": 8, "zero": 1, "micro_batch": 2},
    "1f1b": {"pp": 4, "dp": 2, "zero": 1, "micro_batch": 4},
    "interleaved": {"tp": 2, "pp": 2, "vpp": 2, "dp": 2, "zero": 1, "micro_batch": 8},
    "fsdp": {"dp": 8, "zero": 3, "micro_batch": 4},
}
TRAINING = simpar.Training(seq_len=8192, global_batch=32)


def step(recompute: str, name: str, training: simpar.Training = TRAINING) -> Result:
    """Llama 3 8B on a DGX H100."""
    plan = simpar.Plan(**PLANS[name], recompute=recompute)
    return simpar.simulate("llama-3-8b", load_cluster("dgx-h100", 1), plan, training, with_timeline=False)


def chosen(result: Result) -> str:
    """The policy that the plan came out with."""
    return str(result.setup.plan["memory"]["recompute"])


@pytest.mark.parametrize("name", some(PLANS, 1))
def test_it_fits_and_is_the_fastest_that_does(name: str) -> None:
    """What keeps everything does not fit; of all policies that fit none is faster; little memory is left."""
    best = step("optimal", name)
    assert best.fits
    assert not step("none", name).fits
    others = ["selective", "full", "every:2", "every:3", "modules:mlp", "modules:layernorm+mlp"]
    assert best.step_time_s <= min(each.step_time_s for each in (step(o, name) for o in others) if each.fits)
    assert best.memory.peak_reserved_bytes > 0.95 * best.memory.capacity_bytes
    assert step(chosen(best), name).step_time_s == best.step_time_s


def test_with_room_nothing_runs_again() -> None:
    """Short sequences fit as they are."""
    found = step("optimal", "1f1b", simpar.Training(seq_len=1024, global_batch=64))
    assert set(count_modes(chosen(found), 32)) == {"none"}


def test_what_cannot_fit_is_infeasible() -> None:
    """Even with everything recomputed."""
    with pytest.raises(Infeasible, match=r"plan.recompute = optimal: pipeline rank 0 has .* too little"):
        step("optimal", "zero", simpar.Training(seq_len=131072, global_batch=64))


def test_segments_keep_their_first_input_alone() -> None:
    """Segments of K keep one input in K, take the time of full, and hold K layers at once."""
    training = simpar.Training(seq_len=8192, global_batch=64)
    policies = ("full", "layers:full:4*32", "segments:8")
    full, fours, eights = (step(policy, "zero", training) for policy in policies)
    assert eights.step_time_s == fours.step_time_s == full.step_time_s
    assert fours.speed.hfu == pytest.approx(full.speed.hfu)
    boundary = 2 * 8192 * 4096 * 2.0
    held = [result.memory.stages[0] for result in (full, fours, eights)]
    kept = [stage.activations_bytes for stage in held]
    assert kept[0] - kept[1] == pytest.approx(24 * boundary)
    assert kept[1] - kept[2] == pytest.approx(4 * boundary)
    none = step("none", "zero", training).memory.stages[0].activations_bytes
    layer = (none - kept[0]) / 32 + boundary
    assert held[2].transient_bytes - held[1].transient_bytes == pytest.approx(4 * layer, rel=0.01)


@pytest.mark.slow
def test_least_memory_is_where_inputs_and_layers_balance() -> None:
    """N / C inputs of 64 MiB and C layers of about 1.2 GiB are held: least at C = sqrt(32 x 64 MiB / 1.2 GiB) = 1.3."""
    training = simpar.Training(seq_len=8192, global_batch=64)
    peaks = {c: step(f"segments:{c}", "zero", training).memory.stages[0].peak_bytes for c in (1, 2, 4, 8, 16, 32)}
    assert min(peaks, key=lambda c: peaks[c]) in (1, 2)
    assert peaks[4] < peaks[8] < peaks[16] < peaks[32]
    same = step("layers:full:4*32", "zero", training)
    assert same.memory.stages[0].peak_bytes == peaks[4]


def test_choices_are_spelled_in_runs() -> None:
    """Equal neighbours join; a segment tells its layers apart by position."""
    policy = by_layer([("none", 2), ("none", 1), ("full:2", 4), ("modules:mlp", 1)])
    assert policy == "layers:none*3,full:2*4,modules:mlp*1"
    assert [of_layer(policy, at) for at in (0, 3, 4, 5, 7)] == [
        "none",
        "full:0/2",
        "full:1/2",
        "full:0/2",
        "modules:mlp",
    ]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("layers:none*31", r"chooses for 31 layers: allowed: 32"),
        ("segments:16", r"layer 7 reaches beyond its stage of 8 layers; allowed: segments of 1, 2, 4, 8 layers"),
    ],
)
def test_choices_must_match_the_model(policy: str, said: str) -> None:
    """One for every layer, and segments within a stage."""
    with pytest.raises(UserError, match=said):
        step(policy, "1f1b")


def test_unknown_choices_name_what_is_allowed() -> None:
    """One line."""
    with pytest.raises(ValueError, match="layers: and any of those"):
        simpar.Plan(recompute="layers:some*3")


@pytest.mark.parametrize("policy", ["layers:none*32", ["none", "layers:full*32"]])
def test_search_takes_no_choice_by_layer_for_all_layouts(policy: str | list[str]) -> None:
    """One line, with what makes that choice for every layout."""
    with pytest.raises(UserError, match=r"is a choice for one layout, not searched; allowed: none, .*optimal"):
        Constraints(fixed={"recompute": policy})
