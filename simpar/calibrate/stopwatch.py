"""Times of short pieces of work, on a CPU or a CUDA device, alone or together with other processes."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from simpar.dataclass import dataclass
from simpar.units import MIB, MS, NS

MIN_REPETITIONS, MAX_REPETITIONS = 3, 200
AHEAD = 1.5  # the device is kept busy for this many times the host's issue time
CYCLES_PER_S = 2e9  # of the fastest devices; slower ones wait longer
LONGEST_S = 0.02


@dataclass(frozen=True)
class Members:
    """``size`` neighbouring ranks from ``first`` on; on a CUDA machine the group handles tensors on host and device."""

    group: Any
    size: int
    first: int = 0

    def meet(self) -> None:
        """Wait for all members, without using a core meanwhile."""
        dist.all_reduce(torch.zeros(1), group=self.group)


@dataclass(frozen=True)
class Times:
    """Seconds of one repetition: their median, spread and number, and the share of its cores that a process used."""

    seconds: float
    spread: float
    repeats: int
    load: float = 1.0

    @staticmethod
    def of(seconds: list[float], load: float = 1.0) -> Times:
        """Times with the median of repetitions and the spread (p90 - p10) / median."""
        middle = float(median(seconds))
        low, high = np.percentile(seconds, [10, 90])
        return Times(middle, float(high - low) / middle, len(seconds), load)


@dataclass(frozen=True)
class Stopwatch:
    """Repeats work for ``window_s`` seconds, after two repetitions that do not count.

    On a CUDA device, times are between two events around the work, which the device reaches only after all of it was
    issued, so that neither issuing nor waiting counts. Work that is timed alone finds a cold L2 cache, as between the
    other kernels of a step.
    """

    device: Any
    window_s: float

    def now(self) -> float:
        """Seconds, after everything that was issued is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def time(self, work: Callable[[], Any]) -> Times:
        """Times of a piece of work in this process."""
        for _ in range(2):
            work()
        room = self._more_than_l2()
        busy_s = AHEAD * self.issue_s(work) if room is not None else 0.0
        begin = self.now()
        return Times.of(
            self._laps(
                work,
                lambda done: done < MIN_REPETITIONS or (self.now() - begin < self.window_s and done < MAX_REPETITIONS),
                room=room,
                busy_s=busy_s,
            )
        )

    def time_whole(self, work: Callable[[], Any]) -> Times:
        """Times of work that waits for its device itself, such as a training step, by the host's clock."""
        return replace(self, device=torch.device("cpu")).time(work)

    def _laps(
        self, work: Callable[[], Any], goes_on: Callable[[int], bool], *, room: Any = None, busy_s: float = 0.0
    ) -> list[float]:
        """Seconds of every repetition; before each, ``room`` is overwritten and the device kept busy, not counted."""
        if self.device.type != "cuda":
            seconds: list[float] = []
            while goes_on(len(seconds)):
                start = self.now()
                work()
                seconds.append(self.now() - start)
            return seconds
        marks: list[tuple[Any, Any]] = []
        while goes_on(len(marks)):
            if room is not None:
                room.zero_()
                torch.cuda._sleep(int(min(busy_s, LONGEST_S) * CYCLES_PER_S))
            marks.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
            marks[-1][0].record()
            work()
            marks[-1][1].record()
        torch.cuda.synchronize(self.device)
        return [first.elapsed_time(last) * MS for first, last in marks]

    def _more_than_l2(self) -> Any:
        """A tensor that evicts everything else from the L2 cache; None on a CPU, whose caches are left alone."""
        if self.device.type != "cuda":
            return None
        l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
        return torch.empty(max(2 * l2_bytes, MIB), dtype=torch.int8, device=self.device)

    def issue_s(self, work: Callable[[], Any]) -> float:
        """Seconds that the host needs to issue a piece of work, without waiting for the device."""
        for _ in range(2):
            work()
        self.now()
        start = time.perf_counter()
        for _ in range(MIN_REPETITIONS):
            work()
        taken = (time.perf_counter() - start) / MIN_REPETITIONS
        self.now()
        return taken

    def time_together(self, work: Callable[[], Any], members: Members, threads: int) -> Times:
        """Times of work that the processes of a group do together, equally often; returns this one's load.

        The first process decides how often, so that all stop at the same repetition. Seconds are the mean, because late
        wake-ups on busy cores are part of the cost of a collective.
        """
        for _ in range(2):
            work()
        count = torch.tensor([self._count(work)], dtype=torch.int64)
        dist.broadcast(count, src=members.first, group=members.group)
        before, begin = _processor_s(), self.now()
        seconds = self._laps(work, lambda done: done < int(count))
        load = (_processor_s() - before) / ((self.now() - begin) * threads)
        times = Times.of(seconds, min(load, 1.0))
        return replace(times, seconds=float(np.mean(seconds)))

    def _count(self, work: Callable[[], Any]) -> int:
        start = self.now()
        work()
        return int(min(max(self.window_s / max(self.now() - start, NS), MIN_REPETITIONS), MAX_REPETITIONS))

    def rate_beside(self, work: Callable[[], Any], members: Members) -> Times:
        """Seconds per repetition while all processes of a group repeat work, for a window and at least LEAST times.

        A system that shares cores gives each process turns; a single repetition would depend on only a few of them.
        """
        work()
        members.meet()
        begin, count = self.now(), 0
        while self.now() - begin < 4 * self.window_s or count < MIN_REPETITIONS:
            work()
            count += 1
        return Times((self.now() - begin) / count, 0.0, count)


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
