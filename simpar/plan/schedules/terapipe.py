"""TeraPipe: sequences go through the pipeline in slices of tokens [Li et al. 2021, arXiv 2102.07988].

A causal model needs no token behind a slice to compute it, so a slice may leave for the next stage while the rest of
its sequence is still on its way. Any table of whole microbatches becomes one of slices: forwards in order, gradients in
reverse. Slice s of microbatch i is pass i x (number of slices) + s.

Later slices see more keys. Where equal slices would take unequal time, :func:`find_fastest_slices` finds lengths by
dynamic programming (section 3.3 of the paper).
"""

import numpy as np
from numpy.typing import NDArray

from simpar.errors import UserError
from simpar.plan.schedules.actions import F, RankActions, Schedule, columns
from simpar.plan.schedules.ordered import gpipe
from simpar.plan.schedules.producer import EVERY, NONE, Producer, Promise, moment
from simpar.units import unique

Floats = NDArray[np.float64]


def terapipe(p: int, m: int) -> Schedule:
    """TeraPipe: all forwards, then all backwards, of slices of tokens [arXiv 2102.07988]; bubble that of m x slices."""
    whole = gpipe(p, m)
    return Schedule("terapipe", m, whole.rank_of_stage, whole.ranks)


def slice_schedule(schedule: Schedule, count: int) -> Schedule:
    """The table with every microbatch in ``count`` slices. Raises UserError where passes overlap in pairs."""
    if any(rank.overlap.any() for rank in schedule.ranks) or schedule.num_mirrored:
        raise UserError(
            f"schedule {schedule.name}: its passes run in pairs; allowed with slices: schedules without pairs"
        )
    ranks = tuple(_sliced_rank(rank, count) for rank in schedule.ranks)
    return Schedule(schedule.name, schedule.num_microbatches * count, schedule.rank_of_stage, ranks)


def _sliced_rank(rank: RankActions, count: int) -> RankActions:
    ahead = np.arange(count)
    order = np.where((rank.code == F)[:, None], ahead, ahead[::-1])
    passes = rank.microbatch.astype(np.int64)[:, None] * count + order
    return columns(np.repeat(rank.code, count), np.repeat(rank.stage, count), passes.ravel())


def find_fastest_slices(times: Floats, stages: int, microbatches: int) -> tuple[int, ...]:
    """Lengths, in units, of the slices of a sequence that make the pipeline shortest.

    ``times[a, b]`` float64[n + 1, n + 1] is the time in seconds of the slice from unit a to unit b on the slowest
    stage. The pipeline takes microbatches x sum(t) + (stages - 1) x max(t). For every bound on the slowest slice, the
    least sum is found by dynamic programming; bounds are tried in ascending order until no larger one can win.
    """
    units = len(times) - 1
    candidates = unique(times[np.triu_indices(units + 1, 1)])
    unbounded = microbatches * least_sum(times)[0]
    best = np.inf
    lengths: tuple[int, ...] = (units,)
    for bound in candidates.tolist():
        if unbounded + (stages - 1) * bound >= best:
            break
        _, result = least_sum(times, bound)
        if not result:
            continue
        seconds = pipeline_s(times, result, stages, microbatches)
        if seconds < best:
            best, lengths = seconds, result
    return lengths


def pipeline_s(times: Floats, lengths: tuple[int, ...], stages: int, microbatches: int) -> float:
    """Seconds of a pipeline of equal stages whose sequences are cut into slices."""
    ends = np.cumsum([0, *lengths])
    own = times[ends[:-1], ends[1:]]
    return float(microbatches * own.sum() + (stages - 1) * own.max())


def least_sum(times: Floats, bound: float = np.inf) -> tuple[float, tuple[int, ...]]:
    """(Seconds, lengths) of the slices of least total time, none slower than ``bound``; (inf, ()) if impossible."""
    units = len(times) - 1
    best, start = np.full(units + 1, np.inf), np.zeros(units + 1, dtype=np.int64)
    best[0] = 0.0
    for end in range(1, units + 1):
        own = times[:end, end]
        total = np.where(own <= bound, best[:end] + own, np.inf)
        start[end] = int(np.argmin(total))
        best[end] = total[start[end]]
    if not np.isfinite(best[units]):
        return np.inf, ()
    lengths, end = [], units
    while end:
        lengths.append(int(end - start[end]))
        end = int(start[end])
    return float(best[units]), tuple(lengths[::-1])


PRODUCERS = (
    Producer(
        "terapipe",
        terapipe,
        Promise("2021-02", lambda _p, m: m, lambda p, _m: 3 * (p - 1)),
        # all that whole sequences save; the workspaces of their slices are smaller
        lambda _r, _p, _v, m: moment([EVERY], NONE, m),
        searched="when named",
        runs_slices=True,
    ),
)
