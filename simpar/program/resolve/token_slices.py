"""Slices of tokens: what a rank sees of one slice of its sequences, and how long slices should be.

A slice of tokens a to b is a sequence of b - a rows whose queries also meet the a keys before them, kept from the
slices before. Its backward adds to the gradients of those keys and values: they are read twice and written once.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import lcm

import numpy as np

from simpar.architectures.graph import Dims
from simpar.hardware.cluster import Cluster
from simpar.layout.sharding import RankDims, rank_dims
from simpar.plan.schedules.terapipe import find_fastest_slices
from simpar.program.blocks.phases import Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import latest, schedule, without_held
from simpar.program.job import TrainingJob
from simpar.program.resolve.pass_costs import PassesAlone
from simpar.units import NS_PER_S, Ints, to_ns

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
    for first in (True, False):  # slices without earlier keys have one kernel less
        begins = [0] if first else range(1, units)
        at = [(begin, end) for begin in begins for end in range(begin + 1, units + 1)]
        if at:
            views = [slice_view(alone.builder.view, begin * unit, end * unit) for begin, end in at]
            dims = stack_dims([view.dims for view in views])
            own = replace(alone, builder=replace(alone.builder, view=replace(views[0], dims=dims)))
            times[tuple(np.array(at).T)] = slowest_stage_ns(own, len(at)) / NS_PER_S
    return tuple(n * unit for n in find_fastest_slices(times, len(alone.builder.pieces), job.num_microbatches))


def stack_dims(dims: Sequence[RankDims]) -> RankDims:
    """Dims of several slices as arrays, int64[slices]; a size that all have stays a number."""

    def columns(each: Sequence[Dims]) -> Dims:
        values = {name: [one[name] for one in each] for name in each[0]}
        return {name: some[0] if some.count(some[0]) == len(some) else np.array(some) for name, some in values.items()}

    tensor, sequence = (columns([getattr(one, name) for one in dims]) for name in ("tensor", "sequence"))
    expert = None if dims[0].expert is None else columns([one.expert or {} for one in dims])
    return replace(dims[0], tensor=tensor, sequence=sequence, expert=expert)


def slowest_stage_ns(alone: PassesAlone, count: int) -> Ints:
    """Nanoseconds of forward and backward on the virtual stage that takes longest, int64[count], by slice."""
    result, known = np.zeros(count, dtype=np.int64), dict[tuple[str, str], Ints]()
    for some in alone.builder.pieces:
        total = np.zeros(count, dtype=np.int64)
        for piece in some:
            name = piece.block.name, piece.recompute
            if name not in known:
                steps = alone.builder.steps(piece)
                known[name] = _took_ns(steps.forward, alone, count) + _took_ns(steps.backward, alone, count)
            total += known[name]
        result = np.maximum(result, total)
    return result


def _took_ns(phase: Phase, alone: PassesAlone, count: int) -> Ints:
    """Nanoseconds of a phase, int64[count], as :func:`simpar.program.blocks.segments.make_segment` has it for one."""
    usual, nothing = alone.builder.job.stack.launch.kernel_overhead, np.zeros(count, dtype=np.int64)
    uses = [step.collective for step in phase.steps]
    prices = [
        nothing if use is None else nothing + alone.price_of(use).time_ns(use.size_bytes, use.count) for use in uses
    ]
    seconds = [np.zeros(count) + step.duration_s for step in phase.steps]
    slow = usual * without_held(phase, prices, [usual * each for each in seconds])
    took = [price if use else to_ns(each * slow) for use, price, each in zip(uses, prices, seconds, strict=True)]
    ends = schedule(phase.steps, took)[1]
    return np.asarray(np.maximum(latest(ends, nothing), to_ns(phase.issue_s)))
