"""Fit the kernel parameters of devices to measured GEMM and attention times.

Usage: python benchmarks/fit_kernels.py [kernels.csv] [--only DEVICE] [--write]

Beside that table the charts of published_attention.csv are read, and a large database of short, unthrottled inference
kernels, thinned evenly: its 16-bit products and forward attention. One set of parameters a device, by least squares on
the logarithm of time with a robust loss; what was timed inside training steps is predicted at their clock, as the
profile has it. Deterministic, and re-running changes nothing. With --write the parameters and their provenance go into
the device profiles.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from intervals import NINE_IN_TEN, deviations, write_intervals
from normalise.operations import normalised_kernel
from numpy.typing import NDArray
from scipy.optimize import least_squares
from slower_units import BACKWARD_OF_FORWARD, HALF, SLOWER_UNITS, with_half_rate, with_slower_units
from tables import DATA

from simpar.cost.kernels import DEFAULTS, QUERY_ROWS
from simpar.hardware.device import Device, load_device
from simpar.profiles import load_profile
from simpar.units import MS
from simpar.validation.cells import Unmodelled
from simpar.validation.kernels import LAUNCH_BOUND_S, Kernel, exceeds_peak, kernel, times_s

Intervals = dict[str, tuple[float, float]]
CHARTS = Path(__file__).resolve().parent / "published_attention.csv"
PROFILES = Path(__file__).resolve().parent.parent / "hardware_profiles" / "devices"

DEVICES = ("a100-pcie-80gb", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm", "b200-sxm", "b200-sxm-throttled")
DATABASE = "NVIDIA AIConfigurator"
PRODUCTS_TABLE, ATTENTION_TABLE = "kernels_aic_gemm.csv.gz", "kernels_aic_attention_fwd.csv.gz"
SYSTEMS = {
    "a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm",
    "gb200": "gb200", "b300_sxm": "b300-sxm", "gb300": "gb300", "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}  # fmt: skip
"""Devices of that database by its own names."""
NARROW_TOO = ("l40s", "rtx-pro-6000")  # elsewhere tables without casts in front of the product tell 8-bit products
LEAST = 1e-6  # what is below is nothing
FAR = 0.1  # errors beyond this count by their size, not its square
MOST = 800  # rows of a device and kind of kernel
LONGEST_S = 10 * MS  # what is repeated for longer runs at a throttled clock in that database
LEAST_SEQ = 4096
SHARED_HEADS = 8  # queries a key: with fewer, writing keys and values to an inference cache shows
GEMM = {
    "gemm_efficiency": (0.3, 1.0), "gemm_prologue_k": (0.0, 1500.0), "gemm_wave_overlap": (0.0, 1.0),
    "gemm_small_tile_loss": (0.0, 0.3), "kernel_latency_us": (1.0, 12.0),
}  # fmt: skip
CLOCKS = ("sustained_clock", "sustained_clock_fp8", "sustained_clock_fp4")  # whole runs tell
ATTENTION = {
    # no published kernel passes four fifths of the peak forward or two thirds backward, however long the sequence
    "attention_forward_efficiency": (0.1, 0.8), "attention_backward_efficiency": (0.1, 0.66),
    "attention_half_seq": (0.0, 3000.0),
}  # fmt: skip
DIMS = {"attention_score_dim": (0.0, 128.0), "attention_least_dim": (0.0, 256.0)}
STARTS = {"attention_least_dim": 160.0, "attention_backward_tail": 0.0}
"""Where fits start if not at the default: 0 does not tell the first to move; the second has no number by default."""
TAIL, BACKWARD_TAIL = "attention_tail", "attention_backward_tail"
NEWEST = "flash_attention_4"  # no stack of the tables calls it yet
MANY_BLOCKS = 8  # a multiprocessor, from where on their tail, which the dim of a head changes, hardly counts
USUAL_DIM = 128  # of a head
VARIED = 8  # times as many blocks of queries in one kernel as in another tell how the last ones end
TAILS = {TAIL: (0.0, 3.0), BACKWARD_TAIL: (0.0, 3.0)}
FLASH2 = {"flash2_forward_efficiency": (0.1, 1.0), "flash2_backward_efficiency": (0.1, 1.0)}
FORWARD, BACKWARD, LENGTH = "attention_forward_efficiency", "attention_backward_efficiency", "attention_half_seq"
BY_LENGTH = ("l40s", "rtx-pro-6000")
"""Devices of which no other table has attention: the database tells how it depends on the sequence, too."""
SIBLINGS = {  # devices without measurements: same architecture, so the same shares of their own peaks
    "a100-sxm-40gb": "a100-sxm-80gb", "h100-sxm-96gb-500w": "h100-sxm-80gb", "h100-pcie": "h100-sxm-80gb",
    "b200-sxm-limited": "b200-sxm", "gb200": "b200-sxm", "b300-sxm": "b200-sxm", "gb300": "b200-sxm",
    "h200-sxm": "h100-sxm-80gb", "h100-nvl-94gb": "h100-sxm-80gb", "l4": "l40s", "rtx-6000-ada": "l40s",
    "a40": "l40s", "a10": "l40s", "rtx-a6000": "l40s", "gb10": "rtx-pro-6000",
}  # fmt: skip


def read(path: Path) -> dict[str, list[Kernel]]:
    """Kernels of the devices that are fitted; all else is left out."""
    found: dict[str, list[Kernel]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["op"] == "group_matmul":
                continue  # how evenly its experts were loaded is not said
            try:
                each = kernel(normalised_kernel(row))
            except Unmodelled:
                continue
            if each.device in DEVICES:
                found[each.device].append(each)
    return found


def read_database(folder: Path) -> dict[str, list[Kernel]]:
    """Kernels of the large database by device: 16-bit products, and causal forward attention in 16 bits."""
    found: dict[str, list[Kernel]] = defaultdict(list)
    for name, each in ((PRODUCTS_TABLE, _database_product), (ATTENTION_TABLE, _database_attention)):
        kinds: dict[str, list[Kernel]] = defaultdict(list)
        with gzip.open(folder / name, "rt", newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                if row["system"] in SYSTEMS and (entry := each(row)):
                    kinds[entry.device].append(entry)
        for device, kernels in kinds.items():
            step = max(1.0, len(kernels) / MOST)
            found[device] += [kernels[int(i * step)] for i in range(int(len(kernels) / step))]
    return found


def _database_product(row: Mapping[str, str]) -> Kernel | None:
    device, dtype = SYSTEMS[row["system"]], row["gemm_dtype"].replace("bfloat16", "bf16")
    time_s = float(row["latency_ms"]) * MS
    if not (dtype == "bf16" or (dtype == "fp8" and device in NARROW_TOO)) or time_s > LONGEST_S:
        return None
    return Kernel(DATABASE, device, "gemm", dtype, time_s, (*(float(row[name]) for name in "mnk"), 1.0))


def _database_attention(row: Mapping[str, str]) -> Kernel | None:
    shared = int(row["num_heads"]) / int(row["num_key_value_heads"])
    own = not row["kernel_source"].endswith(("triton_attn", "fa4"))  # what these devices run for other dtypes or dims
    time_s = float(row["latency"]) * MS
    if row["kv_cache_dtype"] != "bfloat16" or not own or shared < SHARED_HEADS:
        return None
    if not LAUNCH_BOUND_S < time_s < LONGEST_S or int(row["head_dim"]) > 256:
        return None
    shape = tuple(float(row[name]) for name in ("batch_size", "isl", "num_heads", "head_dim"))
    op = "flash_attention_3:fwd" if row["kernel_source"].endswith("fa3") else "attention:fwd"
    return Kernel(DATABASE, SYSTEMS[row["system"]], op, "bf16", time_s, shape, True, (shape[3], shape[3]))


def fit(
    device: Device, kernels: Sequence[Kernel], bounds: Mapping[str, tuple[float, float]]
) -> tuple[dict[str, float], Intervals]:
    """Parameters that minimise the robust sum of squared log errors, every source counting as much; intervals."""
    count = Counter(kernel.source for kernel in kernels)
    weight = np.sqrt([len(kernels) / len(count) / count[kernel.source] for kernel in kernels])
    measured = np.log([kernel.time_s for kernel in kernels])
    names = list(bounds)
    low, high = np.array(list(bounds.values())).T

    def residuals(unit: NDArray[np.float64]) -> NDArray[np.float64]:
        values = dict(zip(names, low + unit * (high - low), strict=True))
        changed = device.model_copy(update={"kernels": {**device.kernels, **values}})
        return np.asarray(weight * (np.log(times_s(changed, kernels)) - measured))

    start = (np.array([STARTS.get(name, DEFAULTS[name]) for name in names]) - low) / (high - low)
    best = least_squares(
        residuals, np.clip(start, 0.02, 0.98), bounds=(0, 1), loss="soft_l1", f_scale=FAR, diff_step=1e-3
    )
    spread = NINE_IN_TEN * deviations(residuals, best.x, [kernel.source for kernel in kernels], FAR)
    ends = low[:, None] + np.clip([best.x - spread, best.x + spread], 0, 1).T * (high - low)[:, None]
    values = {
        name: float(f"{v:.4g}") if v > LEAST else 0.0
        for name, v in zip(names, low + best.x * (high - low), strict=True)
    }
    return values, {name: (float(a), float(b)) for name, (a, b) in zip(names, ends, strict=True)}


def fit_device(device: Device, kernels: Sequence[Kernel]) -> tuple[dict[str, float], Intervals]:
    """Values and intervals: GEMM parameters in bf16, then the fp8 efficiency, then attention, each on its own rows.

    The database tells how attention depends on the dim of a head, and all that no other table measured.
    """
    clocks = {name: device.kernels[name] for name in CLOCKS if name in device.kernels}
    values, intervals = dict(clocks), dict[str, tuple[float, float]]()
    flash = [k for k in kernels if ":" in k.op and not second_best(device, k) and not k.op.startswith(NEWEST)]
    by_dim = [k for k in flash if k.source == DATABASE]
    many = [k for k in by_dim if np.prod(k.shape[:3]) >= MANY_BLOCKS * QUERY_ROWS * device.num_sms]
    own = others(flash)
    if own != by_dim:  # its FlashAttention-3 is what training runs; short sequences show its inference library
        own += [k for k in by_dim if k.op.startswith("flash_attention_3") and k.shape[1] >= LEAST_SEQ]
    rows = {
        "bf16": others([k for k in kernels if k.op in ("gemm", "wgrad") and k.dtype == "bf16"]),
        "fp8": [k for k in kernels if k.op in ("gemm", "wgrad") and k.dtype == "fp8"],
        "tail": [k for k in by_dim if k.shape[3] == USUAL_DIM],
        "dims": many if len({k.shape[3] for k in many}) > 1 else [],
        "attention": own,
        "flash2": [k for k in kernels if second_best(device, k)],
    }
    dims = {**DIMS, **({LENGTH: ATTENTION[LENGTH]} if device.name in BY_LENGTH else {})}
    told = {**({TAIL: TAILS[TAIL]} if rows["tail"] else {}), **(dims if rows["dims"] else {})}
    passes = {k.op.split(":")[1] for k in own}
    forward = {name: bounds for name, bounds in ATTENTION.items() if name != BACKWARD}
    rates = {**ATTENTION, **(TAILS if varies_blocks(own) else {})}
    rates = {name: bounds for name, bounds in rates.items() if name not in told}
    if passes == {"fwd"}:
        rates = {name: bounds for name, bounds in rates.items() if name not in (BACKWARD, BACKWARD_TAIL)}
    steps: tuple[tuple[str, Mapping[str, tuple[float, float]]], ...] = (
        ("bf16", GEMM), ("fp8", {"gemm_efficiency_fp8": (0.2, 0.85)}),
        ("tail", {**forward, TAIL: TAILS[TAIL]}), ("dims", {**forward, **dims}),
        ("attention", rates), ("flash2", FLASH2),
    )  # fmt: skip
    for name, bounds in steps:
        if len(rows[name]) > len(bounds):
            found, ends = fit(device.model_copy(update={"kernels": values}), rows[name], bounds)
            kept = {"tail": (TAIL,), "dims": tuple(dims)}.get(name, tuple(bounds))
            values |= {key: found[key] for key in kept}
            intervals |= {key: ends[key] for key in kept}
    if passes == {"fwd"}:
        values[BACKWARD] = float(f"{values[FORWARD] * BACKWARD_OF_FORWARD:.4g}")
    return values, intervals


def varies_blocks(kernels: Sequence[Kernel]) -> bool:
    """Whether a table has backward kernels of few and of many queries times heads, which tell their tail."""
    found: dict[str, list[float]] = defaultdict(list)
    for each in kernels:
        if each.op.endswith(":bwd"):
            found[each.source].append(float(np.prod(each.shape[:3])))
    return any(max(sizes) >= VARIED * min(sizes) for sizes in found.values())


def others(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels of other tables than the database, where there are any."""
    return [each for each in kernels if each.source != DATABASE] or list(kernels)


def second_best(device: Device, kernel: Kernel) -> bool:
    """FlashAttention-2 is the fastest kernel before Hopper; on it FlashAttention-3 and cuDNN are."""
    return "h100" in device.name and kernel.op.startswith("flash_attention_2")


def possible(device: Device, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Without tables that exceed the device's peak in a dtype: they counted or measured something else."""
    wrong = {(each.source, each.dtype) for each in kernels if exceeds_peak(each, device)}
    for source, dtype in sorted(wrong):
        print(f"{device.name}: {source} in {dtype} left out, with rates beyond the peak")
    return [each for each in kernels if (each.source, each.dtype) not in wrong]


def main() -> None:
    """Fit, print errors, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", default=DATA / "kernels.csv", type=Path)
    parser.add_argument("--only", help="one device")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    table = read(arguments.table)
    for name, kernels in read(CHARTS).items():
        table[name] += kernels
    for name, kernels in read_database(arguments.table.parent).items():
        table.setdefault(name, []).extend(kernels)
    # cuDNN's, which training stacks call, were timed on the throttled one alone, which products throttle: attention is
    # as fast as in the database of the other one. FlashAttention-4 is faster, and only checked
    table["b200-sxm"] += [k for k in table["b200-sxm-throttled"] if ":" in k.op]
    # what was timed in steps of the sibling with the same compute, at that one's clock
    clock = load_device("h200-sxm").kernels["sustained_clock"]
    table["h100-sxm-80gb"] += [
        replace(k, time_s=k.time_s * clock, in_step=False) for k in table["h200-sxm"] if k.in_step
    ]
    fitted: dict[str, dict[str, float]] = {}
    intervals: dict[str, Intervals] = {}
    notes: dict[str, str] = {}
    for name, kernels in sorted(table.items()):
        if arguments.only not in (None, name):
            continue
        device = load_device(name)
        kernels = possible(device, kernels)
        values, intervals[name] = fit_device(device, kernels)
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
        # siblings have the other's: their own in the database are other libraries', and no backward; what others
        # are like is written before them
        for name in sorted(fitted.keys() - SIBLINGS.keys(), key=lambda name: name not in SIBLINGS.values()):
            write(name, fitted[name], notes[name])
        for name, sibling in SIBLINGS.items():
            if sibling not in fitted:
                continue
            write(name, fitted[sibling], f"kernels derived from {sibling}: same architecture, same shares of peak")
        for name, (sibling, slower) in SLOWER_UNITS.items():
            if sibling in fitted:
                derive = with_half_rate if slower == HALF else with_slower_units
                note = f"kernels derived from {sibling}: same multiprocessors, matrix units {slower:g} times slower"
                write(name, derive(fitted[sibling], slower), note)
        named = {
            name: {f"kernels.{key}": ends for key, ends in values.items()}
            for name, values in intervals.items()
            if name not in SIBLINGS  # theirs stand with the device that they are like
        }
        write_intervals("devices", named)


def write(name: str, values: Mapping[str, Any], note: str) -> None:
    """Put parameters and provenance into a profile, keeping everything else."""
    from ruamel.yaml import YAML

    parser = YAML()
    parser.width = 10_000
    path = PROFILES / f"{name}.yaml"
    document = parser.load(path.read_text())
    kept = dict(document.get("kernels") or {})
    ours = {*GEMM, *ATTENTION, *DIMS, *TAILS, *FLASH2, "gemm_efficiency_fp8"}
    base = load_profile(document["like"], "devices", "device")[0].data["kernels"] if "like" in document else {}
    own = {key: value for key, value in values.items() if value != base.get(key)}
    document["kernels"] = {**own, **{k: v for k, v in kept.items() if k not in ours}}
    told = str(document.get("provenance", "")).partition("; sustained clock")
    document["provenance"] = note + told[1] + told[2]
    with path.open("w") as stream:
        parser.dump(document, stream)


if __name__ == "__main__":
    main()
