"""Ranks compared: which part of their communication is transfer, and which is waiting for each other.

A collective's kernel runs from the arrival of its own rank until all ranks are done, so the rank that arrives last
shows the cost: over the ranks of a collective, the least duration is its cost, and the rest of each is waiting. Clocks
of ranks differ; a collective ends for all its ranks together, which tells the difference.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from simpar.dataclass import dataclass
from simpar.diagnosis.traffic import MESSAGE, Key, RankTraffic
from simpar.units import NS_PER_S, Floats

MOST_SKEWED = 20


@dataclass(frozen=True)
class Skewed:
    """A collective in which ranks waited: its identity, the last rank, its cost in s and the total waiting in s.

    ``number`` counts the collectives of its group and kind from 1, or is the group's own number; ``step`` is the
    profiler's mark.
    """

    axis: str
    kind: str
    members: tuple[int, ...]
    step: str
    number: int
    last_rank: int
    cost_s: float
    waited_s: float


@dataclass(frozen=True)
class Compared:
    """Ranks compared: their traffic with costs, who waited for whom in ns, and clocks.

    ``waited_ns[waiting, last]`` is float64. ``offset_ns`` is subtracted from each rank's clock to get the first rank's;
    ``drift_ns`` is the remaining difference of ends (median). ``compared`` of ``total`` collectives could be compared.
    ``skewed`` are those with the most waiting; their ``last_rank`` is an index of ranks.
    """

    traffic: tuple[RankTraffic, ...]
    waited_ns: Floats
    offset_ns: tuple[int, ...]
    drift_ns: int
    compared: int
    total: int
    skewed: tuple[Skewed, ...] = ()


def compare_ranks(ranks: Sequence[RankTraffic]) -> Compared:
    """The cost of every collective, and who waited for whom."""
    meetings: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for rank, traffic in enumerate(ranks):
        for row, key in enumerate(traffic.key):
            if key is not None:
                meetings[key].append((rank, row))
    met = [each for each in meetings.values() if len({rank for rank, _ in each}) == len(each) > 1]
    offsets, drift = _clocks(ranks, met)
    costs, lengths = ([np.array(traffic.duration_ns) for traffic in ranks] for _ in range(2))
    waited = np.zeros((len(ranks), len(ranks)))
    skew = list[tuple[int, int, int, tuple[int, int]]]()
    quickest = _quickest(ranks, offsets, met)
    for each in met:
        least, last, ends = _meeting(ranks, offsets, quickest, each)
        waits = [max(length - least, 0) for length in ends]
        for (rank, row), length, wait in zip(each, ends, waits, strict=True):
            costs[rank][row], lengths[rank][row] = min(least, length), length
            waited[rank, last] += wait
        skew.append((sum(waits), least, last, each[0]))
    columns = zip(ranks, costs, lengths, strict=True)
    return Compared(
        tuple(replace(traffic, cost_ns=cost, duration_ns=length) for traffic, cost, length in columns),
        waited, offsets, drift, sum(map(len, met)), sum(map(len, ranks)),
        tuple(_skewed(ranks, *each) for each in sorted(skew, key=lambda one: -one[0])[:MOST_SKEWED] if each[0]),
    )  # fmt: skip


_Place = tuple[int, int]
"""The index of a rank among those compared, and of a row of its traffic."""


def _meeting(
    ranks: Sequence[RankTraffic],
    offset_ns: Sequence[int],
    quickest: Mapping[tuple[object, ...], int],
    places: Sequence[_Place],
) -> tuple[int, int, list[int]]:
    """The cost of a collective in ns, the rank that came last, and how long each rank was in it.

    Spans of gloo's messages end when somebody waits for them, which may be long after the transfer. Such a message
    costs as much as the quickest one between its ends, and its sender is done with it by then.
    """
    lengths = [int(ranks[rank].duration_ns[row]) for rank, row in places]
    rank, row = places[0]
    least = quickest.get((ranks[rank].key[row] or ())[:3])
    if least is None:
        return min(lengths), places[lengths.index(min(lengths))][0], lengths
    begins = _begins(ranks, offset_ns, places)
    there = max(begins) + least
    ends = [
        min(there - begin, length) if ranks[rank].posted[row] else length
        for (rank, row), begin, length in zip(places, begins, lengths, strict=True)
    ]
    return least, places[begins.index(max(begins))][0], ends


def _quickest(
    ranks: Sequence[RankTraffic], offset_ns: Sequence[int], met: Sequence[Sequence[_Place]]
) -> dict[tuple[object, ...], int]:
    """For two ranks, the least ns from the presence of both ends until one of them is done, for gloo's messages."""
    result: dict[tuple[object, ...], int] = {}
    for places in met:
        if not any(ranks[rank].posted[row] for rank, row in places):
            continue
        begins = _begins(ranks, offset_ns, places)
        ends = [begin + int(ranks[rank].duration_ns[row]) for begin, (rank, row) in zip(begins, places, strict=True)]
        rank, row = places[0]
        pair = (ranks[rank].key[row] or ())[:3]
        if (took := min(ends) - max(begins)) > 0:  # otherwise it was sent before it was asked for
            result[pair] = min(result.get(pair, took), took)
    return result


def _begins(ranks: Sequence[RankTraffic], offset_ns: Sequence[int], places: Sequence[_Place]) -> list[int]:
    return [int(ranks[rank].start_ns[row]) - offset_ns[rank] for rank, row in places]


def _skewed(ranks: Sequence[RankTraffic], waited_ns: int, cost_ns: int, last: int, place: tuple[int, int]) -> Skewed:
    rank, row = place
    key = ranks[rank].key[row]
    assert key is not None, "matched by it"
    _, kind, members, step, number = key
    return Skewed(
        ranks[rank].axis[row], kind, members, step.strip(), number, last, cost_ns / NS_PER_S, waited_ns / NS_PER_S
    )


def _clocks(ranks: Sequence[RankTraffic], met: Sequence[Sequence[tuple[int, int]]]) -> tuple[tuple[int, ...], int]:
    """How far each clock is ahead of the first rank's, via ranks that meet, and the remaining differences.

    Ranks of one host that is also their device share a clock.
    """
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in met:
        if ranks[each[0][0]].kind[each[0][1]] == MESSAGE:
            continue  # a buffered message leaves its sender long before it arrives
        for (one, row), (other, row_other) in pairwise(each):
            ends[one, other].append(int(ranks[other].finish_ns[row_other] - ranks[one].finish_ns[row]))
    apart = {pair: int(np.median(offsets)) for pair, offsets in ends.items()}
    first: dict[str, int] = {}
    for rank, traffic in enumerate(ranks):
        if traffic.clock and first.setdefault(traffic.clock, rank) != rank:
            apart[first[traffic.clock], rank] = 0
    offset = {0: 0}
    queue = [0]
    while queue:
        here = queue.pop(0)
        for (one, other), ns in sorted(apart.items()):
            if one == here and other not in offset:
                offset[other] = offset[here] + ns
                queue.append(other)
            elif other == here and one not in offset:
                offset[one] = offset[here] - ns
                queue.append(one)
    left = [
        abs(ns - offset[other] + offset[one])
        for (one, other), offsets in ends.items()
        if one in offset and other in offset
        for ns in offsets
    ]
    return tuple(offset.get(rank, 0) for rank in range(len(ranks))), int(np.median(left)) if left else 0
