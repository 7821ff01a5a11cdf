"""How fast the best plan is found: whole commands, against simulating plans of the same space one by one in this run.

Usage: python benchmarks/search_speed.py [NAME ...]

The yardstick is 1,000 simulations, at the mean of the plans that the search ranks. Prints plans, the ratios, and as
information seconds of the clock and of the processor and peak memory; seconds of one machine mean nothing on another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import simpar
from simpar.units import MB


@dataclass(frozen=True)
class Case:
    """A search, how long it may take, and how much memory (None: any)."""

    flags: str
    most_s: float
    most_mb: float | None = None


CASES = {
    "gpt3-175b-4096-a100": Case(
        "--model gpt3-175b --hardware dgx-a100-80gb --nodes 512 --seq-len 2048 --global-batch 1536 --portable any",
        10,
        500,
    ),
    "llama-405b-16384-h100": Case(
        "--model llama-3.1-405b --hardware dgx-h100 --nodes 2048 --seq-len 8192 --global-batch 2048 --portable any",
        20,
        500,
    ),
    "alpa-80-layers-64-gpus": Case(
        "--space alpa --model llama-3-70b --hardware dgx-a100-80gb --nodes 8 --seq-len 4096 --global-batch 512", 10
    ),
}


@dataclass(frozen=True)
class Cost:
    """Seconds of the clock and of the processor, and peak resident bytes, of one command."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def command(*arguments: str) -> Cost:
    """Run simpar and wait for it. Raises CalledProcessError where it fails."""
    call, started = [sys.executable, "-m", "simpar", *arguments], time.perf_counter()
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, call)
    return Cost(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss)


def one_simulation_s(found: dict[str, Any]) -> float:
    """Processor seconds of a simulation, the mean over the candidates of an answer, the start of Python left out."""
    cluster = simpar.Cluster(found["cluster"]["hardware"], nodes=found["cluster"]["nodes"])
    training = simpar.Training.model_validate(found["training"])
    plans = [simpar.Plan.model_validate(each["plan"]) for each in found["candidates"]]
    simpar.simulate(found["model"]["name"], cluster, plans[0], training)  # what is loaded once
    started = time.process_time()
    for plan in plans:
        simpar.simulate(found["model"]["name"], cluster, plan, training)
    return (time.process_time() - started) / len(plans)


def measure(name: str, case: Case) -> None:
    """Search, simulate what was found, and print both."""
    with tempfile.TemporaryDirectory() as folder:
        result, plan = Path(folder, "result.json"), Path(folder, "plan.json")
        cost = command("search", *case.flags.split(), "--json", str(result), "-o", str(plan))
        found: dict[str, Any] = json.loads(result.read_text())
    one_s = one_simulation_s(found)
    print(
        f"{name}: {found['space_size']:,} plans, {found['feasible']:,} fit, {found['swept']:,} swept, "
        f"{found['simulated']:,} simulated, certified {found['certified_optimal']}, "
        f"best {found['candidates'][0]['step_time_s']:.4g} s"
    )
    print(
        f"  search : 1,000 simulations = {cost.cpu_s / (1000 * one_s):.3f} : 1; "
        f"{found['feasible'] * one_s / cost.cpu_s:,.0f} times as fast as simulating all that fit"
    )
    print(
        f"  {cost.wall_s:.1f} s ({cost.cpu_s:.1f} s of processor; aim {case.most_s:g} s), {cost.peak_bytes / MB:.0f} MB"
        + (f" (aim {case.most_mb:g})" if case.most_mb else ""),
        flush=True,
    )


def main() -> None:
    """Measure the named cases, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(CASES)}; all where none is given")
    for name in parser.parse_args().names or CASES:
        measure(name, CASES[name])


if __name__ == "__main__":
    main()
