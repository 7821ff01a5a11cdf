"""Fit what whole training runs tell: sustained clocks of devices, launch and overlap costs of software stacks.

Usage: python benchmarks/fit_runs.py [TABLE.csv ...] [--write]

Clocks of a device for 16, 8 and 4 bits, four numbers a stack, and a few latencies that only runs show, fitted to the
step times of the development tables by scipy's least squares on log errors with a robust loss; never a number per row.
Clocks of shared devices come from the Megatron stacks, which launch fastest; the others take them as they are.
Deterministic: it starts from the same point. With --only STACK that block alone, to clocks as the profiles have them.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.sparse import lil_matrix

from simpar.units import FOUR_BITS, NS, US
from simpar.validate.cells import Unmodelled, text
from simpar.validate.predict import Tuning, predict, predict_time_s
from simpar.validate.rates import has_rate, with_rates
from simpar.validate.rows import Case, case, measured
from simpar.validate.table import read_table, suspect

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("SIMPAR_DATA", ROOT.parent / "shared" / "data"))
TABLES = ("measured_runs_dev.csv", "measured_playbook_dev.csv")
MOST_ROWS = 20  # of one source: a grid of a thousand runs must not outvote twenty papers
MOST_ROWS_OF = {
    "ultrascale-playbook": 100,  # it alone shows five latencies of its fabric and its stack
    "llm-foundry MPT benchmarks (2024-01)": 40,  # two devices from 1 to 64 nodes, 512 to 65,536 tokens
    "Megatron-Bridge performance summary": 80,  # five devices, dense models and mixtures, 16, 8 and 4 bits
    "NVIDIA dgxc-benchmarking READMEs": 60,  # many models, sizes and precisions
    "SimuMax B200 v1.2 (measured vs peer)": 38,
    "vTrain ground truth (A100)": 40,  # of a grid of a thousand and more
}
BLOCKS = (
    ("nemo", "nemo-24", "megatron", "megatron-22", "megatron-sc21", "megatron-deepspeed"), ("nanotron",),
    ("llm-foundry",), ("torchtitan", "torchtitan-eager"), ("fsdp",), ("automodel",), ("deepspeed-21",), ("maxtext",),
)  # fmt: skip

CLOCK = (0.35, 1.3)  # beyond 1 where a sibling's kernels were timed under a tighter power limit
STACK = {  # dotted key: bounds
    "launch.host_time_per_kernel_s": (0.0, 100 * US),
    "launch.kernel_overhead": (0.8, 1.8),
    "launch.step_overhead_s": (0.0, 0.15),
    "overlap.compute_slowdown_while_comm": (1.0, 1.6),
}
ROUTING = ("nemo", "nemo-24", "megatron")  # stacks with runs of mixtures
ONLY_HERE = {  # (kind, name, dotted key): bounds and start
    **{("stack", name, "experts.overhead"): (0.8, 2.0, 1.25) for name in ROUTING},
    **{("stack", name, "experts.sync_s"): (0.0, 0.002, 0.0002) for name in ROUTING},
    **{("stack", name, "experts.row_s"): (0.0, 20 * NS, 3 * NS) for name in ROUTING},
    ("stack", "nemo", "experts.exchange_host_s"): (0.0, 0.005, 0.001),
    ("stack", "nanotron", "launch.host_time_per_collective_s"): (0.0, 600 * US, 250 * US),
    ("stack", "nanotron", "launch.message_s"): (0.0, 0.01, 0.001),
    ("stack", "llm-foundry", "fusion.attention_rate.others"): (0.3, 1.2, 0.65),
    ("stack", "llm-foundry", "fusion.attention_rate.h100-sxm-80gb"): (0.3, 1.2, 0.65),
    ("cluster", "aws-p5", "jobs.in_training.far_hop_us"): (16.0, 300.0, 115.0),
    ("cluster", "aws-p5", "jobs.disturbed.collectives.member_us"): (0.0, 600.0, 215.0),
    ("cluster", "aws-p5", "jobs.disturbed.collectives.far_member_us"): (0.0, 600.0, 260.0),
}
START = {
    "launch.host_time_per_kernel_s": 12 * US, "launch.kernel_overhead": 1.0, "launch.step_overhead_s": 0.04,
    "overlap.compute_slowdown_while_comm": 1.1,
}  # fmt: skip
START_CLOCK = 0.85
CLOCKS = {  # where the search for a device's clocks starts: near, because the loss forgives far errors
    "a100-pcie-80gb": 0.98, "a100-sxm-40gb": 1.0, "a100-sxm-80gb": 0.98, "b200-sxm": 0.79, "b200-sxm-limited": 0.37,
    "b200-sxm-throttled": 0.91, "b300-sxm": 0.70, "b300-sxm.sustained_clock_fp8": 0.73, "gb200": 0.80,
    "gb200.sustained_clock_fp8": 0.765, "gb200.sustained_clock_fp4": 0.75, "gb300": 0.885,
    "gb300.sustained_clock_fp8": 0.965, "gb300.sustained_clock_fp4": 0.775, "h100-sxm-80gb": 0.785,
    "h100-sxm-80gb.sustained_clock_fp8": 0.817, "h100-sxm-96gb-500w": 0.67, "mi325x": 0.75, "mi355x": 0.70,
    "v100-sxm2-32gb": 1.1,
}  # fmt: skip
STACKS = {  # the same for stacks of the largest block
    "nemo": {"launch.host_time_per_kernel_s": 22 * US, "launch.step_overhead_s": 0.06, "experts.overhead": 1.08,
             "experts.sync_s": 0.0001, "experts.row_s": 3.2 * NS},
    "nemo-24": {"launch.kernel_overhead": 1.1, "launch.step_overhead_s": 0.07, "experts.overhead": 1.1,
                "experts.sync_s": 0.0004},
    "megatron": {"launch.step_overhead_s": 0.03, "experts.overhead": 1.6, "experts.sync_s": 0.0008,
                 "experts.row_s": 0.1 * NS},
    "megatron-22": {"launch.step_overhead_s": 0.012},
    "megatron-sc21": {"launch.kernel_overhead": 1.1, "launch.step_overhead_s": 0.023},
    "megatron-deepspeed": {"launch.host_time_per_kernel_s": 60 * US, "launch.step_overhead_s": 0.017},
}  # fmt: skip
EVALUATIONS = {"nemo": 4, "torchtitan": 24}  # of a block; the first starts where it ends
IN_MS = ("step_overhead_s", "message_s", "sync_s", "exchange_host_s")
NARROW = (  # clock of products of fewer bits, the clock it is likened to, precisions, weight of the likeness
    ("sustained_clock_fp8", "sustained_clock", ("fp8", "mxfp8"), 1.0),
    ("sustained_clock_fp4", "sustained_clock_fp8", FOUR_BITS, 0.1),  # peaks two- to threefold apart
)
TIMES = ("host_time_per_kernel_s", "host_time_per_collective_s")
UNMODELLED = ("Megatron-FSDP GB200",)  # its exchange is another than Megatron-Core's
PRIOR = {"launch.kernel_overhead": (1.05, 0.15), "overlap.compute_slowdown_while_comm": (1.1, 0.15)}


@dataclass(frozen=True)
class Run:
    """A measured run that can be predicted."""

    source: str
    case: Case
    device: str
    time_s: float

    def part(self, kind: str) -> str:
        """Its device, stack or cluster."""
        return {"device": self.device, "stack": self.case.stack, "cluster": self.case.hardware}[kind]


def runs_of(paths: Sequence[Path], stacks: Sequence[str]) -> list[Run]:
    """Rows of some stacks with a step time, thinned evenly to MOST_ROWS a source; disturbed rows left out."""
    by_source: dict[str, list[Run]] = defaultdict(list)
    for path in paths:
        for row in read_table(path):
            if suspect(row) or text(row, "notes").startswith("tier C") or text(row, "source") in UNMODELLED:
                continue
            try:
                found = measured(row)
                if found.step_time_s or has_rate(row):
                    entry = case(row)
                    if entry.open:
                        continue  # what it leaves open is chosen by the numbers to be fitted
                    known = found.step_time_s or with_rates(found, row, entry).step_time_s
                    if entry.stack not in stacks:
                        continue
                    if "offload_activations" in entry.plan or "layers:" in str(entry.plan["recompute"]):
                        continue  # rare: they check what is fitted to others
                    if "ep_overlap" in entry.plan and "launch.graphs" not in entry.stack_changes:
                        continue  # what two microbatches at a time cost the host is not modelled
                    if entry.plan["precision"] in FOUR_BITS and entry.stack not in BLOCKS[0]:
                        continue  # no kernel of 4 bits is measured: a clock tells, and it is fitted there
                    by_source[text(row, "source")].append(Run(text(row, "source"), entry, "", known))
            except Unmodelled:
                continue
    runs = []
    for _, found in sorted(by_source.items()):
        source = found[0].source
        step = max(1.0, len(found) / MOST_ROWS_OF.get(source, MOST_ROWS))
        runs += [found[int(i * step)] for i in range(int(len(found) / step))]
    checked = Parallel(n_jobs=-1)(delayed(_device)(run.case) for run in runs)
    return [
        Run(r.source, r.case, device, r.time_s) for r, device in zip(runs, checked, strict=True) if device
    ]


def _device(entry: Case) -> str:
    """The device of a case; nothing if its plan cannot be.

    Nor if it needs more memory than there was while it could recompute more: it did, and its row does not say so.
    """
    from simpar.validate.predict import cluster_of

    try:
        if not predict(entry).fits and entry.plan["recompute"] != "full":
            return ""
    except Unmodelled:
        return ""
    return cluster_of(entry).device.name


def _start(name: tuple[str, str, str]) -> float:
    kind, part, key = name
    if kind == "device":
        return CLOCKS.get(f"{part}.{key}", CLOCKS.get(part, START_CLOCK))
    usual = ONLY_HERE[name][2] if name in ONLY_HERE else START[key]
    return STACKS.get(part, {}).get(key, usual)


class Problem:
    """Columns: clocks of devices, four numbers per stack, scaled to 0..1 between their bounds.

    ``settled`` is what earlier blocks found; clocks in it are not fitted again.
    """

    def __init__(self, runs: Sequence[Run], settled: Tuning, kept: Container[str] = ()) -> None:
        self.runs, self.settled = runs, settled
        known = {*settled.devices}
        self.devices = sorted(
            {run.device for run in runs if run.device not in known and run.device not in kept}
        )
        self.stacks = sorted({run.case.stack for run in runs})
        self.names = [("device", d, "sustained_clock") for d in self.devices]
        self.narrow = [
            (device, clock, wider, weight)
            for clock, wider, precisions, weight in NARROW
            for device in self.devices
            if any(r.device == device and r.case.plan["precision"] in precisions for r in runs)
        ]
        self.names += [("device", device, clock) for device, clock, *_ in self.narrow]
        self.names += [("stack", s, key) for s in self.stacks for key in STACK]
        bounds = [CLOCK if kind == "device" else STACK[key] for kind, _, key in self.names]
        hardware = {run.case.hardware for run in runs}
        special = [
            name for name in ONLY_HERE if name[1] in (hardware if name[0] == "cluster" else self.stacks)
        ]
        self.names += special
        self.low, self.high = np.array([*bounds, *(ONLY_HERE[name][:2] for name in special)]).T

    def start(self) -> NDArray[np.float64]:
        """Where the fit starts: the same everywhere, so that re-running reproduces it."""
        values = [_start(name) for name in self.names]
        return np.asarray((np.array(values) - self.low) / (self.high - self.low))

    def tuning(self, unit: NDArray[np.float64]) -> Tuning:
        """Parameters of a point."""
        values = self.low + unit * (self.high - self.low)
        found: dict[str, dict[str, dict[str, float]]] = {"device": {}, "stack": {}, "cluster": {}}
        for (kind, name, key), value in zip(self.names, values, strict=True):
            found[kind].setdefault(name, {})[key] = float(value)
        return Tuning({**self.settled.devices, **found["device"]}, found["stack"], found["cluster"])

    def residuals(self, unit: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log errors of all runs, then the priors."""
        tuning = self.tuning(unit)
        chunks = [self.runs[i : i + 24] for i in range(0, len(self.runs), 24)]
        parts = Parallel(n_jobs=-1)(delayed(_log_errors)(chunk, tuning) for chunk in chunks)
        values = self.low + unit * (self.high - self.low)
        priors = [
            (value - PRIOR[key][0]) / PRIOR[key][1] * 0.1
            for (kind, _, key), value in zip(self.names, values, strict=True)
            if kind == "stack" and key in PRIOR
        ]
        clock = {(name, key): value for (_, name, key), value in zip(self.names, values, strict=True)}
        ratios = [
            weight
            * np.log(clock[device, narrow] / clock.get((device, wider), clock[device, "sustained_clock"]))
            for device, narrow, wider, weight in self.narrow
        ]
        return np.concatenate([*parts, priors, ratios])

    def sparsity(self) -> lil_matrix:
        """Which numbers a run depends on: its device's clock and its stack's four."""
        priors = [i for i, (kind, _, key) in enumerate(self.names) if kind == "stack" and key in PRIOR]
        pattern = lil_matrix((len(self.runs) + len(priors) + len(self.narrow), len(self.names)), dtype=int)
        for column, (kind, name, _) in enumerate(self.names):
            for row, run in enumerate(self.runs):
                if name == run.part(kind):
                    pattern[row, column] = 1
        for offset, column in enumerate(priors):
            pattern[len(self.runs) + offset, column] = 1
        for offset, (device, narrow, wider, _) in enumerate(self.narrow, start=len(self.runs) + len(priors)):
            for key in ("sustained_clock", narrow, wider):
                if ("device", device, key) in self.names:
                    pattern[offset, self.names.index(("device", device, key))] = 1
        return pattern


def _log_errors(runs: Sequence[Run], tuning: Tuning) -> NDArray[np.float64]:
    return np.array([np.log(predict_time_s(run.case, tuning) / run.time_s) for run in runs])


def main() -> None:
    """Fit, print, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, default=[DATA / name for name in TABLES])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", help="one stack")
    parser.add_argument("--evaluations", type=int, help="at most so many for a block")
    arguments = parser.parse_args()
    settled = Tuning()
    for block in BLOCKS:
        if arguments.only not in (None, *block):
            continue
        kept = shared_devices(arguments.tables, block) if arguments.only else ()
        problem = Problem(runs_of(arguments.tables, block), settled, kept)
        print(f"{len(problem.runs)} runs, clocks of {problem.devices}, stacks {problem.stacks}", flush=True)
        most = arguments.evaluations or EVALUATIONS.get(block[0], 8)
        best = least_squares(
            problem.residuals, problem.start(), bounds=(0, 1), loss="cauchy", f_scale=0.15, diff_step=0.04,
            jac_sparsity=problem.sparsity(), max_nfev=most, xtol=1e-3, ftol=1e-3, verbose=2,
        )  # fmt: skip
        tuning = problem.tuning(best.x)
        errors = np.exp(problem.residuals(best.x)[: len(problem.runs)]) - 1
        report(problem, tuning, errors)
        if arguments.write:
            write(problem, tuning, errors)
        settled = Tuning({name: _written(values) for name, values in tuning.devices.items()})


def shared_devices(paths: Sequence[Path], block: Sequence[str]) -> set[str]:
    """Devices whose clocks an earlier block has fitted."""
    earlier = [stack for before in BLOCKS[: BLOCKS.index(tuple(block))] for stack in before]
    return {run.device for run in runs_of(paths, earlier)}


def report(problem: Problem, tuning: Tuning, errors: NDArray[np.float64]) -> None:
    """Parameters and errors by source."""
    for name, values in (*tuning.devices.items(), *tuning.stacks.items(), *tuning.clusters.items()):
        print(f"{name:24s}", {key: float(f"{value:.3g}") for key, value in values.items()})
    sources = np.array([run.source for run in problem.runs])
    for source in sorted(set(sources)):
        own = errors[sources == source]
        print(
            f"{source[:46]:46s} n {len(own):4d} median {np.median(abs(own)):6.1%} "
            f"p90 {np.percentile(abs(own), 90):6.1%} bias {np.median(own):+6.1%}"
        )


def write(problem: Problem, tuning: Tuning, errors: NDArray[np.float64]) -> None:
    """Put the numbers and where they come from into the profiles."""
    parts = {"device": tuning.devices, "stack": tuning.stacks, "cluster": tuning.clusters}
    for kind, values in parts.items():
        for name, found in values.items():
            if name in problem.settled.devices:
                continue
            own = [i for i, run in enumerate(problem.runs) if name == run.part(kind)]
            sources = sorted({problem.runs[i].source for i in own})
            note = (
                f"fitted to {len(own)} runs ({'; '.join(sources)}); median absolute error of step time "
                f"{np.median(abs(errors[own])):.1%}"
            )
            _update(ROOT / "hardware_profiles" / f"{kind}s" / f"{name}.yaml", kind, found, note)


def _written(values: dict[str, float]) -> dict[str, float]:
    """Clocks as the profiles keep them, so that a block fits the same alone and behind others."""
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def _update(path: Path, kind: str, values: dict[str, float], note: str) -> None:
    from ruamel.yaml import YAML

    parser = YAML()
    parser.width = 4096
    if kind == "cluster":  # as fit_collectives.py lays these files out
        parser.preserve_quotes = True
        parser.indent(mapping=2, sequence=4, offset=2)
    document = parser.load(path.read_text())
    if kind == "device":
        kernels = document.setdefault("kernels", {})
        kernels |= _written(values)
        kept = str(document.get("provenance") or "").split("; sustained clock")[0]
        document["provenance"] = f"{kept}; sustained clock {note}".removeprefix("; ")
    elif kind == "cluster":
        for key, value in values.items():
            *sections, field = key.split(".")
            part = document
            for section in sections:
                part = part[section]
            part[field] = float(f"{value:.3g}")
        kept = str(document.get("provenance") or "").split("; in training")[0]
        document["provenance"] = f"{kept}; in training {note}"
    else:
        for key, value in values.items():
            *sections, field = key.split(".")
            unit = None
            unit = f"{value / US:.3g} us" if field in TIMES else unit
            unit = f"{value * 1e3:.3g} ms" if field in IN_MS else unit
            unit = f"{value / NS:.3g} ns" if field == "row_s" else unit
            part = document
            for section in sections:
                part = part.setdefault(section, {})
            part[field] = unit or float(f"{value:.4g}")
        document["provenance"] = note
    with path.open("w") as stream:
        parser.dump(document, stream)


if __name__ == "__main__":
    main()
