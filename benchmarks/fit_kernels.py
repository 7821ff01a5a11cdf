"""Fit the kernel parameters of devices to measured GEMM and attention times.

Usage: python benchmarks/fit_kernels.py [kernels.csv] [--write]

One set of parameters a device, by least squares on the logarithm of time with a robust loss; deterministic, and
re-running changes nothing. With --write the parameters and their provenance go into the device profiles.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from simpar.cost.kernels import DEFAULTS
from simpar.hardware.device import Device, load_device
from simpar.units import MS
from simpar.validate.cells import Unmodelled
from simpar.validate.kernels import Kernel, beyond_peak, kernel, times_s

PROFILES = Path(__file__).resolve().parent.parent / "hardware_profiles" / "devices"
DATA = Path(os.environ.get("SIMPAR_DATA", Path(__file__).resolve().parent.parent.parent / "shared" / "data"))

DEVICES = ("a100-pcie-80gb", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm", "b200-sxm", "b200-sxm-throttled")
PRODUCTS_TABLE = "kernels_aic_gemm.csv.gz"
ALONE = {"NVIDIA L40S": "l40s"}
"""Devices of that database of products that no other table has, and their profiles."""
GEMM = {
    "gemm_efficiency": (0.3, 1.0), "gemm_prologue_k": (0.0, 1500.0), "gemm_wave_overlap": (0.0, 1.0),
    "gemm_small_tile_loss": (0.0, 0.3), "kernel_latency_us": (1.0, 12.0),
}  # fmt: skip
CLOCKS = ("sustained_clock", "sustained_clock_fp8")  # whole runs tell
ATTENTION = {
    # no published kernel passes three quarters of the peak forward or two thirds backward, however long the sequence
    "attention_forward_efficiency": (0.1, 0.75), "attention_backward_efficiency": (0.1, 0.66),
    "attention_half_seq": (0.0, 3000.0),
}  # fmt: skip
FLASH2 = {"flash2_forward_efficiency": (0.1, 1.0), "flash2_backward_efficiency": (0.1, 1.0)}
SIBLINGS = {  # devices without measurements: same architecture, so the same shares of their own peaks
    "a100-sxm-40gb": "a100-sxm-80gb", "h100-sxm-96gb-500w": "h100-sxm-80gb", "h100-pcie": "h100-sxm-80gb",
    "b200-sxm-limited": "b200-sxm", "gb200": "b200-sxm", "b300-sxm": "b200-sxm", "gb300": "b200-sxm",
    "h200-sxm": "h100-sxm-80gb", "h20-sxm": "h100-sxm-80gb",
}  # fmt: skip


def read(path: Path) -> dict[str, list[Kernel]]:
    """Kernels of the devices that are fitted; all else is left out."""
    found: dict[str, list[Kernel]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["op"] == "group_matmul":
                continue  # how evenly its experts were loaded is not said
            try:
                each = kernel(row)
            except Unmodelled:
                continue
            if each.device in DEVICES:
                found[each.device].append(each)
    return found


def read_products(path: Path) -> dict[str, list[Kernel]]:
    """Products of the devices that one large database alone has measured."""
    found: dict[str, list[Kernel]] = defaultdict(list)
    with gzip.open(path, "rt", newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["device"] in ALONE and row["gemm_dtype"] in ("bfloat16", "fp8"):
                shape = (*(float(row[name]) for name in "mnk"), 1.0)
                dtype, time_s = row["gemm_dtype"].replace("bfloat16", "bf16"), float(row["latency_ms"]) * MS
                device = ALONE[row["device"]]
                found[device].append(Kernel("NVIDIA AIConfigurator", device, "gemm", dtype, time_s, shape))
    return found


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
        return np.asarray(weight * (np.log(times_s(changed, kernels)) - measured))

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
    wrong = {(each.source, each.dtype) for each in kernels if beyond_peak(each, device)}
    for source, dtype in sorted(wrong):
        print(f"{device.name}: {source} in {dtype} left out, with rates beyond the peak")
    return [each for each in kernels if (each.source, each.dtype) not in wrong]


def main() -> None:
    """Fit, print errors, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", default=DATA / "kernels.csv", type=Path)
    parser.add_argument("--products", default=DATA / PRODUCTS_TABLE, type=Path)
    parser.add_argument("--only", help="one device")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    table = read(arguments.table)
    table |= read_products(arguments.products)
    # the one whole pass of FlashAttention-3 was measured on the sibling with the same compute
    table["h100-sxm-80gb"] += [k for k in table["h200-sxm"] if k.op == "flash_attention_3:both"]
    # attention by length was measured on the throttled one alone
    table["b200-sxm"] += [k for k in table["b200-sxm-throttled"] if ":" in k.op]
    fitted: dict[str, dict[str, float]] = {}
    notes: dict[str, str] = {}
    for name, kernels in sorted(table.items()):
        if arguments.only not in (None, name):
            continue
        device = load_device(name)
        kernels = possible(device, kernels)
        values = fit_device(device, kernels)
        changed = device.model_copy(update={"kernels": values})
        print(f"\n{name}: {values}")
        errors = np.abs(times_s(changed, kernels) / np.array([k.time_s for k in kernels]) - 1)
        groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for each, error in zip(kernels, errors, strict=True):
            groups[each.source, each.op, each.dtype].append(float(error))
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
            if sibling not in fitted:
                continue
            write(
                name,
                fitted[sibling],
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
    ours = {*GEMM, *ATTENTION, *FLASH2, "gemm_efficiency_fp8"}
    document["kernels"] = {**values, **{k: v for k, v in kept.items() if k not in ours}}
    document["provenance"] = note
    with path.open("w") as stream:
        parser.dump(document, stream)


if __name__ == "__main__":
    main()
