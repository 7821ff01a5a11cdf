"""Fit the kernel parameters of devices to measured GEMM and attention times.

Usage: python benchmarks/fit_kernels.py [kernels.csv] [--write]

One set of parameters a device, by least squares on the logarithm of time with a robust loss; deterministic, and
re-running changes nothing. With --write the parameters and their provenance go into the device profiles.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from simpar.cost.kernels import DEFAULTS, KernelModel
from simpar.hardware.device import Device, load_device
from simpar.units import US

PROFILES = Path(__file__).resolve().parent.parent / "hardware_profiles" / "devices"
DATA = Path(os.environ.get("SIMPAR_DATA", Path(__file__).resolve().parent.parent.parent / "shared" / "data"))

DEVICES = (
    (r"a100 pcie", "a100-pcie-80gb"), (r"a100 sxm", "a100-sxm-80gb"), (r"h100", "h100-sxm-80gb"), (r"h200", "h200-sxm"),
    (r"b200", "b200-sxm"),
)  # fmt: skip
GEMM = {
    "gemm_efficiency": (0.3, 1.0), "gemm_prologue_k": (0.0, 1500.0), "gemm_wave_overlap": (0.0, 1.0),
    "gemm_small_tile_loss": (0.0, 0.3), "kernel_latency_us": (1.0, 12.0),
}  # fmt: skip
CLOCKS = ("sustained_clock", "sustained_clock_fp8")  # whole runs tell
LAUNCH_BOUND_S = 150 * US  # timed calls of framework operators shorter than this show their host
THROTTLED_S = 0.03  # a kernel longer than this runs at the clock that power sustains, which whole runs tell
ATTENTION = {
    # no published kernel passes three quarters of the peak forward or two thirds backward, however long the sequence
    "attention_forward_efficiency": (0.1, 0.75), "attention_backward_efficiency": (0.1, 0.66),
    "attention_half_seq": (0.0, 3000.0),
}  # fmt: skip
FLASH2 = {"flash2_forward_efficiency": (0.1, 1.0), "flash2_backward_efficiency": (0.1, 1.0)}
SIBLINGS = {  # devices without measurements: same architecture, so the same shares of their own peaks
    "a100-sxm-40gb": "a100-sxm-80gb", "h100-sxm-96gb-500w": "h100-sxm-80gb", "h100-pcie": "h100-sxm-80gb",
    "gb200": "b200-sxm", "b300-sxm": "b200-sxm", "gb300": "b200-sxm", "h200-sxm": "h100-sxm-80gb",
}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """One measured kernel."""

    source: str
    op: str
    dtype: str
    time_s: float
    shape: tuple[float, ...]
    causal: bool = False


def device_of(text: str) -> str | None:
    """The profile of a device as a table names it."""
    return next((name for pattern, name in DEVICES if re.search(pattern, text.lower())), None)


def read(path: Path) -> dict[str, list[Kernel]]:
    """Kernels by device; rows without a shape, a time or a profile are left out and counted by the caller."""
    found: dict[str, list[Kernel]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            device = device_of(row["gpu_type"])
            kernel = _gemm(row) if row["op"] == "matmul" else _attention(row)
            if device and kernel:
                found[device].append(kernel)
    return found


def _time_s(row: Mapping[str, str], flop: float) -> float | None:
    if row["time_us"]:
        return float(row["time_us"]) * US
    return flop / (float(row["tflops"]) * 1e12) if row["tflops"] else None


def _gemm(row: Mapping[str, str]) -> Kernel | None:
    if not (row["m"] and row["n"] and row["k"]) or "best over" in row["statistic"]:
        return None
    m, n, k = (float(row[name]) for name in "mnk")
    batch = float(row["batch"] or 1)
    time = _time_s(row, 2 * batch * m * n * k)
    dtype = "fp8" if "fp8" in row["dtype"] else "bf16"
    accumulate = row["accumulate"] == "True"
    if time is None:
        return None
    return Kernel(row["source"], "wgrad" if accumulate else "gemm", dtype, time, (m, n, k, batch))


def _attention(row: Mapping[str, str]) -> Kernel | None:
    op = row["op"]
    if not op.startswith(("flash_attention", "cudnn_attention", "sdp_")) or not (
        row["seq_len"] and row["n_heads"] and row["head_dim"]
    ):
        return None
    batch = float(row["batch"] or max(1.0, 16384 / float(row["seq_len"])))
    shape = (batch, float(row["seq_len"]), float(row["n_heads"]), float(row["head_dim"]))
    # rates over the unmasked FLOP of a causal kernel
    whole = "full attention FLOP" in row["layout"] + row["causal"]
    causal = whole or row["causal"].lower() in ("true", "1")
    value_dim = re.search(r"v_head_dim=(\d+)", row["notes"])
    width = (shape[3] + float(value_dim.group(1))) / 2 if value_dim else shape[3]
    shape = (*shape[:3], width)
    flop = 4 * shape[0] * shape[1] ** 2 * shape[2] * width * (0.5 if causal and not whole else 1.0)
    direction = "both" if "fwd+bwd" in row["direction"] else ("bwd" if "bwd" in row["direction"] else "fwd")
    time = _time_s(row, flop * {"fwd": 1.0, "bwd": 2.5, "both": 3.5}[direction])
    if time is None or not LAUNCH_BOUND_S < time < THROTTLED_S:
        return None
    return Kernel(row["source"], f"{op}:{direction}", "bf16", time, shape, causal)


def predicted(device: Device, kernels: Sequence[Kernel]) -> NDArray[np.float64]:
    """Predicted seconds, float64[n]."""
    result = np.zeros(len(kernels))
    for dtype in {kernel.dtype for kernel in kernels}:
        for op in {kernel.op for kernel in kernels if kernel.dtype == dtype}:
            family = "flash2" if op.startswith("flash_attention_2") else "flash"
            model = KernelModel(device, dtype, family, sustained=False)
            index = [i for i, kernel in enumerate(kernels) if kernel.dtype == dtype and kernel.op == op]
            result[index] = _times(model, op, [kernels[i] for i in index])
    return result


def _times(model: KernelModel, op: str, kernels: Sequence[Kernel]) -> NDArray[np.float64]:
    columns = np.array([kernel.shape for kernel in kernels]).T
    if op in ("gemm", "wgrad"):
        m, n, k, batch = columns
        return np.asarray(model.gemm_time_s(m, n, k, batch=batch, accumulate=op == "wgrad"))
    total = np.zeros(len(kernels))
    for causal in (False, True):
        mask = np.array([kernel.causal == causal for kernel in kernels])
        b, s, a, d = columns[:, mask]
        for backward in {"fwd": (False,), "bwd": (True,), "both": (False, True)}[op.split(":")[1]]:
            total[mask] += model.attention_time_s(
                (b, s, a, d), context=s, seen=s / 2 if causal else s, backward=backward
            )
    return total


def fit(
    device: Device, kernels: Sequence[Kernel], bounds: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """Parameters that minimise the robust sum of squared log errors, every source counting as much."""
    count = Counter(kernel.source for kernel in kernels)
    weight = np.sqrt([len(kernels) / len(count) / count[kernel.source] for kernel in kernels])
    measured = np.log([kernel.time_s for kernel in kernels])
    names = list(bounds)
    low, high = np.array(list(bounds.values())).T

    def residuals(unit: NDArray[np.float64]) -> NDArray[np.float64]:
        values = dict(zip(names, low + unit * (high - low), strict=True))
        changed = device.model_copy(update={"kernels": {**device.kernels, **values}})
        return np.asarray(weight * (np.log(predicted(changed, kernels)) - measured))

    start = (np.array([DEFAULTS[name] for name in names]) - low) / (high - low)
    best = least_squares(
        residuals, np.clip(start, 0.02, 0.98), bounds=(0, 1), loss="soft_l1", f_scale=0.1, diff_step=1e-3
    )
    return {name: float(f"{v:.4g}") for name, v in zip(names, low + best.x * (high - low), strict=True)}


def fit_device(device: Device, kernels: Sequence[Kernel]) -> dict[str, float]:
    """GEMM parameters in bf16, then the fp8 efficiency, then attention, each on its own rows."""
    values = {name: device.kernels[name] for name in CLOCKS if name in device.kernels}
    rows = {
        "bf16": [k for k in kernels if k.op in ("gemm", "wgrad") and k.dtype == "bf16"],
        "fp8": [k for k in kernels if k.op in ("gemm", "wgrad") and k.dtype == "fp8"],
        "attention": [k for k in kernels if ":" in k.op and not second_best(device, k)],
        "flash2": [k for k in kernels if second_best(device, k)],
    }
    steps: tuple[tuple[str, Mapping[str, tuple[float, float]]], ...] = (
        ("bf16", GEMM), ("fp8", {"gemm_efficiency_fp8": (0.2, 0.85)}), ("attention", ATTENTION), ("flash2", FLASH2),
    )  # fmt: skip
    for name, bounds in steps:
        if len(rows[name]) > len(bounds):
            values |= fit(device.model_copy(update={"kernels": values}), rows[name], bounds)
    return values


def second_best(device: Device, kernel: Kernel) -> bool:
    """FlashAttention-2 is the fastest kernel before Hopper; on it FlashAttention-3 and cuDNN are."""
    return "h100" in device.name and kernel.op.startswith("flash_attention_2")


def possible(device: Device, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Without tables that exceed the device's peak in a dtype: they counted or measured something else."""

    def beyond(kernel: Kernel) -> bool:
        product = 2.0 * float(np.prod(kernel.shape)) if kernel.op in ("gemm", "wgrad") else 0.0
        return product > kernel.time_s * device.peak_flop_per_s[kernel.dtype]

    wrong = {(kernel.source, kernel.dtype) for kernel in kernels if beyond(kernel)}
    for source, dtype in sorted(wrong):
        print(f"{device.name}: {source} in {dtype} left out, with rates beyond the peak")
    return [kernel for kernel in kernels if (kernel.source, kernel.dtype) not in wrong]


def main() -> None:
    """Fit, print errors, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", default=DATA / "kernels.csv", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    table = read(arguments.table)
    # the one whole pass of FlashAttention-3 was measured on the sibling with the same compute
    table["h100-sxm-80gb"] += [k for k in table["h200-sxm"] if k.op == "flash_attention_3:both"]
    fitted: dict[str, dict[str, float]] = {}
    notes: dict[str, str] = {}
    for name, kernels in sorted(table.items()):
        device = load_device(name)
        kernels = possible(device, kernels)
        values = fit_device(device, kernels)
        changed = device.model_copy(update={"kernels": values})
        print(f"\n{name}: {values}")
        errors = np.abs(predicted(changed, kernels) / np.array([k.time_s for k in kernels]) - 1)
        groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for kernel, error in zip(kernels, errors, strict=True):
            groups[kernel.source, kernel.op, kernel.dtype].append(float(error))
        for key, values_of in sorted(groups.items()):
            print(
                f"  {' / '.join(key):70s} n {len(values_of):4d}  median {np.median(values_of):6.1%}  "
                f"p90 {np.percentile(values_of, 90):6.1%}"
            )
        fitted[name] = {k: v for k, v in values.items() if k not in CLOCKS}
        sources = sorted({kernel.source for kernel in kernels})
        notes[name] = (
            f"kernels fitted to {len(kernels)} measured GEMM and attention times ({'; '.join(sources)}); "
            f"median error {np.median(errors):.1%}"
        )
    if arguments.write:
        for name, values in fitted.items():
            write(name, values, notes[name])
        for name, sibling in SIBLINGS.items():
            write(
                name,
                fitted.get(sibling, {}),
                f"kernels derived from {sibling}: same architecture, same shares of peak",
            )


def write(name: str, values: Mapping[str, Any], note: str) -> None:
    """Put parameters and provenance into a profile, keeping everything else."""
    from ruamel.yaml import YAML

    parser = YAML()
    parser.width = 200
    path = PROFILES / f"{name}.yaml"
    document = parser.load(path.read_text())
    kept = dict(document.get("kernels") or {})
    document["kernels"] = {**values, **{k: v for k, v in kept.items() if k in CLOCKS}}
    document["provenance"] = note
    with path.open("w") as stream:
        parser.dump(document, stream)


if __name__ == "__main__":
    main()
