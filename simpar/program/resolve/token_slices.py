"""Slices of tokens: what a rank sees of one slice of its sequences, and how long slices should be.

A slice of tokens a to b is a sequence of b - a rows whose queries also meet the a keys before them, kept from the
slices before. Its backward adds to the gradients of those keys and values: they are read twice and written once.
"""

from dataclasses import replace
from itertools import accumulate, pairwise
from math import lcm

import numpy as np

from simpar.hardware.cluster import Cluster
from simpar.layout.sharding import RankDims, rank_dims
from simpar.plan.schedules.terapipe import find_fastest_slices
from simpar.program.blocks.rank_view import RankView
from simpar.program.job import TrainingJob
from simpar.program.resolve.pass_costs import PassesAlone
from simpar.units import NS_PER_S

UNITS = 16
"""Pieces of a sequence at whose ends it may be cut."""
LEAST_TOKENS = 64


def slice_view(view: RankView, begin: int, end: int) -> RankView:
    """The view of tokens ``begin`` to ``end`` of every sequence."""
    job = view.job
    own = rank_dims(job.graph, job.layout, job.training.model_copy(update={"seq_len": end - begin}))
    seen = {"context": end, "before": begin}
    expert = None if own.expert is None else {**own.expert, **seen}
    return replace(view, dims=RankDims({**own.tensor, **seen}, {**own.sequence, **seen}, expert, own.whole))


def slice_ends(slices: tuple[int, ...]) -> list[tuple[int, int]]:
    """(First token, token behind the last one) of every slice."""
    ends = [0, *accumulate(slices)]
    return list(pairwise(ends))


def unit_tokens(job: TrainingJob) -> int:
    """The number of tokens of which slices are multiples; that of a whole sequence where it cannot be cut."""
    rows = job.layout.mesh.tp if job.layout.sequence_parallel else 1
    seq_len, unit = job.training.seq_len, lcm(rows, LEAST_TOKENS)
    while seq_len // unit > UNITS or (seq_len % unit and unit < seq_len):
        unit += lcm(rows, LEAST_TOKENS)
    return seq_len if seq_len % unit else unit


def choose_slices(job: TrainingJob, cluster: Cluster) -> tuple[int, ...]:
    """Tokens of every slice for the shortest pipeline, from forward and backward of the slowest stage."""
    seq_len, unit = job.training.seq_len, unit_tokens(job)
    if unit == seq_len or not job.layout.is_pipelined:
        return (seq_len,)
    units, alone = seq_len // unit, PassesAlone.of(job, cluster)
    times = np.full((units + 1, units + 1), np.inf)
    for begin in range(units):
        for end in range(begin + 1, units + 1):
            view = slice_view(alone.builder.view, begin * unit, end * unit)
            own = replace(alone, builder=replace(alone.builder, view=view), known={})
            times[begin, end] = own.slowest_stage_ns("forward", "backward") / NS_PER_S
    microbatches = job.layout.num_microbatches(job.training.global_batch)
    return tuple(n * unit for n in find_fastest_slices(times, len(alone.builder.pieces), microbatches))
