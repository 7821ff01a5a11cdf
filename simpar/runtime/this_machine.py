"""Whether a hardware profile describes the machine of a run: cores, memory, speed of products. No torch here."""

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from simpar.cost.kernels import KernelModel
from simpar.hardware.cluster import Cluster
from simpar.runtime.container import core_limit, usable_memory_bytes
from simpar.units import GIGA, format_bytes

MEMORY_DIFFERS = 0.1  # the operating system keeps less than this share
SPEED_DIFFERS = 2.0  # libraries and repeated measurements differ by less
ROWS, ROUNDS = 512, 8


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
    """FLOP/s of square fp32 products on this machine, on all cores: the best, least disturbed, of several rounds."""
    import numpy as np

    a = np.ones((ROWS, ROWS), dtype=np.float32)
    best_s = float("inf")
    with ThreadPoolExecutor(cores) as pool:  # products release the interpreter lock
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            for done in [pool.submit(partial(np.matmul, a, a)) for _ in range(cores)]:
                done.result()
            best_s = min(best_s, time.perf_counter() - begin)
    return cores * 2.0 * ROWS**3 / best_s
