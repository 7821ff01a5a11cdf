"""Every device that ships states its sources and obeys the arithmetic of its chip."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from simpar.cost.kernels import KernelModel
from simpar.errors import UserError
from simpar.files import bundled, load, parse
from simpar.hardware.device import Device, load_device
from simpar.hardware.intervals import interval_of
from simpar.units import GB, GIB, TERA

DEVICES = tuple(bundled("devices"))
WIDTH = {"fp32": 4, "tf32": 2, "bf16": 1, "fp16": 1, "int8": 0.5, "fp8": 0.5, "fp4": 0.25}


@pytest.mark.parametrize("name", DEVICES)
def test_device_is_plausible(name: str) -> None:
    """Rates, memory, bandwidth and power are in the range of real devices, and sources are given."""
    device = load_device(name)
    assert device.name == name
    assert device.sources
    assert all(len(source) > 20 for source in device.sources)
    assert all(0.1 * TERA < rate <= 40_000 * TERA for rate in device.peak_flop_per_s.values())
    assert 8 * GIB < device.memory_bytes < 410 * GIB
    assert 20 * GB < device.memory_bandwidth <= 22_000 * GB
    assert device.power is not None
    assert 5 < device.power.idle < device.power.limit / 2


@pytest.mark.parametrize("name", DEVICES)
def test_fitted_parameters_say_where_they_come_from(name: str) -> None:
    """Kernel parameters are known to the kernel model; where none were measured the profile says so."""
    device = load_device(name)
    assert KernelModel(device).gemm_time_s(4096, 4096, 4096) > 0
    assert device.provenance
    assert device.kernels or "no measurements" in device.provenance


def test_peak_is_units_times_clock_times_a_power_of_two() -> None:
    """Half-precision peak = SMs (or matrix units) x clock x 2^k FLOP, within a rounded datasheet."""
    clocked = [device for name in DEVICES if (device := load_device(name)).power.boost_clock]
    assert len(clocked) > 40
    for device in clocked:
        peak = device.peak_flop_per_s.get("fp16", device.peak_flop_per_s.get("bf16"))
        per_clock = peak / device.num_sms / device.power.boost_clock
        nearest = min((2**k for k in range(8, 16)), key=lambda flop: abs(flop / per_clock - 1))
        assert per_clock == pytest.approx(nearest, rel=0.012), device.name


@pytest.mark.parametrize("name", ["t4", "gaudi-3", "ascend-910b", "ascend-910b3", "tpu-v7x", "vr200", "mi455x"])
def test_what_nobody_has_run_is_known_as_poorly_as_devices_differ(name: str) -> None:
    """The profile says that no run stands behind it, and its clock may be a fifth off: more than any fitted one."""
    ends, clock = interval_of("devices", name, "kernels.sustained_clock"), load_device(name).kernels["sustained_clock"]
    assert ends
    assert "no run stands behind it" in load_device(name).provenance
    assert ends[0] < clock / 1.3


@pytest.mark.parametrize("name", DEVICES)
def test_clocks_are_at_most_the_boost_clock(name: str) -> None:
    """Long steps in 16 bits run no faster than short benchmarks, whatever a few runs seem to say."""
    device = load_device(name)
    if device.kind == "gpu":
        assert device.kernels.get("sustained_clock", 1.0) <= 1.0


@pytest.mark.parametrize("name", DEVICES)
def test_narrower_types_are_no_slower(name: str) -> None:
    """fp8 is at least as fast as bf16, bf16 as tf32, tf32 as fp32."""
    rates = load_device(name).peak_flop_per_s
    by_width = sorted(rates, key=lambda dtype: -WIDTH[dtype])
    for wide, narrow in pairwise(by_width):
        if WIDTH[narrow] < WIDTH[wide]:
            assert rates[narrow] >= rates[wide]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("v100-sxm2-32gb", "a100-sxm-80gb"), ("a100-sxm-80gb", "h100-sxm-80gb"), ("h100-pcie", "h100-sxm-80gb"),
        ("h200-sxm", "b200-sxm"), ("b200-sxm", "gb200"), ("mi250x", "mi300x"), ("mi300x", "mi355x"),
        ("tpu-v5e", "tpu-v4"), ("tpu-v4", "tpu-v5p"), ("l4", "l40s"), ("rtx-3090", "rtx-4090"),
        ("h20-sxm", "h200-sxm"), ("t4", "a10"), ("rtx-4080", "rtx-5090"), ("a40", "rtx-6000-ada"), ("gb300", "vr200"),
        ("gaudi-2", "gaudi-3"), ("ascend-910b", "ascend-910c"), ("tpu-v6e", "tpu-v7x"), ("trainium2", "trainium3"),
        ("mi355x", "mi455x"),
    ],
)  # fmt: skip
def test_better_devices_are_better(older: str, newer: str) -> None:
    """A successor has more FLOP/s and more bandwidth than what it succeeds."""
    one, two = load_device(older), load_device(newer)
    half = [device.peak_flop_per_s.get("fp16", device.peak_flop_per_s["bf16"]) for device in (one, two)]
    assert half[0] < half[1]
    assert one.memory_bandwidth < two.memory_bandwidth


FACTS = """name: x
peak_flop_per_s: {bf16: 100 TFLOP/s}
memory_bytes: 80 GiB
memory_bandwidth: 2 TB/s
num_sms: 100
power: {limit: 400 W, idle: 50 W}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bf16: 100", "b16: 100", "unknown dtype 'b16'; did you mean 'bf16'"),
        ("{bf16: 100 TFLOP/s}", "{}", "needs at least one dtype"),
        ("idle: 50 W", "idle: 500 W", r"power: idle = 500 W: allowed: at most the limit, 400 W"),
        ("limit: 400 W", "limit: 0 W", "power.limit = '0 W'"),
        ("100 TFLOP/s", "100 GB/s", "peak_flop_per_s.bf16 = '100 GB/s': needs a number and a unit"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A device that cannot be is one clear line."""
    path = tmp_path / "x.yaml"
    path.write_text(FACTS.replace(old, new))
    with pytest.raises(UserError, match=message):
        parse(Device, load(path))


def test_own_files_are_read_again(tmp_path: Path) -> None:
    """A user's device file counts as it is now, not as it was at the first reading."""
    path = tmp_path / "x.yaml"
    path.write_text(FACTS)
    assert load_device(path).num_sms == 100
    path.write_text(FACTS.replace("num_sms: 100", "num_sms: 90"))
    assert load_device(str(path)).num_sms == 90
    assert load_device("l4") is load_device("l4")
