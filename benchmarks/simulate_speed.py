"""How fast a question is answered: Llama 3.1 405B by microbatches and by data-parallel width, as ratios.

Usage: python benchmarks/simulate_speed.py

Prints ops, processor seconds of each part and ratios within this run; seconds of one machine mean nothing on
another. Every time is the best of three, and other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.engine import choose_engine, reference
from simpar.engine.event import Runner
from simpar.hardware.catalogue import load_cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.program.jitter import JitteredStep, units_of
from simpar.program.lower import lower
from simpar.program.perturbation import Perturbation
from simpar.simulation import make_job, simulate

WIDTHS = (1024, 4096, 16384, 65536, 131072)
ALONE = 1024
"""Devices of which every one is lowered on its own, for comparison."""
PLAN = Plan(tp=8, pp=16, zero=1, micro_batch=1)


def best(call: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """Least processor seconds of several calls, commands they run included, and what the last one returned."""
    least = float("inf")
    for _ in range(times):
        started_s = spent_s()
        found = call()
        least = min(least, spent_s() - started_s)
    return least, found


def spent_s() -> float:
    """Processor seconds of this process and of those that it waited for, to the microsecond."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in each)


def parts(devices: int, microbatches: int, *, collapse: bool = True) -> dict[str, float]:
    """Seconds of lowering and engine, and the number of ops."""
    cluster, graph = load_cluster("dgx-h100", devices // 8), load_model("llama-3.1-405b")
    training = Training(seq_len=8192, global_batch=devices // 128 * microbatches)
    job = make_job(graph, cluster, PLAN, training)
    schedule = schedule_of(job.layout, training)
    lower_s, lowered = best(lambda: lower(job, cluster, schedule, collapse=collapse))
    name = "auto" if collapse else "reference"
    engine = choose_engine(name, lowered.program)
    engine_s, _ = best(lambda: engine(lowered.program))
    print(
        f"{devices:7,d} devices, {microbatches:3d} microbatches{'' if collapse else ', uncollapsed'}: "
        f"{len(lowered.program):6,d} ops, lower {lower_s:.3f} s, {name} engine {engine_s:.3f} s"
    )
    return {"ops": len(lowered.program), "engine_s": engine_s}


def question(devices: int, perturbation: Perturbation) -> tuple[float, int]:
    """Seconds from model and plan to result in one process, and the classes of ranks."""
    cluster, graph = load_cluster("dgx-h100", devices // 8), load_model("llama-3.1-405b")
    training = Training(seq_len=8192, global_batch=devices // 128 * 16)
    seconds, result = best(lambda: simulate(graph, cluster, PLAN, training, perturbation=perturbation))
    return seconds, int(result.setup.fold["classes"])


def jitter(devices: int) -> dict[str, float]:
    """Seconds to lower every unit of ranks and to run them, against lowering every rank where that ends."""
    cluster, graph = load_cluster("dgx-h100", devices // 8), load_model("llama-3.1-405b")
    training = Training(seq_len=8192, global_batch=devices // 128 * 16)
    job = make_job(graph, cluster, PLAN, training)
    schedule = schedule_of(job.layout, training)
    folded = lower(job, cluster, schedule)
    units_s, drawn = best(lambda: JitteredStep.of(folded, units_of(folded)), 1)
    run = Runner(drawn.program)
    run()
    draw_s, ops = best(lambda: drawn.ops(0.05, 1), 1)
    engine_s, timing = best(lambda: run(ops), 1)
    found = {"units_s": units_s, "engine_s": engine_s}
    text = f"{devices:8,d} devices: {len(ops):9,d} ops, units {units_s:.2f} s, draw {draw_s:.2f} s, "
    text += f"event {engine_s:.2f} s"
    if devices <= ALONE:
        alone = Perturbation(fold=False)
        found["alone_s"], _ = best(lambda: lower(job, cluster, schedule, perturbation=alone), 1)
        found["reference_s"], slow = best(lambda: reference.run(replace(drawn.program, ops=ops)), 1)
        same = (slow.start_ns == timing.start_ns).all() and (slow.finish_ns == timing.finish_ns).all()
        text += f"; lowering every rank {found['alone_s']:.1f} s, reference {found['reference_s']:.2f} s, same: {same}"
    print(text)
    return found


def command(*arguments: str) -> float:
    """Seconds of a whole command."""
    call = [sys.executable, "-m", "simpar", *arguments]
    return best(lambda: subprocess.run(call, check=True, stdout=subprocess.DEVNULL))[0]


def simulated(devices: int) -> float:
    """Seconds of the whole command for a width."""
    flags = {
        "--model": "llama-3.1-405b", "--hardware": "dgx-h100", "--nodes": devices // 8, "--tp": 8, "--pp": 16,
        "--zero": 1, "--micro-batch": 1, "--seq-len": 8192, "--global-batch": devices // 128 * 16,
    }  # fmt: skip
    return command("simulate", *(str(word) for pair in flags.items() for word in pair))


def main() -> None:
    """Print the tables."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print("independent jitter of every rank")
    few, *_ = [jitter(devices) for devices in (ALONE, *WIDTHS[::2])]
    print(f"lowering every rank : every unit = {few['alone_s'] / few['units_s']:.0f} : 1")
    print(f"reference : event = {few['reference_s'] / few['engine_s']:.0f} : 1\n")
    few, many = parts(16384, 16), parts(16384, 128)
    flat = parts(16384, 16, collapse=False)
    print(f"ops, uncollapsed : collapsed = {flat['ops'] / few['ops']:.0f} : 1")
    print(f"engine, 128 : 16 microbatches = {many['engine_s'] / few['engine_s']:.1f} : 1")
    print("\n devices   in process  ratio   one slow rank  ratio   whole command  ratio")
    base: list[float] = []
    for devices in WIDTHS:
        alike, classes = question(devices, Perturbation())
        slow, more = question(devices, Perturbation(slow_ranks={77: 1.2}))
        row = [alike, slow, simulated(devices)]
        base = base or row
        cells = [f"{seconds:.3f} s {seconds / first:6.2f}" for seconds, first in zip(row, base, strict=True)]
        print(f"{devices:8,d}   {cells[0]}   {cells[1]}   {cells[2]}   ({classes} and {more} classes)")
    scenario = "llama-3.1-405b-16384-h100"
    print(f"\n--help {command('--help'):.2f} s, {scenario} {command('simulate', scenario):.2f} s")


if __name__ == "__main__":
    main()
