"""An encoder in the bubbles of a pipeline: every pipeline rank holds all of it, and runs it for some microbatches.

The model behind the encoder keeps the order of its schedule. Passes of the encoder stand where a rank would wait:
forwards before the first microbatch enters and in bubbles, each in time for the forward that reads its output;
backwards in bubbles behind the gradient that they wait for, and behind the last pass of the rank [Optimus, Feng et al.
2024, arXiv 2408.03505: encoder states on every pipeline rank, microbatches divided among the ranks, forwards before and
backwards behind the pipeline but for those that fit in its bubbles]. Every rank runs at least one forward before the
first microbatch enters, and its last backward behind all its other passes, so that ranks meet in the same order where
they gather the encoder's parameters and sum its gradients.
"""

from bisect import bisect_left
from dataclasses import field, replace
from itertools import pairwise
from operator import attrgetter

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.schedules.actions import B, F, RankActions, Schedule, W, columns, waits_for
from simpar.units import Ints

EncoderCosts = tuple[int, int, tuple[tuple[int, int, int, int], ...]]
"""Nanoseconds of the encoder's forward and backward, and of F, B, I and W of every virtual stage behind it."""


@dataclass(frozen=True)
class _EncoderPass:
    """A pass of the encoder (code F or B) for a microbatch, and when it begins and ends."""

    code: int
    microbatch: int
    start_ns: int
    end_ns: int


@dataclass
class _Rank:
    """A rank's ``bubbles`` [begin, end] in time order, the end of its last other pass, and the encoder's passes."""

    bubbles: list[list[int]]
    ends_ns: int
    passes: list[_EncoderPass] = field(default_factory=list)

    def first_start(self, took_ns: int, *, since_ns: int, until_ns: int | None = None) -> int | None:
        """The earliest time at which a pass fits in a bubble, not before one time and done by the other."""
        for begin, end in self.bubbles:
            start = max(begin, since_ns)
            if start + took_ns <= (end if until_ns is None else min(end, until_ns)):
                return start
        return None

    def put(self, code: int, microbatch: int, start_ns: int, took_ns: int) -> None:
        """Place a pass; what was left of its bubble before it stays empty."""
        end_ns = start_ns + took_ns
        self.passes.append(_EncoderPass(code, microbatch, start_ns, end_ns))
        for bubble in self.bubbles:
            if bubble[0] <= start_ns and end_ns <= bubble[1]:
                bubble[0] = end_ns
                break


@dataclass(frozen=True)
class _Timed:
    """A table's actions, rank after rank, with the times at which they run one by one: columns int64[num_actions].

    ``ends`` int64[ranks + 1] are where the actions of each rank begin. Messages take no time.
    """

    table: Schedule
    code: Ints
    stage: Ints
    microbatch: Ints
    ends: Ints
    start_ns: Ints
    took_ns: Ints

    @staticmethod
    def of(table: Schedule, behind: tuple[tuple[int, int, int, int], ...]) -> "_Timed":
        """The table with durations by virtual stage and code."""
        parts = zip(*(table.arrays(rank) for rank in range(table.num_ranks)), strict=True)
        code, stage, microbatch = (np.concatenate(each).astype(np.int64) for each in parts)
        ends = np.cumsum([0, *(len(each) for each in table.ranks)])
        took = np.array(behind, dtype=np.int64)[stage, code]
        return _Timed(table, code, stage, microbatch, ends, _finishes(table, took, ends) - took, took)

    def at_entry(self, *, backward: bool) -> Ints:
        """By microbatch, when the first stage's forward begins, or when its gradient is there: int64[microbatches]."""
        kind = (self.code != F) & (self.code != W) if backward else self.code == F
        mine = (self.stage == 0) & kind
        result = np.empty(self.table.num_microbatches, dtype=np.int64)
        result[self.microbatch[mine]] = self.start_ns[mine] + backward * self.took_ns[mine]
        return result

    def ranks(self, least_ns: int, late_ns: int) -> list[_Rank]:
        """Every rank with its bubbles of at least ``least_ns``, where the pipeline begins so late in the step."""
        result = []
        for a, b in pairwise(self.ends.tolist()):
            start, finish = self.start_ns[a:b] + late_ns, self.start_ns[a:b] + self.took_ns[a:b] + late_ns
            begin = np.append(0, finish[:-1])
            long = start - begin >= max(least_ns, 1)
            result.append(_Rank(np.stack([begin[long], start[long]], axis=1).tolist(), int(finish[-1])))
        return result


def put_encoder_in_bubbles(table: Schedule, costs: EncoderCosts) -> Schedule:
    """The table with an encoder in front as stage 0, which runs on a rank that depends on the microbatch.

    The pipeline begins some forwards of the encoder late, as few as leave a place for all the others, or more while the
    step would end earlier; ``table`` has at least as many microbatches as ranks. Backwards go where their forward went.
    """
    timed = _Timed.of(table, costs[2])
    most = -(-table.num_microbatches // table.num_ranks)
    fewest = 1 + bisect_left(range(1, most), True, key=lambda share: _forwards(timed, costs, share) is not None)
    chosen = _forwards(timed, costs, fewest)
    for share in range(fewest + 1, most + 1):
        other = _forwards(timed, costs, share)
        if chosen is None or other is None or other[0] >= chosen[0]:
            break
        chosen, fewest = other, share
    assert chosen is not None, "before the first microbatch enters, there is room for each rank's share of all of them"
    (_, ranks), late_ns, backward_ns = chosen, fewest * costs[0], costs[1]
    ready = timed.at_entry(backward=True) + late_ns
    for rank in ranks:
        _put_backwards(rank, ready, backward_ns)
    owner = np.empty(table.num_microbatches, dtype=np.int64)
    for number, rank in enumerate(ranks):
        owner[[each.microbatch for each in rank.passes]] = number
    return replace(
        table,
        rank_of_stage=(table.rank_of_stage[0], *table.rank_of_stage),
        ranks=tuple(_rows(timed, number, rank, late_ns) for number, rank in enumerate(ranks)),
        ranks_of_first=tuple(owner.tolist()),
        waiting=_most_waiting(timed, ranks, ready, late_ns),
    )


def _finishes(table: Schedule, took_ns: Ints, ends: Ints) -> Ints:
    """When every action ends, each rank running its own in order as soon as they can: int64[num_actions]."""
    needs, durations, bounds = waits_for(table).tolist(), took_ns.tolist(), ends.tolist()
    finish, position, free = [-1] * len(durations), bounds[:-1], [0] * table.num_ranks
    sleepers, awake = dict[int, list[int]](), list(range(table.num_ranks))
    while awake:
        rank = awake.pop()
        while (at := position[rank]) < bounds[rank + 1]:
            need = needs[at]
            if need >= 0 and finish[need] < 0:
                sleepers.setdefault(need, []).append(rank)
                break
            free[rank] = finish[at] = max(free[rank], finish[need] if need >= 0 else 0) + durations[at]
            awake += sleepers.pop(at, [])
            position[rank] = at + 1
    return np.array(finish, dtype=np.int64)


def _forwards(timed: _Timed, costs: EncoderCosts, share: int) -> tuple[int, list[_Rank]] | None:
    """Ranks with all forwards in place where the pipeline begins ``share`` of them late; None where one has no place.

    Before them, the time by which ranks are done if none of their backwards finds a bubble. The first forward goes to
    the first rank and so on; each later one where, with its backwards, a rank is done first.
    """
    forward_ns, backward_ns, _ = costs
    enters, ready = (timed.at_entry(backward=way) + share * forward_ns for way in (False, True))
    ranks = timed.ranks(min(forward_ns, backward_ns), share * forward_ns)
    done = [rank.ends_ns for rank in ranks]  # with all backwards behind the last pass
    for microbatch, (until_ns, ready_ns) in enumerate(zip(enters.tolist(), ready.tolist(), strict=True)):
        options = []
        for number, rank in enumerate(ranks):
            start = rank.first_start(forward_ns, since_ns=0, until_ns=until_ns)
            if start is not None and (microbatch >= len(ranks) or number == microbatch):
                options.append((max(done[number], ready_ns) + backward_ns, start, number))
        if not options:
            return None
        done_ns, start, number = min(options)
        done[number] = done_ns
        ranks[number].put(F, microbatch, start, forward_ns)
    return max(done), ranks


def _put_backwards(rank: _Rank, ready_ns: Ints, took_ns: int) -> None:
    """Place a rank's backwards in the order of their gradients, the last behind all its other passes."""
    mine = sorted((each.microbatch for each in rank.passes), key=lambda one: (int(ready_ns[one]), one))
    end_ns = rank.ends_ns
    for microbatch in mine:
        since_ns = int(ready_ns[microbatch])
        start = rank.first_start(took_ns, since_ns=since_ns) if microbatch != mine[-1] else None
        if start is None:
            start = max(end_ns, since_ns)
            end_ns = start + took_ns
        rank.put(B, microbatch, start, took_ns)


def _rows(timed: _Timed, number: int, rank: _Rank, late_ns: int) -> RankActions:
    """A rank's actions in the order of their times; stages behind the encoder have the next number."""
    own = slice(*timed.ends[number : number + 2].tolist())
    added = np.array([(each.code, 0, each.microbatch, each.start_ns) for each in rank.passes], dtype=np.int64).T
    kept = np.stack([timed.code, timed.stage + 1, timed.microbatch, timed.start_ns + late_ns])[:, own]
    every = np.concatenate([added, kept], axis=1)
    behind = np.repeat([0, 1], [added.shape[1], kept.shape[1]])
    # at one moment: what ends there before what begins, backwards of the encoder behind the last pass
    ends = every[3] + np.append([each.end_ns - each.start_ns for each in rank.passes], timed.took_ns[own])
    order = np.lexsort([behind ^ (every[3] >= rank.ends_ns), ends, every[3]])
    return columns(*every[:3, order])


def _most_waiting(timed: _Timed, ranks: list[_Rank], ready_ns: Ints, late_ns: int) -> tuple[int, ...]:
    """By rank, the most outputs of the encoder that wait there for the first stage, and gradients for the encoder."""
    enters, first = timed.at_entry(backward=False) + late_ns, timed.table.rank_of_stage[0]
    changes: list[list[tuple[int, int]]] = [[] for _ in ranks]
    for number, rank in enumerate(ranks):
        for each in sorted(rank.passes, key=attrgetter("start_ns")):
            if each.code == F:
                changes[first] += [(each.end_ns, 1), (int(enters[each.microbatch]), -1)]
            else:
                changes[number] += [(int(ready_ns[each.microbatch]), 1), (each.start_ns, -1)]
    # what comes at a moment is there before anything goes
    ordered = (sorted(each, key=lambda one: (one[0], -one[1])) for each in changes)
    return tuple(int(np.cumsum([change for _, change in each]).max(initial=0)) for each in ordered)
