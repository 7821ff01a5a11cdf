"""Fit what devices draw by kind of kernel, and processors of hosts, to measured watts of whole nodes.

Usage: python benchmarks/fit_power.py [POWER.csv [RUNS.csv]] [--write]

POWER.csv has the medians of nodes while they train (node_busy_median_w), RUNS.csv step times of the same benchmark in
the same round on the same device. Four numbers, pooled over devices, by scipy's least squares on log errors of 3 %,
each drawn to what is plausible; everything else is in the profiles. Errors are printed fitted, with each system left
out, and with each run. --write puts the numbers into simpar/cost/power.py. What is assumed of a run stands in RUNS.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from normalise.rows import normalised
from scipy.optimize import least_squares
from tables import DATA

import simpar.cost.power as model
from simpar.hardware.device import Power
from simpar.hardware.profile import Host
from simpar.report.accounting import account
from simpar.units import NS_PER_S
from simpar.validation.cells import Row
from simpar.validation.devices import load_named_profile
from simpar.validation.predict import cluster_of, time_ops
from simpar.validation.rows import case

ERROR = 0.03  # of a measured node
PRIORS = {  # value and spread
    "PRODUCTS": (1.1, 0.15),  # throttled devices ask for more than their limit
    "STREAMING": (0.6, 0.15),  # rows hardly tell it: at most a fifth of a step
    "WAITING": (0.25, 0.15),
    "PROCESSORS": (0.5, 0.15),
}
FANS = {"smc": 0.0, "Dell": 0.18, "Lenovo": 0.0}
"""Share that fans add. smc and Lenovo (a water-cooled chassis) are taken as cooled by liquid, without fans. 0.18 is
what the most that was measured of an air-cooled node of 8 H100 implies, 8.4 kW [Latif et al. 2024, arXiv 2412.08602];
these rows do not enter it."""
LORA = {
    "source": "NeMo", "model_name": "Llama-2-70B LoRA", "n_layers": "80", "hidden": "8192", "n_heads": "64",
    "n_kv_heads": "8", "ffn_hidden": "28672", "vocab": "32000", "seq_len": "8192", "tp": "4", "cp": "1",
    "global_batch_seqs": "8", "micro_batch": "1", "seq_parallel": "True",
    "notes": "LoRA rank 16, attention projections", "overlap_notes": "TP communication overlap",
    "tied_embeddings": "False",
}  # fmt: skip
GPT3 = {
    "source": "NeMo", "model_name": "GPT-3 175B", "n_layers": "96", "hidden": "12288", "n_heads": "96",
    "n_kv_heads": "96", "ffn_hidden": "49152", "vocab": "51200", "seq_len": "2048", "tp": "4", "cp": "1", "pp": "8",
    "vpp": "6", "global_batch_seqs": "2048", "micro_batch": "2", "seq_parallel": "True",
    "overlap_notes": "TP communication overlap", "tied_embeddings": "True",
}  # fmt: skip
BERT = {
    "source": "", "model_name": "BERT-large", "n_layers": "24", "hidden": "1024", "n_heads": "16", "n_kv_heads": "16",
    "ffn_hidden": "4096", "vocab": "30522", "seq_len": "512", "tp": "1", "cp": "1", "global_batch_seqs": "384",
    "micro_batch": "48", "seq_parallel": "", "overlap_notes": "cuda graph full", "tied_embeddings": "True",
    "stack": "megatron",
}  # fmt: skip
COMMON = {
    "citation": "", "gpus_per_node": "8", "interconnect": "NVLink + InfiniBand", "pp": "1", "ep": "1",
    "zero_stage_or_fsdp": "distributed optimizer", "recompute": "none", "attention_kernel": "flash", "stack": "nemo",
    "status": "ok", "precision": "fp8", "notes": "",
}  # fmt: skip
RUNS: dict[tuple[str, int, str], tuple[Row, float | None]] = {
    # The layouts of LoRA are those of the table of runs, whose step times count. 64 nodes: 8 nodes eightfold, their
    # step between those of 8 and 128 nodes of the round.
    ("H100", 1, "llama2_70b_lora"): (LORA | {"dp": "2"}, None),
    ("H100", 8, "llama2_70b_lora"): (LORA | {"cp": "2", "dp": "8"}, None),
    ("H100", 64, "llama2_70b_lora"): (LORA | {"cp": "2", "dp": "64", "global_batch_seqs": "64"}, None),
    ("B200", 1, "llama2_70b_lora"): (LORA | {"tp": "1", "dp": "8", "seq_parallel": ""}, None),
    # Not printed, assumed: 512 devices as tensor 4, pipeline 8, data 16, 2,048 sequences of 2,048 tokens
    ("H100", 64, "gpt3"): (GPT3 | {"dp": "16"}, None),
    # Assumed: data parallelism, 48 full sequences a device, the step captured as a whole, so no host between steps
    ("H100", 1, "bert"): (BERT | {"dp": "8"}, 0.0),
    ("B200", 1, "bert"): (BERT | {"dp": "8"}, 0.0),
}
"""Layouts by device, nodes and benchmark, and seconds between steps where they are not those of the stack."""


@dataclass(frozen=True)
class Node:
    """A measured node: watts, what its devices are and run for which shares of a step, and its host.

    ``own`` are these shares of the step that simpar predicts. ``on_supply`` where watts were read behind the power
    supplies.
    """

    system: str
    run: str
    measured_w: float
    power: Power
    shares: tuple[float, float]
    own: tuple[float, float]
    host: Host
    on_supply: bool

    def predicted_w(self, *, own: bool = False) -> float:
        """Watts by the constants as they are in the model, at the measured step where there is one, or simpar's own."""
        devices_w = 8 * float(model.device_w(self.power, *(self.own if own else self.shares)))
        watts = model.input_w(self.host, devices_w)
        return watts * self.host.power.supply_efficiency if self.on_supply else watts


def main() -> None:
    """Fit, print errors, and write the numbers if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("power", type=Path, nargs="?", default=DATA / "mlperf_power.csv")
    parser.add_argument("runs", type=Path, nargs="?", default=DATA / "measured_mlperf_dev.csv")
    parser.add_argument("--write", action="store_true", help="put the numbers into simpar/cost/power.py")
    asked = parser.parse_args()
    nodes = read_nodes(asked.power, asked.runs)
    without = {of: left_out(nodes, lambda node, of=of: getattr(node, of)) for of in ("system", "run")}
    values = fit(nodes)
    print("".join(f"{name} = {value:.3f}  " for name, value in values.items()))
    print(f"{'node':48s} products stream measured predicted  error  step predicted too", end="")
    print("  without its system  without its run")
    for at, node in enumerate(nodes):
        both = "".join(f"{without[of][at]:+18.1%}" for of in ("system", "run"))
        own = node.predicted_w(own=True) / node.measured_w - 1.0
        products, streaming = node.shares
        name = f"{node.system} {node.run}{' (behind supplies)' if node.on_supply else ''}"
        print(
            f"{name:48s} {products:8.3f} {streaming:6.3f} {node.measured_w:8.0f} {node.predicted_w():9.0f} "
            f"{error(node):+6.1%} {own:+19.1%} {both}"
        )
    for name, errors in (("fitted", [error(node) for node in nodes]), *without.items()):
        size = np.abs(errors)
        label = name if name == "fitted" else f"each {name} left out"
        print(f"{label:22s} mean {size.mean():.1%}, largest {size.max():.1%}")
    if asked.write:
        write(values)


def read_nodes(power: Path, runs: Path) -> list[Node]:
    """All rows of measured nodes, with their steps simulated. Raises KeyError for a run without a stated layout."""
    with power.open(newline="") as stream, runs.open(newline="") as other:
        table, timed_runs = list(csv.DictReader(stream)), list(csv.DictReader(other))
    found = []
    for row in table:
        device = "B200" if "B200" in row["system"] else "H100"
        nodes = int(row["node_logs"]) // int(row["runs"])
        step_s = measured_step_s(timed_runs, row, device, nodes)
        at_measured, own = (shares(device, nodes, row["benchmark"], each) for each in (step_s, None))
        profile = load_named_profile("hgx-b200" if device == "B200" else "dgx-h100")
        system = row["org"].split("-")[0]
        host = profile.host
        cooled = host.model_copy(update={"power": host.power.model_copy(update={"fans": FANS[system]})})
        limits = cluster_of(case(run_row(device, nodes, row["benchmark"]))).device.power
        assert limits is not None, "shipped devices have their power"
        watts, run = float(row["node_busy_median_w"]), f"{nodes} x 8 {device} {row['benchmark']}"
        on_supply = row["org"].endswith("dc-power")
        found.append(Node(system, run, watts, limits, at_measured, own, cooled, on_supply))
    return found


def run_row(device: str, nodes: int, benchmark: str) -> Row:
    """The row of a run, as tables of measured runs have them."""
    row, _ = RUNS[device, nodes, benchmark]
    named = {"gpu_type": {"H100": "H100-SXM-80GB"}.get(device, device), "n_gpus": str(8 * nodes)}
    return normalised(COMMON | row | named)


def measured_step_s(runs: Sequence[Row], row: Row, device: str, nodes: int) -> float | None:
    """The median step of the benchmark in its round, on as many devices or between neighbours; None: not measured."""
    layout = run_row(device, nodes, row["benchmark"])
    known: dict[int, list[float]] = {}
    for run in runs:
        alike = f"v{row['round']} {row['benchmark']}" in run["source"] and device in run["gpu_type"]
        each = int(run["n_gpus"]) / float(run["global_batch_seqs"])
        if alike and each == 8 * nodes / float(layout["global_batch_seqs"]):
            known.setdefault(int(run["n_gpus"]), []).append(float(run["iteration_time_s"]))
    if not known:
        return None
    sizes = sorted(known)
    logs = [np.log(np.median(known[size])) for size in sizes]
    return float(np.exp(np.interp(np.log(8 * nodes), np.log(sizes), logs)))


def shares(device: str, nodes: int, benchmark: str, step_s: float | None) -> tuple[float, float]:
    """Shares of a step in products and in kernels bound by memory: simulated kernels over the measured step."""
    one = case(run_row(device, nodes, benchmark))
    lowered, timing = time_ops(one, cluster_of(one))
    accounts = account(lowered, timing)
    between_s = RUNS[device, nodes, benchmark][1]
    between_s = lowered.job.stack.launch.step_overhead_s if between_s is None else between_s
    whole_s = step_s or timing.makespan_ns / NS_PER_S + between_s
    kernels_s = np.average(accounts.kernels_s(), axis=0, weights=lowered.quotient.multiplicity)
    products, streaming = (kernels_s / max(whole_s, kernels_s.sum())).tolist()
    return products, streaming


def error(node: Node) -> float:
    """Predicted over measured, less one."""
    return node.predicted_w() / node.measured_w - 1.0


def fit(nodes: Sequence[Node]) -> dict[str, float]:
    """The most probable values, which are left in the model."""

    def residuals(values: np.ndarray) -> list[float]:
        put(dict(zip(PRIORS, values.tolist(), strict=True)))
        drawn = [(value - mean) / spread for value, (mean, spread) in zip(values, PRIORS.values(), strict=True)]
        return [np.log(node.predicted_w() / node.measured_w) / ERROR for node in nodes] + drawn

    solved = least_squares(residuals, [mean for mean, _ in PRIORS.values()], diff_step=1e-3)
    values = {name: float(f"{value:.3f}") for name, value in zip(PRIORS, solved.x, strict=True)}
    put(values)
    return values


def put(values: dict[str, float]) -> None:
    """Let the model have these values."""
    for name, value in values.items():
        setattr(model, name, value)


def left_out(nodes: Sequence[Node], of: Callable[[Node], str]) -> list[float]:
    """Errors of all nodes, each fitted without those like it."""
    found = []
    for node in nodes:
        fit([other for other in nodes if of(other) != of(node)])
        found.append(error(node))
    return found


def write(values: dict[str, float]) -> None:
    """Put the numbers into the module."""
    path = Path(model.__file__)
    text = path.read_text()
    three = [values[name] for name in ("PRODUCTS", "STREAMING", "WAITING")]
    new = f"PRODUCTS, STREAMING, WAITING = {', '.join(f'{value:g}' for value in three)}"
    text = re.sub(r"^PRODUCTS, STREAMING, WAITING = .*$", new, text, flags=re.MULTILINE)
    text = re.sub(r"^PROCESSORS = .*$", f"PROCESSORS = {values['PROCESSORS']:g}", text, flags=re.MULTILINE)
    path.write_text(text)


if __name__ == "__main__":
    main()
