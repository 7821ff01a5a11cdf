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

from simpar.errors import UserError
from simpar.plan.schedules.actions import F, I, Schedule, W, rank_actions

Costs = tuple[float, float, float]
Queues = dict[int, deque[tuple[float, int]]]
UNIT: Costs = (1.0, 1.0, 1.0)
Chooser = Callable[["RankState", float], "tuple[int, int] | None"]


def zb_h1(p: int, m: int, vpp: int = 1, *, costs: Costs = UNIT) -> Schedule:
    """ZB-H1: at most p forwards in flight, the memory of 1F1B; bubble (p - 1)(F + I - W) where I >= W."""
    return _zero_bubble("zb-h1", p, m, vpp, p, costs)


def zb_h2(p: int, m: int, vpp: int = 1, *, costs: Costs = UNIT) -> Schedule:
    """ZB-H2: at most 2p - 1 forwards in flight; no rank waits within if F = I = W and m >= 2p - 1."""
    return _zero_bubble("zb-h2", p, m, vpp, 2 * p - 1, costs)


def _zero_bubble(name: str, p: int, m: int, vpp: int, cap: int, costs: Costs) -> Schedule:
    if vpp != 1:
        raise UserError(f"schedule {name}: vpp = {vpp}; allowed: 1 (zb-v has two chunks a rank)")
    return list_schedule(name, tuple(range(p)), m, lambda: _take_turns(cap), costs)


def _take_turns(cap: int) -> Chooser:
    def choose(rank: RankState, now: float) -> tuple[int, int] | None:
        forward = rank.ready(F, now) if rank.in_flight < cap else None
        gradient = rank.ready(I, now)
        if forward and gradient:
            return gradient if rank.rows and rank.rows[-1][0] == F else forward
        return forward or gradient or rank.ready(W, now)

    return choose


@dataclass
class RankState:
    """A rank in the simulation. ``forwards`` and ``gradients`` are messages: stage -> (arrival, microbatch).

    ``weights`` are the weight gradients it owes, (stage, microbatch); ``in_flight`` counts forwards whose W
    has not started; ``rows`` is its table so far. Stages stand last one first.
    """

    number: int
    forwards: Queues
    gradients: Queues
    weights: deque[tuple[int, int]] = field(default_factory=deque)
    in_flight: int = 0
    rows: list[tuple[int, int, int]] = field(default_factory=list)

    def can(self, code: int, stage: int, now: float) -> bool:
        """Whether the next F or I of a stage has its input, or a W of it is the next one owed."""
        if code == W:
            return bool(self.weights) and self.weights[0][0] == stage
        queue = (self.forwards if code == F else self.gradients)[stage]
        return bool(queue) and queue[0][0] <= now

    def ready(self, code: int, now: float) -> tuple[int, int] | None:
        """The action of a kind that can start now; of several, the one of the last stage."""
        if code == W:
            return (W, self.weights[0][0]) if self.weights else None
        for stage, queue in (self.forwards if code == F else self.gradients).items():
            if queue and queue[0][0] <= now:
                return code, stage
        return None

    def take(self, code: int, stage: int) -> int:
        """Start an action and return its microbatch."""
        if code == F:
            self.in_flight += 1
            microbatch = self.forwards[stage].popleft()[1]
        elif code == I:
            microbatch = self.gradients[stage].popleft()[1]
            self.weights.append((stage, microbatch))
        else:
            self.in_flight -= 1
            microbatch = self.weights.popleft()[1]
        self.rows.append((code, stage, microbatch))
        return microbatch

    def next_arrival(self, now: float) -> float | None:
        """When the next message that is on its way arrives, None without one."""
        queues = (*self.forwards.values(), *self.gradients.values())
        return min((queue[0][0] for queue in queues if queue and queue[0][0] > now), default=None)


def list_schedule(
    name: str, rank_of_stage: tuple[int, ...], m: int, make_chooser: Callable[[], Chooser], costs: Costs
) -> Schedule:
    """The table of ``m`` microbatches with durations ``costs`` of F, I and W of one stage.

    A table made for equal durations often does better than one made for the true ones, whose choices are
    greedy: both are tried, the quicker one is returned. Raises UserError for a duration that is not positive.
    """
    if min(costs) <= 0:
        raise UserError(f"schedule {name}: durations of F, I, W = {costs}; allowed: above 0")
    ranks, makespan = simulate(rank_of_stage, m, make_chooser(), UNIT)
    if len(set(costs)) > 1:
        _, makespan = simulate(rank_of_stage, m, _replay(ranks), costs)
        others, other_makespan = simulate(rank_of_stage, m, make_chooser(), costs)
        ranks = others if other_makespan < makespan else ranks
    return Schedule(name, m, rank_of_stage, tuple(rank_actions(rank.rows) for rank in ranks))


def simulate(
    rank_of_stage: tuple[int, ...], m: int, choose: Chooser, costs: Costs
) -> tuple[list[RankState], float]:
    """Run the pipeline; the ranks at the end, with their tables, and the makespan."""
    ranks = _idle_ranks(rank_of_stage)
    ranks[rank_of_stage[0]].forwards[0].extend((0.0, microbatch) for microbatch in range(m))
    events, asleep, makespan = [(0.0, rank_of_stage[0])], set(range(len(ranks))) - {rank_of_stage[0]}, 0.0
    while events:
        now, number = heapq.heappop(events)
        rank = ranks[number]
        action = choose(rank, now)
        if action is None:
            wake = rank.next_arrival(now)
            if wake is None:
                asleep.add(number)
            else:
                heapq.heappush(events, (wake, number))
            continue
        code, stage = action
        microbatch = rank.take(code, stage)
        finish = now + costs[0 if code == F else 1 if code == I else 2]
        makespan = max(makespan, finish)
        heapq.heappush(events, (finish, number))
        receiver = _send(ranks, rank_of_stage, action, (finish, microbatch))
        if receiver in asleep:
            asleep.discard(receiver)
            heapq.heappush(events, (finish, receiver))
    assert sum(len(rank.rows) for rank in ranks) == 3 * m * len(rank_of_stage), "a chooser waits for ever"
    return ranks, makespan


def _idle_ranks(rank_of_stage: tuple[int, ...]) -> list[RankState]:
    last = len(rank_of_stage) - 1
    held = [[s for s in range(last, -1, -1) if rank_of_stage[s] == r] for r in range(max(rank_of_stage) + 1)]
    return [
        RankState(r, {s: deque() for s in mine}, {s: deque() for s in mine}) for r, mine in enumerate(held)
    ]


def _send(
    ranks: list[RankState],
    rank_of_stage: tuple[int, ...],
    action: tuple[int, int],
    message: tuple[float, int],
) -> int:
    """Put an action's result where it is needed; the rank that gets it, or -1."""
    code, stage = action
    if code == F and stage + 1 < len(rank_of_stage):
        receiver = rank_of_stage[stage + 1]
        ranks[receiver].forwards[stage + 1].append(message)
        return receiver
    target = stage if code == F else stage - 1
    if code == W or target < 0:
        return -1
    receiver = rank_of_stage[target]
    ranks[receiver].gradients[target].append(message)
    return receiver


def _replay(ranks: list[RankState]) -> Chooser:
    """The chooser that repeats finished tables."""
    rows = [rank.rows for rank in ranks]

    def choose(rank: RankState, now: float) -> tuple[int, int] | None:
        mine = rows[rank.number]
        if len(rank.rows) == len(mine):
            return None
        code, stage, _ = mine[len(rank.rows)]
        return (code, stage) if rank.can(code, stage, now) else None

    return choose
