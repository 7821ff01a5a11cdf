"""An independent executor: runs an action table, with durations and a delay on every message.

Nothing here comes from the package but the table itself, so that the oracles are checked by a second mind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

Key = tuple[str, int, int]


@dataclass(frozen=True)
class Run:
    """Start and finish of every action, and for every rank the times at which it works."""

    start: Mapping[Key, float]
    finish: Mapping[Key, float]
    ranks: tuple[tuple[Key, ...], ...]

    @property
    def makespan(self) -> float:
        """From time 0 to the last finish."""
        return max(self.finish.values())

    def work(self, rank: int) -> float:
        """Time that a rank is busy."""
        spans = sorted({(self.start[key], self.finish[key]) for key in self.ranks[rank]})
        return sum(finish - start for start, finish in spans)

    def span(self, rank: int) -> float:
        """From a rank's first start to its last finish."""
        mine = self.ranks[rank]
        return max(self.finish[key] for key in mine) - min(self.start[key] for key in mine)

    def idle(self) -> float:
        """The most time that any rank waits within the makespan."""
        return max(self.makespan - self.work(rank) for rank in range(len(self.ranks)))

    def bubble_in_span(self) -> float:
        """The most time that any rank waits between its first start and its last finish."""
        return max(self.span(rank) - self.work(rank) for rank in range(len(self.ranks)))


def run_table(
    schedule: Any,
    f: float = 1,
    b: float = 1,
    w: float = 1,
    *,
    c: float = 0,
    pair: float | None = None,
    encoder: tuple[float, float] | None = None,
) -> Run:
    """Run every rank's list in order; a message takes ``c`` between different ranks and blocks nobody.

    ``pair`` is the duration of an overlapped forward and backward; None adds theirs up. Stage 0 may be an ``encoder``
    with a forward and a backward of its own durations.
    """
    rows = [_units(schedule, rank) for rank in range(schedule.num_ranks)]
    cost = {"F": f, "B": b + w, "I": b, "W": w}
    own = cost if encoder is None else dict(zip("FB", encoder, strict=True))
    start: dict[Key, float] = {}
    finish: dict[Key, float] = {}
    clock, position = [0.0] * len(rows), [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, units in enumerate(rows):
            while position[rank] < len(units):
                unit = units[position[rank]]
                ready = [_arrival(schedule, finish, key, rank, c) for key in unit]
                if None in ready:
                    break
                begin = max([clock[rank], *ready])
                took = sum(own[key[0]] if key[1] == 0 else cost[key[0]] for key in unit)
                if len(unit) > 1 and pair is not None:
                    took = pair
                for key in unit:
                    start[key], finish[key] = begin, begin + took
                clock[rank], position[rank], moved = begin + took, position[rank] + 1, True
    assert all(at == len(units) for at, units in zip(position, rows, strict=True)), "a rank waits for ever"
    return Run(start, finish, tuple(tuple(key for unit in units for key in unit) for units in rows))


def count_peaks(schedule: Any) -> list[int]:
    """Per rank the most forwards that still wait for the end of their backward, counted from its list."""
    peaks = []
    for actions in schedule.actions:
        held = most = 0
        for action in actions:
            held += {"F": 1, "B": -1, "I": 0, "W": -1}[action.kind]
            most = max(most, held)
        peaks.append(most)
    return peaks


@pytest.fixture(scope="session")
def execute() -> Callable[..., Run]:
    """The executor: ``execute(schedule, f, b, w, c=0, pair=None)``."""
    return run_table


@pytest.fixture(scope="session")
def peaks() -> Callable[[Any], list[int]]:
    """Peak activations of every rank, in chunks."""
    return count_peaks


def _units(schedule: Any, rank: int) -> list[list[Key]]:
    """Actions of a rank; an overlapped pair is one unit of two."""
    units: list[list[Key]] = []
    joined = False
    for action, overlap in zip(schedule.actions[rank], schedule.ranks[rank].overlap, strict=True):
        key = (action.kind, action.stage, action.microbatch)
        if joined:
            units[-1].append(key)
        else:
            units.append([key])
        joined = bool(overlap)
    return units


def _arrival(schedule: Any, finish: Mapping[Key, float], key: Key, rank: int, c: float) -> float | None:
    """When the input of an action is there: 0 if it needs none, None while unknown."""
    kind, stage, microbatch = key
    last = schedule.num_stages - 1
    if kind == "F" and stage == 0:
        return 0.0
    if kind == "W":
        return finish.get(("I", stage, microbatch))
    source = stage - 1 if kind == "F" else stage + 1 if stage < last else stage
    kinds = ("F",) if kind == "F" or stage == last else ("B", "I")
    known = [finish[k, source, microbatch] for k in kinds if (k, source, microbatch) in finish]
    if not known or (kind != "F" and ("F", stage, microbatch) not in finish):
        return None
    return known[0] + (c if schedule.rank_of(source, microbatch) != rank else 0.0)
