"""Greedy list scheduling; ZB-H1 and ZB-H2, one rule with two memory caps [Qi et al., arXiv 2401.10241].

A backward is split into I (input gradient) and W (weight gradient). The pipeline is simulated with messages that take
no time; each rank chooses its actions as it goes, and its choices are the table. A rule gets the state of the pipeline,
a rank and the time, and names an action that can start now, or none: the rank then waits.

In ZB-H1 and ZB-H2, forwards (while fewer than the cap are in flight) and input gradients take turns; a weight
gradient runs when neither can. The cap is the same on every rank: a rank further down holds back weight
gradients instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import field
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.native import NativeLibrary, pointers
from simpar.plan.schedules.actions import F, I, Ints, RankActions, Schedule, W, columns
from simpar.plan.schedules.producer import NONE, Costs, Moment, Names, Producer, Promise, moment

Floats = NDArray[np.float64]
UNIT: Costs = (1.0, 1.0, 1.0)
CODES = np.array([F, I, W])
"""Kinds of actions in the order of their numbers: kind 1 of stage s is action ``1 * stages + s``."""
NEVER = float("inf")
LIBRARY = NativeLibrary(Path(__file__).with_suffix(".c"), worth=100_000)  # actions


def zb_h1(p: int, m: int, *, costs: Costs = UNIT) -> Schedule:
    """ZB-H1: at most p forwards in flight, the memory of 1F1B; bubble (p - 1)(F + I - W) where I >= W."""
    return list_schedule("zb-h1", tuple(range(p)), m, _turns(p), costs)


def zb_h2(p: int, m: int, *, costs: Costs = UNIT) -> Schedule:
    """ZB-H2: at most 2p - 1 forwards in flight; no rank waits within if F = I = W and m >= 2p - 1."""
    return list_schedule("zb-h2", tuple(range(p)), m, _turns(2 * p - 1), costs)


@dataclass(frozen=True, eq=False)
class GreedyRule:
    """How ranks choose, with at most ``cap`` forwards in flight on each; caches know a rule by its identity.

    ``order`` int64[2 * stages * m] has the preferred order of forwards and input gradients, as numbers of actions, rank
    after rank; without an order the two take turns.
    """

    cap: int
    order: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@lru_cache(maxsize=256)
def _turns(cap: int) -> GreedyRule:
    return GreedyRule(cap)


class GreedyPipeline(NamedTuple):
    """A simulated pipeline of S stages and m microbatches; actions of one kind and stage run in order of microbatches.

    ``stages`` int64[S] are those of every rank, rank after rank, a rank's last stage first. Those of rank r begin at
    ``first[r]``, its actions at 3 m ``first[r]``. ``ready_at`` float64[2 S (m + 1)] is the time at which the input of
    an F or I arrives (index: action x (m + 1) + microbatch); ``done`` int64[3 S] counts started actions by number;
    ``actions`` int64[3 S m] is the table. By rank: forwards ``in_flight``; ``written`` and ``paid``, positions in the
    table up to which actions are written and every I has had its W; ``taken``, passes taken off the rule's order.
    ``early`` int64[S] counts the I of each stage that ran ahead of that order.
    """

    rank_of_stage: Ints
    stages: Ints
    first: Ints
    order: Ints
    ready_at: Floats
    done: Ints
    actions: Ints
    in_flight: Ints
    written: Ints
    paid: Ints
    taken: Ints
    early: Ints

    @staticmethod
    def idle(rank_of_stage: tuple[int, ...], m: int, order: Ints) -> GreedyPipeline:
        """A pipeline before it starts."""
        rank_of, num = np.array(rank_of_stage), len(rank_of_stage)
        stages = np.lexsort((-np.arange(num), rank_of))
        first = np.append(0, np.cumsum(np.bincount(rank_of)))
        ready_at = np.full(2 * num * (m + 1), NEVER)
        ready_at[:m] = 0.0
        done, actions, early = (np.zeros(size, dtype=np.int64) for size in (3 * num, 3 * num * m, num))
        begin, fresh = first[:-1], np.zeros(len(first) - 1, dtype=np.int64)
        return GreedyPipeline(
            rank_of, stages, first, order, ready_at, done, actions,
            fresh, 3 * m * begin, 3 * m * begin, 2 * m * begin, early,
        )  # fmt: skip


def list_schedule(name: str, rank_of_stage: tuple[int, ...], m: int, rule: GreedyRule, costs: Costs) -> Schedule:
    """The table of ``m`` microbatches with durations ``costs`` of F, I and W of one stage.

    Choices are greedy, so a table made for equal durations is often faster than one made for the true durations: both
    are tried, the faster one is returned. Raises UserError for a duration that is not positive.
    """
    if min(costs) <= 0:
        raise UserError(f"schedule {name}: durations of F, I, W = {costs}; allowed: above 0")
    actions = _even_table(rank_of_stage, m, rule)
    if len(set(costs)) > 1:
        forward, gradient, weight = map(float, costs)
        seconds, idle = (forward, gradient, weight), GreedyPipeline.idle(rank_of_stage, m, actions)
        other, quickest = simulate(rank_of_stage, m, rule, seconds)
        actions = other if quickest < makespan(idle, m, seconds) else actions
    ends = 3 * m * np.cumsum(np.bincount(rank_of_stage))
    return Schedule(name, m, rank_of_stage, _by_rank(actions, rank_of_stage, ends))


@lru_cache(maxsize=64)
def _even_table(rank_of_stage: tuple[int, ...], m: int, rule: GreedyRule) -> Ints:
    """The table for equal durations, as numbers of actions; it is the same whatever the costs."""
    return simulate(rank_of_stage, m, rule, UNIT)[0]


@lru_cache(maxsize=64)
def schedule_beginning(
    name: str, rank_of_stage: tuple[int, ...], m: int, rule: GreedyRule, costs: Costs, forwards: int
) -> Schedule:
    """The table for ``costs`` up to the time at which the first stage has begun ``forwards`` forwards."""
    pipeline = GreedyPipeline.idle(rank_of_stage, m, rule.order)
    run(pipeline, m, rule.cap, costs, forwards)
    begins = 3 * m * pipeline.first[:-1]
    parts = [pipeline.actions[slice(*ends)] for ends in zip(begins, pipeline.written, strict=True)]
    ranks = _by_rank(np.concatenate(parts), rank_of_stage, np.cumsum(pipeline.written - begins))
    return Schedule(name, m, rank_of_stage, ranks)


def simulate(rank_of_stage: tuple[int, ...], m: int, rule: GreedyRule, costs: Costs) -> tuple[Ints, float]:
    """Run the pipeline: (numbers of actions int64[3 stages m], rank after rank; makespan in units of ``costs``)."""
    pipeline = GreedyPipeline.idle(rank_of_stage, m, rule.order)
    ends = run(pipeline, m, rule.cap, costs, m + 1)
    assert (pipeline.done == m).all(), "a rule waits for ever"
    return pipeline.actions, ends


def _by_rank(actions: Ints, rank_of_stage: tuple[int, ...], ends: Ints) -> tuple[RankActions, ...]:
    """Columns of every rank of a table of action numbers; ``ends`` are the positions where the ranks' actions end."""
    num = len(rank_of_stage)
    microbatch = np.empty(len(actions), dtype=np.int32)
    counts = np.bincount(actions, minlength=3 * num)
    nth = np.arange(len(actions)) - np.repeat(np.cumsum(counts) - counts, counts)
    microbatch[np.argsort(actions.astype(np.int32), kind="stable")] = nth
    kind, stage = np.divmod(actions, num)
    parts = (
        np.split(column, ends[:-1]) for column in (CODES[kind].astype(np.int8), stage.astype(np.int32), microbatch)
    )
    return tuple(columns(*each) for each in zip(*parts, strict=True))


def _run(state: GreedyPipeline, m: int, cap: int, seconds: Costs, most: int) -> float:
    """:func:`run` in Python."""
    num, rank_of_stage, ready_at, done = len(state.stages), state.rank_of_stage, state.ready_at, state.done
    asleep = [True] * (len(state.first) - 1)
    asleep[rank_of_stage[0]] = False
    now, events = 0.0, [(0.0, rank_of_stage[0])]
    while len(events) and done[0] < most:
        now, rank = heappop(events)
        action = _choice(state, m, cap, rank, now)
        if action == NONE:
            wake = _next_arrival(state, m, rank, now)
            if wake < NEVER:
                heappush(events, (wake, rank))
            else:
                asleep[rank] = True
            continue
        kind = action // num
        if kind == 0:
            state.in_flight[rank] += 1
        elif kind == 2:
            state.in_flight[rank] -= 1
            state.paid[rank] += 1
        state.actions[state.written[rank]] = action
        state.written[rank] += 1
        finish = now + seconds[kind]
        heappush(events, (finish, rank))
        target = _target(action, num)
        if target != NONE:
            ready_at[target * (m + 1) + done[action]] = finish
            receiver = rank_of_stage[target % num]
            if asleep[receiver]:
                asleep[receiver] = False
                heappush(events, (finish, receiver))
        done[action] += 1
    return now


def _target(action: int, num: int) -> int:
    """The F or I whose input an action of ``num`` stages produces, or NONE."""
    if action < num:
        return action + 1 if action + 1 < num else 2 * num - 1
    return action - 1 if num < action < 2 * num else NONE


def _choice(state: GreedyPipeline, m: int, cap: int, rank: int, now: float) -> int:
    """The action that a rank starts now: an F or I by the rule, else the W that it has owed longest, else NONE."""
    ordered = len(state.order) > 0
    action = _in_order(state, m, cap, rank, now) if ordered else _in_turn(state, m, cap, rank, now)
    if action != NONE:
        return action
    num = len(state.stages)
    while state.paid[rank] < state.written[rank]:
        action = int(state.actions[state.paid[rank]])
        if num <= action < 2 * num:
            return action + num
        state.paid[rank] += 1
    return NONE


def _ready(state: GreedyPipeline, m: int, kind: int, rank: int, now: float) -> int:
    """The F or I (``kind`` 0 or 1) that can start now, or NONE; of several, the one of the last stage."""
    stages, done, ready_at = state.stages, state.done, state.ready_at
    for at in range(state.first[rank], state.first[rank + 1]):
        action = int(kind * len(stages) + stages[at])
        if ready_at[action * (m + 1) + done[action]] <= now:
            return action
    return NONE


def _next_arrival(state: GreedyPipeline, m: int, rank: int, now: float) -> float:
    """The time at which the next input that is on its way arrives; NEVER without any."""
    stages, done, ready_at, earliest = state.stages, state.done, state.ready_at, NEVER
    for at in range(state.first[rank], state.first[rank + 1]):
        for action in (stages[at], len(stages) + stages[at]):
            arrival = ready_at[action * (m + 1) + done[action]]
            if now < arrival < earliest:
                earliest = arrival
    return earliest


def _in_turn(state: GreedyPipeline, m: int, cap: int, rank: int, now: float) -> int:
    """F and I in turn: an I after an F, an F after anything else, as far as they can start; else NONE."""
    num, begun = len(state.stages), 3 * m * state.first[rank]
    gradient = _ready(state, m, 1, rank, now)
    after_forward = state.written[rank] > begun and state.actions[state.written[rank] - 1] < num
    if state.in_flight[rank] >= cap or (gradient != NONE and after_forward):
        return gradient
    forward = _ready(state, m, 0, rank, now)
    return gradient if forward == NONE else forward


def _in_order(state: GreedyPipeline, m: int, cap: int, rank: int, now: float) -> int:
    """The next pass of the rule's order; while that cannot start, an I out of turn; else NONE."""
    num, taken, early = len(state.stages), state.taken, state.early
    end, wanted = 2 * m * state.first[rank + 1], NONE
    while taken[rank] < end:
        wanted = state.order[taken[rank]]
        if wanted < num or early[wanted - num] == 0:
            break
        early[wanted - num] -= 1
        taken[rank] += 1
    if taken[rank] == end:
        return NONE
    there = state.ready_at[wanted * (m + 1) + state.done[wanted]] <= now
    if there and (wanted >= num or state.in_flight[rank] < cap):
        taken[rank] += 1
        return wanted
    gradient = _ready(state, m, 1, rank, now)
    if gradient != NONE:
        early[gradient - num] += 1
    return gradient


def _makespan(state: GreedyPipeline, m: int, seconds: Costs) -> float:
    """:func:`makespan` in Python."""
    num, ranks, order, ready_at, done = (
        len(state.stages),
        len(state.first) - 1,
        state.order,
        state.ready_at,
        state.done,
    )
    sleeper = [NONE] * len(ready_at)
    clock = [0.0] * ranks
    awake = list(range(ranks))
    while len(awake):
        rank = awake.pop()
        now, begin, end = clock[rank], state.written[rank], 3 * m * state.first[rank + 1]
        for at in range(begin, end):
            action = order[at]
            message = action * (m + 1) + done[action]
            if action < 2 * num:
                if ready_at[message] == NEVER:
                    sleeper[message] = rank
                    end = at
                    break
                now = max(now, ready_at[message])
            now += seconds[action // num]
            target = _target(action, num)
            if target != NONE:
                message = target * (m + 1) + done[action]
                ready_at[message] = now
                if sleeper[message] != NONE:
                    awake.append(sleeper[message])
            done[action] += 1
        state.written[rank], clock[rank] = end, now
    return max(clock)


class _Pipeline(ctypes.Structure):
    """The struct ``Pipeline`` of greedy.c: sizes, the cap, whether there is an order, and the columns."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_stages", "num_ranks", "m", "cap", "is_ordered")),
        *((name, ctypes.c_void_p) for name in GreedyPipeline._fields),
    )

    @staticmethod
    def of(state: GreedyPipeline, m: int, cap: int) -> _Pipeline:
        """The struct of a pipeline, whose columns must outlive it."""
        sizes = len(state.stages), len(state.first) - 1, m, cap, int(len(state.order) > 0)
        return _Pipeline(*sizes, *pointers(*state))


def run(state: GreedyPipeline, m: int, cap: int, seconds: Costs, most: int) -> float:
    """Run an idle pipeline by a rule and return the time at which it ends.

    It ends when no rank has anything left to do, or when the first stage has begun ``most`` forwards.
    """
    if library := LIBRARY.load_for(len(state.actions)):
        library.run.restype = ctypes.c_double
        given = _Pipeline.of(state, m, cap), (ctypes.c_double * 3)(*seconds)
        return _with_memory(library.run(ctypes.byref(given[0]), given[1], ctypes.c_int64(most)))
    return _on_lists(_run, state, m, cap, seconds, most)


def makespan(state: GreedyPipeline, m: int, seconds: Costs) -> float:
    """The time at which the order of an idle pipeline (a whole table) ends if every action starts when it can."""
    if library := LIBRARY.load_for(len(state.actions)):
        library.find_makespan.restype = ctypes.c_double
        given = _Pipeline.of(state, m, 0), (ctypes.c_double * 3)(*seconds)
        return _with_memory(library.find_makespan(ctypes.byref(given[0]), given[1]))
    return _on_lists(_makespan, state, m, seconds)


def _with_memory(ends: float) -> float:
    if ends < 0:
        raise MemoryError("a schedule's table needs more memory")
    return ends


def _on_lists(loop: Callable[..., float], state: GreedyPipeline, *rest: object) -> float:
    """What a loop gives on lists in place of columns, from which Python reads entries faster; columns are updated."""
    lists = GreedyPipeline(*(column.tolist() for column in state))
    result = loop(lists, *rest)
    for column, entries in zip(state, lists, strict=True):
        column[:] = entries
    return result


def _first_back(rank: int, p: int, _vpp: int, m: Ints) -> Moment:
    """Forwards that run before the first gradient can be back, however long passes take."""
    return moment([p - rank], 0, m)


PRODUCERS = (
    Producer(
        "zb-h1",
        zb_h1,
        Promise("2024-01", lambda p, _m: p, lambda p, _m: p - 1),
        _first_back,
        names=Names(hints=("zerobubble", "zb"), pattern=r"zb-?1p|zb-?h1|zbb|zero.?bubble|\bzb\b"),
    ),
    Producer(
        "zb-h2",
        zb_h2,
        Promise("2024-01", lambda p, _m: 2 * p - 1, lambda p, _m: p - 1),
        _first_back,
        names=Names(hints=("zerobubble", "zb"), pattern="zb-?2p|zb-?h2"),
    ),
)
