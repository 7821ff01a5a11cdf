"""Memory of a device of each side over time."""

import pytest

import simpar
from simpar.posttraining.memory import RESERVED, sides
from simpar.posttraining.simulate import make_setting, simulate_setting

PLAN, TRAINING = {"zero": 3, "micro_batch": 1}, {"seq_len": 2048, "global_batch": 16}
LENGTHS = {"prompt": {"fixed": 128}, "response": {"mean": 200, "p99": 800}}


def setting_of(**values):
    """A small step."""
    section = {"prompts": 8, "samples": 4, "lengths": LENGTHS, "steps": 2, **values}
    return make_setting("qwen2.5-0.5b", simpar.Cluster("dgx-h100"), PLAN, TRAINING, section)


@pytest.mark.parametrize("offload", [True, False])
def test_what_takes_turns_frees_the_device_for_the_other(offload):
    """Training is at its peak while the engine sleeps, and between updates its states are where they should be."""
    setting = setting_of(weights={"offload": offload})
    memory = simulate_setting(setting).memory
    side = setting.trained
    assert {size for _, size in memory["training"]} <= {0.0, side.states_bytes, side.peak_bytes}
    assert memory["training"][-1][1] == (0.0 if offload else side.states_bytes)
    served = [size for _, size in memory["generation"]]
    least = setting.served.weights_bytes + setting.served.workspace_bytes
    assert min(size for size in served if size) == least < max(served) <= setting.served.room_bytes
    reserved = sorted({size for _, size in memory[RESERVED]})
    assert reserved == [0.0, pytest.approx(sides(setting)["generation"].total_bytes - setting.kept_bytes)]
    # two steps, each with the states' way out, passes, the update, and the way back
    assert served.count(0.0) == 2 * 2 * 4


def test_pools_apart_keep_what_they_have():
    """States of training stay, and the engine never sleeps."""
    setting = setting_of(placement="split", rollout={"nodes": 1})
    memory = simulate_setting(setting).memory
    assert {size for _, size in memory["training"]} == {setting.trained.states_bytes, setting.trained.peak_bytes}
    assert (
        min(size for _, size in memory["generation"]) == setting.served.weights_bytes + setting.served.workspace_bytes
    )
    whole = sides(setting)["generation"].total_bytes
    assert {size for _, size in memory[RESERVED]} == {whole}
    for curve in memory.values():
        assert [at for at, _ in curve] == sorted(at for at, _ in curve)


@pytest.mark.parametrize("placement", ["colocated", "split", "hybrid"])
def test_curves_last_as_long_as_the_steps(placement):
    """From the beginning to the arrival of the last weights, also of what never changes."""
    rollout = {} if placement == "colocated" else {"nodes": 1}
    result = simulate_setting(setting_of(placement=placement, rollout=rollout))
    end_s = sum(result.figures.speed.steps_s)
    for curve in result.memory.values():
        assert len(curve) > 1
        assert curve[0][0] == 0.0
        assert curve[-1][0] == pytest.approx(end_s, rel=1e-9)
