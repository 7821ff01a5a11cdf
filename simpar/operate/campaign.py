"""A campaign of weeks as a renewal process, with many repetitions in numpy columns.

A repetition alternates between work (cycles of D seconds of work and w seconds of checkpoint) and recovery.
Interruptions of every cause are Poisson processes that are independent of what the job does, so one can also strike
during a recovery, which then begins again. An unexpected interruption loses the work since the last complete
checkpoint. A planned one, and the replacement of a slow node, follow a checkpoint. The failed node is replaced by a
spare; if none is left, the job waits for the first repair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.hardware.operation import SlowNodes
from simpar.hardware.reliability import Rate
from simpar.units import Floats

LOSSES = ("checkpoints", "lost work", "detection", "restart", "waiting for nodes", "slow nodes")
SLOW = "slow node"


@dataclass(frozen=True)
class CampaignParameters:
    """The parameters of a campaign in seconds: length, D, w, completion of a checkpoint, detection, restart."""

    length_s: float
    interval_s: float
    blocking_s: float
    background_s: float
    detection_s: float
    restart_s: float
    repair_s: float
    spares: int | None
    slow: SlowNodes
    slow_per_s: float


@dataclass
class Campaign:
    """Columns over the repetitions: seconds of useful work and of every loss, and interruptions by cause."""

    useful_s: Floats
    losses_s: dict[str, Floats]
    interruptions: dict[str, Floats]


@dataclass
class _Columns:
    """State of all repetitions: clock, columns of the result, when each spare is ready, which still run."""

    setting: CampaignParameters
    rates: Sequence[Rate]
    random: np.random.Generator
    clock: Floats
    useful: Floats
    lost: dict[str, Floats]
    counts: Floats
    ready: Floats | None
    live: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.live = np.ones(len(self.clock), dtype=np.bool_)

    def spend(self, kind: str | None, rows: Any, seconds: Any) -> None:
        """Advance the clock of some repetitions, at most to the end; ``kind`` None is useful work."""
        left = self.setting.length_s - self.clock[rows]
        passed = np.minimum(seconds, left)
        (self.useful if kind is None else self.lost[kind])[rows] += passed
        self.clock[rows] += passed


def run_campaign(setting: CampaignParameters, rates: Sequence[Rate], runs: int, seed: int) -> Campaign:
    """Repeat a campaign ``runs`` times.

    The same seed gives the same columns: random numbers come from a counter-based generator (Philox). ``rates`` are
    interruptions per second by cause.
    """
    zeros = np.zeros(runs)
    state = _Columns(
        setting=setting,
        rates=rates,
        random=np.random.Generator(np.random.Philox(key=seed)),
        clock=zeros.copy(),
        useful=zeros.copy(),
        lost={kind: zeros.copy() for kind in LOSSES},
        counts=np.zeros((runs, len(rates) + 1)),
        ready=None if setting.spares is None else np.zeros((runs, setting.spares)),
    )
    weights = np.array([*(rate.per_s for rate in rates), setting.slow_per_s])
    while state.live.any():
        _advance(state, weights)
    names = [*(rate.name for rate in rates), SLOW]
    counts = {name: state.counts[:, i] for i, name in enumerate(names) if weights[i] > 0}
    return Campaign(state.useful, state.lost, counts)


def _advance(state: _Columns, weights: Floats) -> None:
    """Work until the next interruption, and recover from it."""
    rows = np.flatnonzero(state.live)
    total = weights.sum()
    until = state.random.exponential(1.0 / total, len(rows)) if total > 0 else np.full(len(rows), np.inf)
    cause = _causes(state, weights, len(rows))
    left = state.setting.length_s - state.clock[rows]
    ends = until >= left
    _work(state, rows, np.minimum(until, left), _unexpected(state, cause) & ~ends)
    state.live[rows[ends]] = False
    rows, cause = rows[~ends], cause[~ends]
    np.add.at(state.counts, (rows, cause), 1.0)
    _recover(state, rows, cause, weights)
    state.live &= state.clock < state.setting.length_s


def _causes(state: _Columns, weights: Floats, count: int) -> NDArray[np.int64]:
    if weights.sum() == 0:
        return np.zeros(count, dtype=np.int64)
    bounds = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(bounds, state.random.random(count), side="right"), len(weights) - 1)


def _unexpected(state: _Columns, cause: NDArray[np.int64]) -> NDArray[np.bool_]:
    planned = np.array([*(rate.planned for rate in state.rates), True])  # a slow node is detected, not lost
    return ~planned[cause]


def _work(state: _Columns, rows: Any, elapsed: Floats, loses: NDArray[np.bool_]) -> None:
    """Advance by ``elapsed`` seconds of cycles; with ``loses``, the work since the last complete checkpoint is lost."""
    s = state.setting
    cycle = s.interval_s + s.blocking_s
    full = np.floor(elapsed / cycle)
    rest = elapsed - full * cycle
    work = full * s.interval_s + np.minimum(rest, s.interval_s)
    since = np.minimum(rest, s.interval_s) + np.where((rest < s.background_s) & (full > 0), s.interval_s, 0.0)
    lost = np.where(loses, np.minimum(since, work), 0.0)
    state.spend(None, rows, work - lost)
    state.spend("lost work", rows, lost)
    state.spend("checkpoints", rows, elapsed - work)


def _recover(state: _Columns, rows: Any, cause: NDArray[np.int64], weights: Floats) -> None:
    """From an interruption until work resumes; an interruption meanwhile restarts the recovery."""
    s, slow = state.setting, len(state.rates)
    is_slow = cause == slow
    state.spend(None, rows[is_slow], s.slow.detection / s.slow.slowdown)
    state.spend("slow nodes", rows[is_slow], s.slow.detection * (1.0 - 1.0 / s.slow.slowdown))
    unexpected = _unexpected(state, cause)
    state.spend("checkpoints", rows[~unexpected], s.blocking_s)
    pending, why = rows, cause
    while len(pending):
        detection = np.where(_unexpected(state, why), s.detection_s, 0.0)
        state.spend("waiting for nodes", pending, _wait(state, pending, why))
        needed = detection + s.restart_s
        total = weights[:slow].sum()
        strikes = state.random.exponential(1.0 / total, len(pending)) if total > 0 else np.full(len(pending), np.inf)
        passed = np.minimum(strikes, needed)
        state.spend("detection", pending, np.minimum(passed, detection))
        state.spend("restart", pending, np.maximum(passed - detection, 0.0))
        again = (strikes < needed) & (state.clock[pending] < s.length_s)
        pending = pending[again]
        why = _causes(state, weights[:slow], len(pending))
        np.add.at(state.counts, (pending, why), 1.0)


def _wait(state: _Columns, rows: Any, cause: NDArray[np.int64]) -> Floats:
    """Seconds until a node can replace the failed one, which becomes a spare after its repair."""
    takes = np.array([*(rate.takes_node for rate in state.rates), True])[cause]
    waits = np.zeros(len(rows))
    if state.ready is None or not takes.any():
        return waits
    chosen, now = rows[takes], state.clock[rows[takes]]
    if state.ready.shape[1] == 0:
        waits[takes] = state.setting.repair_s
        return waits
    first = state.ready[chosen].argmin(axis=1)
    wait = np.maximum(state.ready[chosen, first] - now, 0.0)
    state.ready[chosen, first] = now + wait + state.setting.repair_s
    waits[takes] = wait
    return waits
