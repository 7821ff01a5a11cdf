"""Segments: the steps of one block phase with exact integer times, and the block as a single op.

A segment starts with its streams idle and ends joined, so its inner times are constant offsets: one op of the
whole duration stands for it, and adding the offsets back is exact because sums of integers are associative.
:mod:`simpar.program.structure.flatten` keeps the steps apart where a collective crosses a contended link or joins ranks
of different classes, and in the uncollapsed Programs that tests compare against.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.blocks.phases import COMPUTE, BlockStep, CollectiveUse, Phase, terminals
from simpar.units import NS_PER_S, Floats, Ints, Numbers, floats, to_ns

Time = TypeVar("Time", int, Ints)
Priced = Callable[[CollectiveUse], int]  # solo duration in ns
LAUNCH = "launch"
"""Name of a segment's last step where the host launches longer than the device works."""


@dataclass(frozen=True)
class Segment:
    """One block phase scheduled from idle streams; times are ns relative to its start.

    ``parts_ns`` splits ``duration_ns`` by what the compute stream does: kernels by kind, the launch gap
    ("host"), and the rest by the kind of collective that it waits for ("tp", "cp").
    """

    steps: tuple[BlockStep, ...]
    start_ns: Ints
    finish_ns: Ints
    duration_ns: int
    parts_ns: dict[str, int] = field(hash=False)


def make_segment(phase: Phase, price: Priced, *, slowdown: float = 1.0) -> Segment:
    """Schedule a phase; ``slowdown`` multiplies kernel durations (a slow device, SMs taken by collectives)."""
    steps = list(phase.steps)
    prices = [price(step.collective) if step.collective else 0 for step in steps]
    slow = slowdown * without_held(phase, prices, [float(step.duration_s) * slowdown for step in steps])
    durations = [
        took if step.collective else int(to_ns(step.duration_s * slow))
        for step, took in zip(steps, prices, strict=True)
    ]
    starts, finishes = schedule(steps, durations)
    ended = max(finishes, default=0)
    gap = int(to_ns(phase.issue_s)) - ended
    if gap > 0:
        steps.append(BlockStep(name=LAUNCH, kind="host", stream=COMPUTE, after=terminals(steps)))
        starts.append(ended)
        finishes.append(ended + gap)
    duration = max(finishes, default=0)
    return Segment(
        steps=tuple(steps),
        start_ns=np.array(starts, dtype=np.int64),
        finish_ns=np.array(finishes, dtype=np.int64),
        duration_ns=int(duration),
        parts_ns=_parts(steps, starts, finishes, duration),
    )


def take_section(segment: Segment, section: Sequence[int]) -> Segment:
    """Steps of a segment that follow one another, or run beside each other, as a segment of their own."""
    place = {at: number for number, at in enumerate(section)}
    some = [segment.steps[at] for at in section]
    steps = tuple(step.behind(tuple(place[at] for at in step.after if at in place)) for step in some)
    begin = segment.start_ns[[*section]].min()
    starts, finishes = segment.start_ns[[*section]] - begin, segment.finish_ns[[*section]] - begin
    duration = int(finishes.max())
    return Segment(steps, starts, finishes, duration, _parts(steps, starts.tolist(), finishes.tolist(), duration))


def schedule(steps: Sequence[BlockStep], durations: Sequence[Time]) -> tuple[list[Time], list[Time]]:
    """Starts and finishes of steps by rule 1 of the Program.

    A step waits for its dependencies and for the step before it on its stream. Durations are integers, or arrays of
    them for a batch of phases with one structure.
    """
    free: dict[str, Time] = {}
    starts: list[Time] = []
    finishes: list[Time] = []
    for step, duration in zip(steps, durations, strict=True):
        waits = [finishes[i] for i in step.after]
        if step.stream in free:
            waits.append(free[step.stream])
        start = latest(waits, duration * 0)
        starts.append(start)
        finishes.append(start + duration)
        free[step.stream] = finishes[-1]
    return starts, finishes


def latest(times: Sequence[Time], none: Time) -> Time:
    """The latest of some times, integers or arrays; ``none`` without any."""
    if not times:
        return none
    return reduce(np.maximum, times) if isinstance(times[0], np.ndarray) else max(times)


def slowed_beside(excess: float, busy_ns: int | Floats, compute_ns: float | Floats) -> float | Floats:
    """Factor on kernels of ``compute_ns`` beside which collectives hold SMs and memory bandwidth for ``busy_ns``.

    1 + excess x min(1, busy / compute): the slowdown applies to the covered share of the kernels' own time. Scalars, or
    arrays of one shape. Source: measured overlap slowdowns, arXiv 2507.03114.
    """
    return 1.0 + excess * np.minimum(1.0, busy_ns / np.where(compute_ns > 0, compute_ns, np.inf))


def without_held(phase: Phase, prices_ns: Sequence[Time], kernels_s: Sequence[Numbers]) -> Numbers:
    """Factor on the kernels of a phase that lack the multiprocessors held by exchanges beside them.

    A collective that holds a share s of them for a time t takes s t from the kernels, whose rate falls to 1 - s at
    worst: min(1 + sum(s t) / kernels, 1 / (1 - s)); where one holds all of them, kernels wait for it. ``prices_ns`` and
    ``kernels_s`` have an entry for every step (0 for steps of the other kind): numbers, or arrays of one shape.
    """
    most = max((step.sms for step in phase.steps), default=0.0) if phase.shared else 0.0
    if not most:
        return 1.0
    lost_ns = in_order(step.sms * took for step, took in zip(phase.steps, prices_ns, strict=True))
    compute_ns = np.maximum(in_order(kernels_s) * NS_PER_S, 1.0)
    worst = 1.0 / (1.0 - most) if most < 1.0 else np.inf
    return floats(np.minimum(1.0 + lost_ns / compute_ns, worst))


def in_order(values: Iterable[Any]) -> Any:
    """The sum of numbers or arrays, added one after the other: ``sum`` adds floats otherwise from Python 3.12 on."""
    return reduce(add, values, 0.0)


def _parts(steps: Sequence[BlockStep], starts: Sequence[int], finishes: Sequence[int], duration: int) -> dict[str, int]:
    """Nanoseconds of a segment by kind: of kernels, and of the collectives for which the compute stream idles.

    A gap is walked back from its end; at each instant it is put down to the running collective that started last.
    """
    parts: dict[str, int] = {}
    waits = [(s, f, step.kind) for step, s, f in zip(steps, starts, finishes, strict=True) if step.collective]
    free = 0
    for step, start, finish in zip(steps, starts, finishes, strict=True):
        if step.stream == COMPUTE:
            parts[step.kind] = parts.get(step.kind, 0) + finish - start
            _add_gap(parts, waits, free, start)
            free = finish
    _add_gap(parts, waits, free, duration)
    return parts


def _add_gap(parts: dict[str, int], waits: Sequence[tuple[int, int, str]], begin: int, end: int) -> None:
    while end > begin:
        running = [wait for wait in waits if wait[0] < end <= wait[1]]
        assert running, "a segment waits for nothing but its own collectives"
        start, _, kind = max(running)
        start = max(start, begin)
        parts[kind] = parts.get(kind, 0) + end - start
        end = start


def waits_for_host(segment: Segment) -> bool:
    """Whether the host launches for longer than the device works; the last step is then the rest of the launches."""
    return bool(segment.steps) and segment.steps[-1].name == LAUNCH


def varying_ns(segment: Segment) -> int:
    """Nanoseconds of kernels and launch gaps on the compute stream: the part that varies with a rank's speed."""
    return sum(
        int(finish - start)
        for step, start, finish in zip(segment.steps, segment.start_ns, segment.finish_ns, strict=True)
        if step.collective is None and step.stream == COMPUTE
    )
