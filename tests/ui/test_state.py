"""What the page keeps of a scenario, and what it takes back."""

import pytest

from simpar.errors import UserError
from simpar.files import bundled
from simpar.scenario import load_scenario
from simpar.ui.state import Allowed, as_state, ask, read_state

OTHERS = ("deepseek-v3-2048-h800",)
"""One that takes long."""


@pytest.mark.parametrize("name", [name for name in bundled("scenarios") if name not in OTHERS])
def test_a_scenario_comes_back_as_it_was(name):
    """Model, cluster, training, plan and perturbation of every shipped scenario survive the page."""
    scenario = load_scenario(name)
    again = read_state(as_state(scenario), Allowed.by(scenario))
    for part in ("model", "training", "plan", "perturbation", "post_training"):
        assert getattr(again, part) == getattr(scenario, part)
    assert again.stack == (scenario.stack or scenario.plan.stack)
    before, after = scenario.build_cluster(), ask(again).cluster
    assert (after.world_size, after.devices) == (before.world_size, before.devices)


def test_a_price_and_tokens_survive(state):
    """With their units: a state is read as strictly as a file."""
    paid = {**state["cluster"], "price_per_device_hour": "2.5 USD/h"}
    told = {**state, "cluster": paid, "training": {**state["training"], "tokens": "15T"}}
    scenario = read_state(told, Allowed())
    assert read_state(as_state(scenario), Allowed()) == scenario
    assert ask(scenario).cluster.profile.price_per_device_hour == 2.5


def test_a_state_says_little(state):
    """A link holds what differs from a plan that says nothing, and chunks wherever a schedule is named."""
    scenario = read_state({**state, "plan": {"schedule": "interleaved", "vpp": 1, "pp": 2}}, Allowed())
    assert as_state(scenario)["plan"] == {"pp": 2, "schedule": "interleaved", "vpp": 1}
    assert read_state(as_state(scenario), Allowed()).plan == scenario.plan


def test_a_profile_that_is_written_out(state):
    """A cluster of one's own goes along in the link, with its units; what it may not do there is name files."""
    profile = {
        "name": "ours", "device": "h100-sxm-80gb", "devices_per_node": 8,
        "scale_up": {"kind": "nvswitch", "bandwidth": "450 GB/s", "latency": "2 us"},
        "host": {"memory_bytes": "2 TiB", "memory_bandwidth": "200 GB/s", "pcie_bandwidth": "50 GB/s"},
    }  # fmt: skip
    told = {**state, "cluster": {"hardware": profile, "nodes": 1}}
    scenario = read_state(told, Allowed())
    assert read_state(as_state(scenario), Allowed()) == scenario
    assert ask(scenario).cluster.profile.scale_up.bandwidth == 450e9
    for key in ("device", "reliability"):
        named = {**told, "cluster": {"hardware": {**profile, key: "/etc/passwd"}, "nodes": 1}}
        with pytest.raises(UserError, match=f"cluster.hardware.{key} = /etc/passwd: is not shipped"):
            read_state(named, Allowed())
