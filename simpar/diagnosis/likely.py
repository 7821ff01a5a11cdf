"""Likely causes of a gap from a log alone: what a series of step times shows of each, and what would decide.

A log has one number a step, the same on all ranks. Steps that stand out come from work beside the step, a slow drift
from a device that gets slower, a jump from one that became slow; a gap that stays the same is in every step's work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from simpar.dataclass import dataclass
from simpar.diagnosis.log_run import ALLOCATED, RESERVED, LogRun
from simpar.report.result import Result
from simpar.units import Floats, Ints, format_seconds, number_of

GAP = 1.05
"""Less than that over the prediction is no gap: it is within the error of good predictions."""
CLEAR = 1.1
LATE, FAR, ROBUST = 1.1, 5.0, 1.4826
"""Steps stand out that last this many times the median, and beyond so many standard deviations of the others; these
from the median of deviations [Rousseeuw and Croux 1993]."""
LONG = 1.5
"""Steps so many times the median stand out where many do, or several in a row: a jump or a drift is none of that."""
SHARE, DRIFT, SCATTER = 0.02, 0.03, 0.03
FEWEST = 12
NOISE = 2.5
"""Medians of ``n`` steps that scatter by ``s`` differ by chance by less than this times s / sqrt(n) [twice the standard
error of a median, 1.25 s / sqrt(n)]."""


@dataclass(frozen=True)
class Pace:
    """How step times follow each other.

    Steps that stand out, ``late_ratio`` times as long as the median, take ``late_share`` of the time more than it, one
    of ``late_every`` steps (0: irregularly). Of the others, the last quarter is by ``drift`` slower than the first, at
    once if ``jumps``; ``scatter`` is the standard deviation of their logarithms, without the drift; by ``by_chance``
    the two quarters may differ without any.
    """

    late_share: float = 0.0
    late_ratio: float = 1.0
    late_every: int = 0
    drift: float = 0.0
    jumps: bool = False
    scatter: float = 0.0
    by_chance: float = 0.0

    @property
    def drifts(self) -> bool:
        """Whether later steps are slower, by more than the quarters differ by chance."""
        return self.drift > max(DRIFT, self.by_chance)


@dataclass(frozen=True)
class LikelyCause:
    """A ``cause``, its ``signature`` in the log, and the one measurement that ``decides``."""

    cause: str
    signature: str
    decides: str


def pace_of(times_s: Sequence[float]) -> Pace | None:
    """The pace of step times in order (in s, or in any other unit); None for fewer than ``FEWEST``."""
    if len(times_s) < FEWEST:
        return None
    times = np.asarray(times_s, dtype=np.float64)
    usual = float(np.median(times))
    late = _standing_out(times / usual)
    gaps = {int(after - before) for before, after in pairwise(late)}
    share = float((times[late] - usual).sum() / times.sum())
    rest = np.log(np.delete(times, late))
    quarter = max(1, len(rest) // 4)
    drift = float(np.median(rest[-quarter:]) - np.median(rest[:quarter]))
    at = np.arange(len(rest))
    line = rest - np.polyval(np.polyfit(at, rest, 1), at)
    steps = [_in_two(rest, split) for split in range(quarter, len(rest) - quarter + 1)]
    step = min(steps, key=lambda each: float(each @ each))
    jumps = bool(step @ step < 0.5 * (line @ line))
    left = step if jumps else line
    every = gaps.pop() if len(late) > 2 and len(gaps) == 1 else 0
    ratio = float(np.median(times[late])) / usual if len(late) else 1.0
    scatter = float(left.std())
    by_chance = NOISE * scatter * np.sqrt(2 / quarter)
    return Pace(share, ratio, every, float(np.expm1(drift)), jumps, scatter, float(by_chance))


def _standing_out(ratios: Floats) -> Ints:
    """Which steps stand out, by their ratios to the median."""
    logs = np.log(ratios)
    scatter = ROBUST * float(np.median(np.abs(logs - np.median(logs))))
    late: Ints = np.flatnonzero(logs > max(np.log(LATE), FAR * scatter))
    in_a_row = np.count_nonzero(np.diff(late) == 1)
    return np.flatnonzero(ratios > LONG) if 4 * len(late) > len(ratios) or 2 * in_a_row > len(late) else late


def _in_two(values: np.ndarray, split: int) -> np.ndarray:
    """What is left of values without the mean of each of two parts."""
    first, last = values[:split], values[split:]
    return np.concatenate((first - first.mean(), last - last.mean()))


def causes_in_phases(log: LogRun) -> Iterator[LikelyCause]:
    """What the phases of a run of simpar show of its ranks: time on data, and passes that are longer than the others'.

    A pass that holds collectives is as long on all ranks; what differs between ranks is a rank's own. Stages differ
    by themselves, and are not compared.
    """
    step_s = log.step_time_s()
    if not log.phases_s or step_s is None:
        return
    data = [each.get("data", 0.0) for each in log.phases_s]
    rank = int(np.argmax(data))
    if data[rank] > SHARE * step_s:
        yield LikelyCause(
            "loader",
            f"rank {rank} spends {format_seconds(data[rank])} of a step on data, {data[rank] / step_s:.0%}",
            "the same run on random tokens, without --text and --tokens: that phase is gone",
        )
    forward = [each.get("forward", 0.0) for each in log.phases_s]
    rank = int(np.argmax(forward))
    others = np.delete(forward, rank)
    if len(others) == 0 or log.stages_differ:
        return
    usual = float(np.median(others))
    by_chance = NOISE * log.spread / np.sqrt(log.count) * step_s
    if forward[rank] > CLEAR * usual and forward[rank] - usual > max(SHARE * step_s, by_chance):
        yield LikelyCause(
            "slow rank",
            f"rank {rank}'s forward lasts {format_seconds(forward[rank])}, {format_seconds(usual)} on the median of "
            "the others",
            "traces of all ranks (simpar run --trace-steps 2): kernels or host of that rank are slow",
        )


def has_gap(step_time_s: float | None, result: Result) -> bool:
    """Whether a measured step, if there is one, is longer than good predictions err."""
    return step_time_s is not None and step_time_s >= GAP * result.step_time_s


def likely_causes(log: LogRun, step_time_s: float | None, result: Result, again: Result | None) -> list[LikelyCause]:
    """The causes that a log does not rule out, the clearest first; ``again`` is the plan with all layers recomputed."""
    pace = pace_of(log.times_s)
    causes = [] if pace is None else list(_in_time(pace))
    if step_time_s is None or not has_gap(step_time_s, result):
        return causes
    if again is not None and (said := _recomputed(log, step_time_s, result, again)):
        return [said, *causes]
    scatters = pace is not None and pace.scatter >= SCATTER and not causes and not any(causes_in_phases(log))
    if (pace is None or scatters) and step_time_s > CLEAR * result.step_time_s:
        return [_without_signature(log, pace, step_time_s - result.step_time_s)]
    steady = pace is not None and not pace.drifts and pace.scatter < SCATTER
    if steady and step_time_s > CLEAR * result.step_time_s:
        longer = f"{format_seconds(step_time_s - result.step_time_s)} longer than predicted"
        gap = f"the other steps are {longer}, too" if causes else f"every step is {longer}, none stands out"
        causes.append(
            LikelyCause(
                "eager code", gap,
                "a trace of one rank (simpar explain trace-rank0.json): the device waits for its host, or runs kernels "
                "that the plan's stack fuses",
            )
        )  # fmt: skip
        causes.append(
            LikelyCause(
                "slow rank", gap,
                "traces or flight recorders of all ranks (simpar explain nccl_trace_rank_*): one comes last to "
                "collectives",
            )
        )  # fmt: skip
    return causes


def _without_signature(log: LogRun, pace: Pace | None, gap_s: float) -> LikelyCause:
    """What a gap may be where too few steps are logged to see a signature in them, or they scatter too much."""
    longer = f"the step is {format_seconds(gap_s)} longer than predicted, and"
    if pace is None:
        few = number_of(len(log.times_s), "logged step")
        return LikelyCause(
            "eager code, a slow rank or a loader",
            f"{longer} of {few} nobody can tell which",
            f"{FEWEST} logged steps or more, or a trace of one rank (simpar explain trace-rank0.json)",
        )
    return LikelyCause(
        "a machine that others use, eager code, a slow rank or a loader",
        f"{longer} steps that scatter by {pace.scatter:.0%} do not tell which",
        "a trace of every rank (simpar explain trace-rank*.json), or the same run while nothing else runs there",
    )


def _in_time(pace: Pace) -> Iterator[LikelyCause]:
    if pace.late_share > SHARE:
        often = f"one of {pace.late_every} steps lasts" if pace.late_every else "steps at irregular distances last"
        yield LikelyCause(
            "loader" if not pace.late_every else "loader, checkpoint or evaluation",
            f"{often} {pace.late_ratio:.2g} times the median: {pace.late_share:.0%} of the time more",
            "the same run on data that cost nothing, without checkpoints: the long steps are gone",
        )
    if pace.drifts and pace.jumps:
        yield LikelyCause(
            "slow rank",
            f"steps become {pace.drift:.0%} longer at once, and stay so",
            "traces or flight recorders of all ranks after that: one comes last to collectives",
        )
    elif pace.drifts:
        yield LikelyCause(
            "clock",
            f"steps become {pace.drift:.0%} longer little by little",
            "nvidia-smi --query-gpu=index,clocks.sm,clocks_event_reasons.active,temperature.gpu --format=csv -l 1 "
            "beside the run: a clock falls",
        )


def _recomputed(log: LogRun, step_time_s: float, result: Result, again: Result) -> LikelyCause | None:
    """Recomputation that the plan does not have: step and memory are both nearer to the plan that has it."""
    key = next((name for name in (ALLOCATED, RESERVED) if name in log.figures), None)
    if key is None:
        return None
    name = {ALLOCATED: "peak_memory_bytes", RESERVED: "peak_reserved_bytes"}[key]
    measured = (step_time_s, log.figures[key])
    off = [
        [abs(np.log(is_ / was)) for is_, was in zip(measured, (r.step_time_s, getattr(r.memory, name)), strict=True)]
        for r in (result, again)
    ]
    if not (off[1][0] < 0.5 * off[0][0] and off[1][1] < 0.5 * off[0][1]):
        return None
    return LikelyCause(
        "recomputation",
        f"with recompute full {format_seconds(again.step_time_s)} a step are predicted, and memory as logged",
        "the launch's words for activation checkpointing, or a run without it: memory rises, steps get shorter",
    )
