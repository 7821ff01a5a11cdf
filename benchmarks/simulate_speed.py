"""How fast a question is answered: Llama 3.1 405B by microbatches and by data-parallel width, as ratios.

Usage: python benchmarks/simulate_speed.py

Prints ops, seconds of each part and ratios within this run; seconds of one machine mean nothing on another.
"""

from __future__ import annotations

import subprocess
import sys
import time

from simpar.engine import choose_engine
from simpar.hardware.cluster import load_cluster
from simpar.models.catalogue import load_model
from simpar.models.training import Training
from simpar.plan.check import schedule_of
from simpar.plan.plan import Plan
from simpar.program.lower import lower
from simpar.simulation import make_job, simulate


def parts(devices: int, microbatches: int, *, collapse: bool = True) -> dict[str, float]:
    """Seconds of lowering, engine and the whole question, and the number of ops."""
    cluster = load_cluster("dgx-h100", devices // 8)
    plan = Plan(tp=8, pp=16, zero=1, micro_batch=1)
    training = Training(seq_len=8192, global_batch=devices // 128 * microbatches)
    graph = load_model("llama-3.1-405b")
    started = time.perf_counter()
    job = make_job(graph, cluster, plan, training)
    lowered = lower(job, cluster, schedule_of(job.plan, training), collapse=collapse)
    built = time.perf_counter()
    name, engine = choose_engine("auto" if collapse else "reference", lowered.program)
    engine(lowered.program)
    timed = time.perf_counter()
    simulate(graph, cluster, plan, training)
    done = time.perf_counter()
    print(
        f"{devices:7d} devices, {microbatches:3d} microbatches{'' if collapse else ', uncollapsed'}: "
        f"{len(lowered.program):7d} ops, {lowered.layout.num_classes} classes, lower {built - started:.3f} s, "
        f"{name} {timed - built:.3f} s, whole question {done - timed:.3f} s"
    )
    return {"ops": len(lowered.program), "engine_s": timed - built, "whole_s": done - timed}


def main() -> None:
    """Print the tables."""
    parts(1024, 16)  # warm caches
    few, many = parts(16384, 16), parts(16384, 128)
    flat = parts(16384, 16, collapse=False)
    print(f"ops, uncollapsed : collapsed = {flat['ops'] / few['ops']:.0f} : 1")
    print(f"whole question, 128 : 16 microbatches = {many['whole_s'] / few['whole_s']:.1f} : 1")
    base = parts(1024, 16)
    for devices in (16384, 131072):
        wide = parts(devices, 16)
        print(f"whole question, {devices} : 1024 devices = {wide['whole_s'] / base['whole_s']:.2f} : 1")
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "simpar", "--help"], check=True, stdout=subprocess.DEVNULL)
    helped = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "simpar", "simulate", "llama-3.1-405b-16384-h100"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    print(f"command: --help {helped - started:.2f} s, simulate 405B {time.perf_counter() - helped:.2f} s")


if __name__ == "__main__":
    main()
