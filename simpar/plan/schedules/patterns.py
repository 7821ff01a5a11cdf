"""V-Min and V-Half: one microbatch's pattern, repeated every six units [Qi et al. 2024, arXiv 2405.15362].

Rank r holds stages r and 2p - 1 - r. A pattern gives the times of the four passes F down, F up, I up, I down
on every rank; moving from a rank to the next costs each of them one or two units, and how long a microbatch
stays on a rank, hence the memory, is the sum of these. No two passes of a rank may fall on the same time
modulo six. The repeated pattern is an order; weight gradients fill what it leaves open.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.schedules.actions import F, I, Ints, Schedule
from simpar.plan.schedules.greedy import UNIT, GreedyRule, list_schedule, schedule_beginning
from simpar.plan.schedules.producer import Costs, Moment, Names, Producer, Promise, moment
from simpar.plan.schedules.zb_v import v_placement

INTERVAL = 6


@dataclass(frozen=True)
class VSchedulePattern:
    """Units between neighbours for F down, F up, I up, I down, and extra units at the three turning points.

    ``cap`` is the number of chunks in flight that the pattern needs.
    """

    steps: tuple[int, int, int, int]
    pauses: tuple[int, int, int]
    cap: int

    def times(self, rank: int, p: int) -> list[tuple[int, int, int]]:
        """(time, code, stage) of the four passes of microbatch 0 on a rank."""
        down, up, back_up, back_down = self.steps
        first_up = (p - 1) * (down + up) + 1 + self.pauses[0]
        first_back = first_up + 1 + self.pauses[1]
        first_back_down = first_back + (p - 1) * (back_up + back_down) + 1 + self.pauses[2]
        return [
            (down * rank, F, rank),
            (first_up - up * rank, F, 2 * p - 1 - rank),
            (first_back + back_up * rank, I, 2 * p - 1 - rank),
            (first_back_down - back_down * rank, I, rank),
        ]


def v_min(p: int, m: int, *, costs: Costs = UNIT) -> Schedule:
    """V-Min: a third of 1F1B's activations, 2((p + 4) // 3) chunks; bubble 4p - 5 passes if F = I = W."""
    return _schedule("v-min", p, m, _v_min(p), costs)


def v_half(p: int, m: int, *, costs: Costs = UNIT) -> Schedule:
    """V-Half: half of 1F1B's, 2((p + 2) // 2) chunks; bubble 3p - 7 (p even), 3p - 4 passes if F = I = W."""
    return _schedule("v-half", p, m, _v_half(p), costs)


def _beginnings(
    name: str, pattern: Callable[[int], VSchedulePattern], p: int, m: int, costs: Costs, forwards: int
) -> list[Schedule]:
    """The candidate tables of V-Min or V-Half, up to the time at which the first stage has begun ``forwards``."""
    rule = _rule(pattern(p), p, m)
    return [schedule_beginning(name, v_placement(p), m, rule, each, forwards) for each in dict.fromkeys((UNIT, costs))]


def _first_up(pattern: Callable[[int], VSchedulePattern], rank: int, p: int, _vpp: int, m: Ints) -> Moment:
    """The moment at the first forward up, before any gradient: forwards down that the pattern has before it."""
    (down, *_), (up, *_), *_ = pattern(p).times(rank, p)
    return moment([-(-(up - down) // INTERVAL), 1], 1, m, turns=True)


def _v_min(p: int) -> VSchedulePattern:
    return VSchedulePattern((1, 1, 1, 1), (0, 0, 0) if p % 3 else (2, 0, 2), 2 * ((p + 4) // 3))


def _v_half(p: int) -> VSchedulePattern:
    return VSchedulePattern((1, 2, 1, 2), (0, 0, 1) if p % 2 else (3, 3, 1), 2 * ((p + 2) // 2))


def _schedule(name: str, p: int, m: int, pattern: VSchedulePattern, costs: Costs) -> Schedule:
    return list_schedule(name, v_placement(p), m, _rule(pattern, p, m), costs)


@lru_cache(maxsize=64)
def _rule(pattern: VSchedulePattern, p: int, m: int) -> GreedyRule:
    """Keep to the pattern's order; while its next pass cannot start, take an I out of turn, else a W."""
    return GreedyRule(pattern.cap, np.concatenate([_order(pattern.times(rank, p), p, m) for rank in range(p)]))


def _order(passes: list[tuple[int, int, int]], p: int, m: int) -> Ints:
    """Action numbers of a rank's passes over m microbatches in order of time, one pattern every six units."""
    time, code, stage = np.array(passes).T
    repeated = (time[:, None] + INTERVAL * np.arange(m)).ravel()
    chosen = np.argsort(repeated, kind="stable") // m
    return np.asarray((np.where(code == F, 0, 2 * p) + stage)[chosen])


PRODUCERS = (
    Producer(
        "v-half",
        v_half,
        Promise("2024-05", lambda p, _m: 2 * ((p + 2) // 2), lambda p, _m: 3 * p - (4 if p % 2 else 7)),
        partial(_first_up, _v_half),
        chunks=2,
        names=Names(pattern=r"v[- ]?half|half-?v\b"),
        beginnings=partial(_beginnings, "v-half", _v_half),
    ),
    Producer(
        "v-min",
        v_min,
        Promise("2024-05", lambda p, _m: 2 * ((p + 4) // 3), lambda p, _m: 4 * p - 5),
        partial(_first_up, _v_min),
        chunks=2,
        names=Names(pattern=r"v[- ]?min\b|min-?v\b"),
        beginnings=partial(_beginnings, "v-min", _v_min),
    ),
)
