"""Watts of devices and nodes: closed forms, order, limits, measured nodes."""

import numpy as np
import pytest

from simpar.architectures.catalogue import load_model
from simpar.cost.power import (
    PROCESSORS,
    PRODUCTS,
    STREAMING,
    WAITING,
    device_w,
    dynamic_power_share,
    input_w,
    streaming_operators,
)
from simpar.errors import UserError
from simpar.hardware.device import Power, load_device
from simpar.hardware.profile import Host, NodePower
from simpar.validation.devices import load_named_profile
from simpar.validation.predict import result_of
from simpar.validation.rows import case

H100 = Power(limit=700.0, idle=70.0)
SHARES = [(p, s) for p in np.linspace(0, 1, 11) for s in np.linspace(0, 1, 11) if p + s <= 1 + 1e-9]
MEASURED = [
    ("dgx-h100", 6943, 0.779, 0.209), ("dgx-h100", 7266, 0.781, 0.065), ("dgx-h100", 7008, 0.849, 0.033),
    ("dgx-h100", 5996, 0.595, 0.052), ("dgx-h100", 6251, 0.623, 0.055), ("hgx-b200", 9964, 0.793, 0.192),
    ("hgx-b200", 9627, 0.910, 0.070),
]  # fmt: skip
"""Nodes cooled by liquid: profile, watts while training, shares of the step (benchmarks/fit_power.py prints them)."""


def host(power):
    """A host with such power."""
    return Host(memory_bytes=1.0, memory_bandwidth=1.0, pcie_bandwidth=1.0, power=power)


def without_fans(name):
    """The host of a shipped profile, cooled by liquid."""
    found = load_named_profile(name).host
    return found.model_copy(update={"power": found.power.model_copy(update={"fans": 0.0})})


def test_device_in_closed_form() -> None:
    """Idle, and shares of the rest; never above the limit, which holds for the mean of a step."""
    assert device_w(H100, 0.0, 0.0) == pytest.approx(70 + 630 * WAITING)
    assert device_w(H100, 0.0, 1.0) == pytest.approx(70 + 630 * STREAMING)
    mixed = PRODUCTS * 0.5 + STREAMING * 0.1 + WAITING * 0.4
    assert device_w(H100, 0.5, 0.1) == pytest.approx(70 + 630 * mixed)
    assert device_w(H100, 1.0, 0.0) == 700.0
    products, streaming = np.array(SHARES).T
    assert device_w(H100, products, streaming) == pytest.approx([device_w(H100, *each) for each in SHARES])


@pytest.mark.parametrize(("products", "streaming"), SHARES)
def test_device_within_its_limits_and_more_with_more_load(products: float, streaming: float) -> None:
    """Between idle and limit; more with more of any kernel, and with products in place of the others."""
    watts = device_w(H100, products, streaming)
    assert 70 <= watts <= 700
    if products + streaming <= 0.9:
        assert device_w(H100, products + 0.1, streaming) >= watts
        assert device_w(H100, products, streaming + 0.1) >= watts
    if streaming >= 0.1:
        assert device_w(H100, products + 0.1, streaming - 0.1) >= watts


@pytest.mark.parametrize(("products", "streaming"), SHARES)
def test_waiting_and_what_kernels_ask_for_beyond_it(products: float, streaming: float) -> None:
    """Searches bound energy by these, up to the limit."""
    beyond = dynamic_power_share(streaming=False) * products + dynamic_power_share(streaming=True) * streaming
    assert min(dynamic_power_share(streaming=each) for each in (True, False)) > 0
    assert device_w(H100, products, streaming) == pytest.approx(min(device_w(H100, 0, 0) + 630 * beyond, 700))


def test_node_in_closed_form() -> None:
    """Parts add up, fans are a share of all of them, supplies divide; of two nodes the hosts count twice."""
    parts = {"memory": 100.0, "switches": 50.0, "network": 30.0, "drives": 20.0, "other": 10.0}
    node = host({"processors": 700.0, "fans": 0.2, "supply_efficiency": 0.96} | parts)
    inside = 5000 + PROCESSORS * 700 + 210
    assert input_w(node, 5000) == pytest.approx(inside * 1.2 / 0.96)
    assert input_w(node, 10000, 2) == pytest.approx(2 * input_w(node, 5000))


def test_one_quantity_is_all_of_it() -> None:
    """A profile that says one number means what it draws besides devices, whatever the load."""
    assert NodePower.model_validate("2.2 kW").other == 2200.0
    assert input_w(host(power="2200 W"), 5000) == 7200.0
    with pytest.raises(UserError, match="supply_efficiency"):
        host({"supply_efficiency": 0.0})
    with pytest.raises(UserError, match="fans"):
        host({"fans": 1.5})


@pytest.mark.parametrize("name", ["dgx-h100", "hgx-b200"])
def test_node_never_above_the_sum_of_limits(name: str) -> None:
    """Whatever runs, a node draws less than all its parts at their limits, cooled, behind its supplies."""
    profile = load_named_profile(name)
    power, device = profile.host.power, load_device(profile.device).power
    parts = power.processors + power.memory + power.switches + power.network + power.drives + power.other
    most = (8 * device.limit + parts) * (1 + power.fans) / power.supply_efficiency
    assert max(input_w(profile.host, 8 * float(device_w(device, *each))) for each in SHARES) < most


def test_air_cooled_node_at_full_load() -> None:
    """8.4 kW is the most that was measured of a node of 8 H100 [arXiv 2412.08602], of 10.2 kW that are allowed."""
    assert input_w(load_named_profile("dgx-h100").host, 8 * 700.0) == pytest.approx(8400, rel=0.01)


@pytest.mark.parametrize(("name", "watts", "products", "streaming"), MEASURED)
def test_measured_nodes(name: str, watts: float, products: float, streaming: float) -> None:
    """Within 5 % of the watts of nodes in benchmark runs."""
    profile = load_named_profile(name)
    devices_w = 8 * float(device_w(load_device(profile.device).power, products, streaming))
    assert input_w(without_fans(name), devices_w) == pytest.approx(watts, rel=0.05)


def test_measured_node_simulated() -> None:
    """Llama 2 70B with adapters on 8 H100: the bill of the simulated step, without fans, as measured within 5 %."""
    row = {
        "source": "MLPerf", "model_name": "Llama-2-70B LoRA", "n_layers": "80", "hidden": "8192", "n_heads": "64",
        "n_kv_heads": "8", "ffn_hidden": "28672", "vocab": "32000", "seq_len": "8192", "tp": "4", "dp": "2",
        "global_batch_seqs": "8", "micro_batch": "1", "seq_parallel": "True", "n_gpus": "8", "gpus_per_node": "8",
        "gpu_type": "H100-SXM-80GB", "stack": "nemo", "precision": "fp8", "recompute": "none", "pp": "1", "cp": "1",
        "lora_rank": "16", "lora_targets": '["q_proj", "k_proj", "v_proj", "o_proj"]',
        "zero_stage_or_fsdp": "distributed optimizer", "attention_kernel": "flash", "tied_embeddings": "False",
    }  # fmt: skip
    result = result_of(case(row))
    fans = load_named_profile("dgx-h100").host.power.fans
    assert result.bill.energy_j_per_step / result.step_time_s / (1 + fans) == pytest.approx(7266, rel=0.05)


def test_products_are_told_from_the_rest() -> None:
    """Norms and activations stream through memory; products and attention do not."""
    found = streaming_operators(load_model("llama-3-8b"))
    assert {"attention_norm", "mlp_norm", "rope"} <= set(found)
    assert not {"qkv", "attention", "o_proj", "mlp_down"} & set(found)
