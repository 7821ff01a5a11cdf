"""Whether a hardware profile describes the machine of a run: cores, memory, speed of products. No torch here."""

import math
import os
import subprocess
import sys

from simpar.cost.kernels import KernelModel
from simpar.hardware.cluster import Cluster
from simpar.runtime.container import core_limit, usable_memory_bytes
from simpar.units import GIGA, format_bytes

MEMORY_DIFFERS = 0.1  # the operating system keeps less than this share
SPEED_DIFFERS = 2.0  # libraries and repeated measurements differ by less
BUSY = 0.1
"""The share of the cores above which the work of other processes is said."""
ROWS, ROUNDS = 512, 8
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Variables by which libraries of products take a number of threads."""
PRODUCTS = """
import time, numpy
a = numpy.ones(({rows}, {rows}), dtype=numpy.float32)
def worked():
    begin = time.process_time()
    a @ a
    return time.process_time() - begin
print(min(worked() for _ in range({rounds})))
"""


def usable_cores() -> int:
    """Cores that this process may run on, or as many as its container gives it the time of."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(here, math.ceil(core_limit() or here))


def unlike_this_machine(cluster: Cluster, ranks: int) -> str:
    """How a profile of ranks on a machine's CPUs differs from this machine; empty if nothing is noticed."""
    host, cores = cluster.profile.host, usable_cores()
    memory = usable_memory_bytes()
    result = []
    if host.compute_capacity is None and ranks > 1:
        result.append(f"{ranks} ranks with processors of their own, here on {cores} cores")
    elif (host.compute_capacity or 1.0) > cores:
        result.append(f"{host.compute_capacity:g} ranks at work at a time, here on {cores} cores")
    if abs(float(host.memory_bytes) / memory - 1) > MEMORY_DIFFERS:
        result.append(f"{format_bytes(host.memory_bytes)} of memory, here {format_bytes(memory)}")
    said, here = profile_flop_per_s(cluster, ranks), product_flop_per_s(cores)
    if not 1 / SPEED_DIFFERS < here / said < SPEED_DIFFERS:
        result.append(f"products at {said / GIGA:.0f} GFLOP/s in all, here {here / GIGA:.0f}")
    return "; ".join(result)


def profile_flop_per_s(cluster: Cluster, ranks: int) -> float:
    """FLOP/s of square fp32 products in the profile, on as many ranks as work at a time."""
    model = KernelModel(cluster.device, "fp32")
    working = min(float(ranks), cluster.profile.host.compute_capacity or float(ranks))
    return working * 2.0 * ROWS**3 / float(model.gemm_time_s(ROWS, ROWS, ROWS))


def product_flop_per_s(cores: int) -> float:
    """FLOP/s of square fp32 products on this machine, on all cores, if nothing else runs there.

    One thread of a process of its own, by the time that its core worked for it, times the cores: libraries that spread
    a product over threads wait for those that others keep from running, up to fifteen times as long.
    """
    alone = {**os.environ, **dict.fromkeys(THREADS, "1")}
    code = PRODUCTS.format(rows=ROWS, rounds=ROUNDS)
    done = subprocess.run([sys.executable, "-c", code], env=alone, capture_output=True, text=True, check=True)
    return cores * 2.0 * ROWS**3 / float(done.stdout)
