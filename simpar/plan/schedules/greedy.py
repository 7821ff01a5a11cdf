"""Greedy list scheduling; ZB-H1 and ZB-H2, one rule with two memory caps [Qi et al., arXiv 2401.10241].

A backward is split into I (input gradient) and W (weight gradient). The pipeline is simulated, messages
taking no time; each rank chooses as it goes, and its choices are the table. A chooser is given the state of a
rank and the time and names an action that can start now, or None to wait.

In ZB-H1 and ZB-H2, forwards (while fewer than the cap are in flight) and input gradients take turns; a weight
gradient runs when neither can. The cap is the same on every rank: a rank further down holds back weight
gradients instead.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from simpar.errors import UserError
from simpar.plan.schedules.actions import F, I, Schedule, W, rank_actions

Costs = tuple[float, float, float]
Queue = deque[tuple[float, int]]
UNIT: Costs = (1.0, 1.0, 1.0)
Pass = tuple[int, int]
Chooser = Callable[["RankState", float], "Pass | None"]
MakeChooser = Callable[[], Chooser]
Table = tuple[tuple[tuple[int, int, int], ...], ...]


def zb_h1(p: int, m: int, vpp: int = 1, *, costs: Costs = UNIT) -> Schedule:
    """ZB-H1: at most p forwards in flight, the memory of 1F1B; bubble (p - 1)(F + I - W) where I >= W."""
    return _zero_bubble("zb-h1", p, m, vpp, p, costs)


def zb_h2(p: int, m: int, vpp: int = 1, *, costs: Costs = UNIT) -> Schedule:
    """ZB-H2: at most 2p - 1 forwards in flight; no rank waits within if F = I = W and m >= 2p - 1."""
    return _zero_bubble("zb-h2", p, m, vpp, 2 * p - 1, costs)


def _zero_bubble(name: str, p: int, m: int, vpp: int, cap: int, costs: Costs) -> Schedule:
    if vpp != 1:
        raise UserError(f"schedule {name}: vpp = {vpp}; allowed: 1 (zb-v has two chunks a rank)")
    return list_schedule(name, tuple(range(p)), m, _take_turns(cap), costs)


@lru_cache(maxsize=256)
def _take_turns(cap: int) -> MakeChooser:
    def choose(rank: RankState, now: float) -> Pass | None:
        forward = rank.ready(F, now) if rank.in_flight < cap else None
        gradient = rank.ready(I, now)
        if forward and gradient:
            return gradient if rank.rows and rank.rows[-1][0] == F else forward
        return forward or gradient or rank.owed()

    return lambda: choose


@dataclass(slots=True)
class RankState:
    """A rank in the simulation. ``forwards`` and ``gradients`` are messages: stage -> (arrival, microbatch).

    ``weights`` are the weight gradients it owes, (stage, microbatch); ``in_flight`` counts forwards whose W
    has not started; ``rows`` is its table so far. Stages stand last one first.
    """

    number: int
    forwards: dict[int, Queue]
    gradients: dict[int, Queue]
    weights: deque[tuple[int, int]] = field(default_factory=deque)
    in_flight: int = 0
    rows: list[tuple[int, int, int]] = field(default_factory=list)

    def ready(self, code: int, now: float) -> Pass | None:
        """The F or I that can start now; of several, the one of the last stage."""
        for stage, queue in (self.forwards if code == F else self.gradients).items():
            if queue and queue[0][0] <= now:
                return code, stage
        return None

    def owed(self) -> Pass | None:
        """The weight gradient that can start now."""
        return (W, self.weights[0][0]) if self.weights else None

    def next_arrival(self, now: float) -> float | None:
        """When the next message that is on its way arrives, None without one."""
        queues = (*self.forwards.values(), *self.gradients.values())
        return min((queue[0][0] for queue in queues if queue and queue[0][0] > now), default=None)


def list_schedule(
    name: str, rank_of_stage: tuple[int, ...], m: int, make_chooser: MakeChooser, costs: Costs
) -> Schedule:
    """The table of ``m`` microbatches with durations ``costs`` of F, I and W of one stage.

    A table made for equal durations often does better than one made for the true ones, whose choices are
    greedy: both are tried, the quicker one is returned. ``make_chooser`` is remembered by identity. Raises UserError
    for a duration that is not positive.
    """
    if min(costs) <= 0:
        raise UserError(f"schedule {name}: durations of F, I, W = {costs}; allowed: above 0")
    table = _even_table(rank_of_stage, m, make_chooser)
    if len(set(costs)) > 1:
        other, quickest = simulate(rank_of_stage, m, make_chooser(), costs)
        table = other if quickest < makespan(table, len(rank_of_stage), m, costs) else table
    return Schedule(name, m, rank_of_stage, tuple(rank_actions(rows) for rows in table))


@lru_cache(maxsize=64)
def _even_table(rank_of_stage: tuple[int, ...], m: int, make_chooser: MakeChooser) -> Table:
    """The table for equal durations, the same for all costs."""
    return simulate(rank_of_stage, m, make_chooser(), UNIT)[0]


def simulate(rank_of_stage: tuple[int, ...], m: int, choose: Chooser, costs: Costs) -> tuple[Table, float]:
    """Run the pipeline; every rank's table, and the makespan."""
    ranks, targets = _idle_ranks(rank_of_stage)
    ranks[rank_of_stage[0]].forwards[0].extend((0.0, microbatch) for microbatch in range(m))
    events, asleep, now = [(0.0, rank_of_stage[0])], set(range(len(ranks))) - {rank_of_stage[0]}, 0.0
    seconds = {F: costs[0], I: costs[1], W: costs[2]}
    push, pop = heapq.heappush, heapq.heappop
    while events:
        now, number = pop(events)
        rank = ranks[number]
        action = choose(rank, now)
        if action is None:
            wake = rank.next_arrival(now)
            if wake is None:
                asleep.add(number)
            else:
                push(events, (wake, number))
            continue
        code, stage = action
        if code == F:
            rank.in_flight += 1
            microbatch = rank.forwards[stage].popleft()[1]
        elif code == I:
            microbatch = rank.gradients[stage].popleft()[1]
            rank.weights.append((stage, microbatch))
        else:
            rank.in_flight -= 1
            microbatch = rank.weights.popleft()[1]
        rank.rows.append((code, stage, microbatch))
        finish = now + seconds[code]
        push(events, (finish, number))
        if code != W and action in targets:
            receiver, queue = targets[action]
            queue.append((finish, microbatch))
            if receiver in asleep:
                asleep.discard(receiver)
                push(events, (finish, receiver))
    assert sum(len(rank.rows) for rank in ranks) == 3 * m * len(rank_of_stage), "a chooser waits for ever"
    return tuple(tuple(rank.rows) for rank in ranks), now


def _idle_ranks(
    rank_of_stage: tuple[int, ...],
) -> tuple[list[RankState], dict[Pass, tuple[int, Queue]]]:
    """Ranks before they start, and where the result of an F or I of a stage goes: (rank, its queue)."""
    last = len(rank_of_stage) - 1
    held = [[s for s in range(last, -1, -1) if rank_of_stage[s] == r] for r in range(max(rank_of_stage) + 1)]
    ranks = [
        RankState(r, {s: deque() for s in mine}, {s: deque() for s in mine}) for r, mine in enumerate(held)
    ]
    targets: dict[Pass, tuple[int, Queue]] = {}
    for stage, rank in enumerate(rank_of_stage):
        if stage < last:
            targets[F, stage] = rank_of_stage[stage + 1], ranks[rank_of_stage[stage + 1]].forwards[stage + 1]
        else:
            targets[F, stage] = rank, ranks[rank].gradients[stage]
        if stage:
            before = rank_of_stage[stage - 1]
            targets[I, stage] = before, ranks[before].gradients[stage - 1]
    return ranks, targets


def makespan(table: Table, num_stages: int, m: int, costs: Costs) -> float:
    """When a table of F, I and W ends, every rank as early as its inputs and its order let it."""
    done: list[list[list[float]]] = [[[-1.0] * m for _ in range(num_stages)] for _ in (F, I)]
    position, clock = [0] * len(table), [0.0] * len(table)
    sleepers: dict[tuple[int, int, int], int] = {}
    awake, last = list(range(len(table))), num_stages - 1
    forward, gradient, weight = costs
    while awake:
        rank = awake.pop()
        rows, now = table[rank], clock[rank]
        for at in range(position[rank], len(rows)):
            code, stage, microbatch = rows[at]
            if code == W:
                now += weight
                continue
            source = (0, stage - 1) if code == F else (1, stage + 1) if stage < last else (0, stage)
            arrival = done[source[0]][source[1]][microbatch] if source[1] >= 0 else 0.0
            if arrival < 0:
                sleepers[*source, microbatch] = rank
                position[rank], clock[rank] = at, now
                break
            kind = 0 if code == F else 1
            now = max(now, arrival) + (gradient if kind else forward)
            done[kind][stage][microbatch] = now
            sleeper = sleepers.pop((kind, stage, microbatch), None)
            if sleeper is not None and sleeper != rank:
                awake.append(sleeper)
        else:
            position[rank], clock[rank] = len(rows), now
    return max(clock)
