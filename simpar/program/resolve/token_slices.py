"""Slices of tokens: what a rank sees of one slice of its sequences, and how long slices should be.

A slice of tokens a to b is a sequence of b - a rows whose queries also meet the a keys before them, kept from the
slices before. Its backward adds to the gradients of those keys and values: they are read twice and written once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import lcm

import numpy as np

from simpar.hardware.cluster import Cluster
from simpar.plan.schedules.terapipe import fastest_slices
from simpar.plan.sharding import RankDims, rank_dims
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.blocks.rank_view import Job, RankView
from simpar.program.blocks.segments import make_segment
from simpar.program.emission.collective_prices import Prices
from simpar.program.emission.traffic import block_groups, late_per_member_s
from simpar.program.structure.stages import StageBuilder
from simpar.program.structure.synchronisation import Synchronisation
from simpar.units import NS_PER_S

UNITS = 16
"""Pieces of a sequence at whose ends it may be cut."""
LEAST_TOKENS = 64


def slice_view(view: RankView, begin: int, end: int) -> RankView:
    """The view of tokens ``begin`` to ``end`` of every sequence."""
    job = view.job
    own = rank_dims(job.graph, job.plan, job.training.model_copy(update={"seq_len": end - begin}))
    seen = {"context": end, "before": begin}
    expert = None if own.expert is None else {**own.expert, **seen}
    return replace(view, dims=RankDims({**own.tensor, **seen}, {**own.sequence, **seen}, expert))


def slice_ends(slices: tuple[int, ...]) -> list[tuple[int, int]]:
    """First token and the one behind the last of every slice."""
    ends = [0, *accumulate(slices)]
    return list(pairwise(ends))


def unit_tokens(job: Job) -> int:
    """Tokens that slices are multiples of: all of a sequence where it is not to be cut."""
    rows = job.plan.mesh.tp if job.plan.tensor_parallel.sequence_parallel else 1
    seq_len, unit = job.training.seq_len, lcm(rows, LEAST_TOKENS)
    while seq_len // unit > UNITS or (seq_len % unit and unit < seq_len):
        unit += lcm(rows, LEAST_TOKENS)
    return seq_len if seq_len % unit else unit


def choose_slices(job: Job, cluster: Cluster) -> tuple[int, ...]:
    """Tokens of every slice such that the pipeline is shortest, by price: forward and backward of the slowest stage."""
    seq_len, unit = job.training.seq_len, unit_tokens(job)
    if unit == seq_len or job.plan.mesh.pp == 1:
        return (seq_len,)
    units = seq_len // unit
    seconds = _pricer(job, cluster.in_training)
    times = np.full((units + 1, units + 1), np.inf)
    for begin in range(units):
        for end in range(begin + 1, units + 1):
            times[begin, end] = seconds(begin * unit, end * unit)
    microbatches = job.plan.num_microbatches(job.training.global_batch)
    return tuple(n * unit for n in fastest_slices(times, job.plan.mesh.pp, microbatches))


def _pricer(job: Job, cluster: Cluster) -> Callable[[int, int], float]:
    """Seconds of a slice on the slowest stage, both passes, collectives alone on their links."""
    view = RankView.of(job, late_per_member_s=late_per_member_s(cluster, job.plan.mesh))
    sync, places = Synchronisation.of(job), tuple(range(job.plan.mesh.pp))
    groups, prices = {kind.name: kind.groups[0] for kind in block_groups(view)}, Prices.of_job(job, cluster)

    @lru_cache(maxsize=4096)
    def solo_ns(use: CollectiveUse) -> int:
        return prices.of(use.op, groups[use.group], use.group).use_ns(use)

    def seconds(begin: int, end: int) -> float:
        builder = StageBuilder(job, slice_view(view, begin, end), sync, places)
        known: dict[tuple[str, str], int] = {}
        slowest = 0
        for pieces in builder.pieces:
            total = 0
            for piece in pieces:
                key = (piece.block.name, piece.recompute)
                if key not in known:
                    steps, overhead = builder.steps(piece), job.stack.launch.kernel_overhead
                    known[key] = sum(
                        make_segment(phase, solo_ns, slowdown=overhead).duration_ns
                        for phase in (steps.forward, steps.backward)
                    )
                total += known[key]
            slowest = max(slowest, total)
        return slowest / NS_PER_S

    return seconds
