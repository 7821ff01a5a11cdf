"""A lower bound of every plan of the Alpa space: kernels alone, shared out as well as any roles can.

The step of any pipeline is at least its microbatches times its slowest stage, and a stage at least the kernels of its
blocks and its share of the update, each under the roles that divide it best on any mesh of the stage's size: without
collectives, recomputation, memory limits or contention. The cut whose slowest stage is fastest under these times bounds
all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simpar.hardware.cluster import Cluster
from simpar.models.graph import Block
from simpar.program.blocks.rank_view import Job
from simpar.search.stages.alpa.build import Chain, global_dims
from simpar.search.stages.alpa.meshes import logical_meshes
from simpar.search.stages.alpa.operators import OperatorCosts
from simpar.search.stages.alpa.pricing import Pricer
from simpar.units import NS

Floats = NDArray[np.float64]
ROUNDED_S = 1.5 * NS
"""What rounding three kernels to nanoseconds takes away at most."""
TOLERANCE = 1e-4


def slowest_stage_s(job: Job, cluster: Cluster, chain: Chain, sizes: Sequence[int]) -> float:
    """Seconds below which the slowest stage of no cut gets with one microbatch, and a microbatch's share of the update.

    ``sizes`` are devices that a stage may have. Infinite where some block divides on none of them.
    """
    times = {size: _block_times_s(job, cluster, chain, size) for size in sizes}
    each = np.stack(list(times.values()))
    low, high = 0.0, float(np.where(np.isfinite(each), each, 0.0).max(axis=0).sum())
    if _devices(times, high) > cluster.world_size:
        return np.inf
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        if _devices(times, middle) > cluster.world_size:
            low = middle
        else:
            high = middle
    return low


def _devices(times: Mapping[int, Floats], limit_s: float) -> float:
    """Fewest devices on which every stage stays within a limit; infinite where some block never does.

    A stage reaches back as far as it may, because covering fewer blocks takes no more devices: to the first block
    with which it stays within the limit, and behind the last one that does not divide on its devices.
    """
    first = {}
    for size, each in times.items():
        possible = np.isfinite(each)
        before = np.concatenate([[0.0], np.cumsum(np.where(possible, each, 0.0))])
        behind = np.concatenate([[0], np.where(possible, 0, np.arange(1, len(each) + 1))])
        within = np.searchsorted(before, before - limit_s * (1 + 1e-12), side="left")
        first[size] = np.maximum(within, np.maximum.accumulate(behind)).tolist()
    fewest = [0.0]
    for end in range(1, len(next(iter(first.values())))):
        covers = (fewest[begins[end]] + size for size, begins in first.items() if begins[end] < end)
        fewest.append(min(covers, default=np.inf))
    return fewest[-1]


def _block_times_s(job: Job, cluster: Cluster, chain: Chain, size: int) -> Floats:
    """Least seconds of every block of the chain on any mesh of a size: float64[K]."""
    pricers = [Pricer(cluster, mesh) for mesh in logical_meshes(size, cluster)]
    least = {
        name: min(
            _kernels_s(OperatorCosts(job, pricer, global_dims(job, block)), block) for pricer in pricers
        )
        for name, block in chain.kinds.items()
    }
    return np.array([least[block.name] for block in chain.blocks])


def _kernels_s(costs: OperatorCosts, block: Block) -> float:
    """Kernels of a block and its share of the update, every operator under the roles that suit it best."""
    graph, share = costs.job.graph, costs.job.plan.micro_batch / costs.job.training.global_batch
    again = graph.tied_embeddings and block.name == graph.head.name  # its table may be the embedding's
    total = 0.0
    for op in block.operators:
        index = costs.legal(op)
        if not len(index):
            return np.inf
        chosen = costs.chosen(op, index)
        time = chosen.time
        each = time.forward_s + time.backward_input_s + time.backward_weight_s
        total += max(float(np.min(each)) * costs.job.stack.launch.kernel_overhead - ROUNDED_S, 0.0)
        total += 0.0 if again else share * costs.least_update_s(chosen)
    return total
