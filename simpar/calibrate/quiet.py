"""How quiet a machine was while it was measured, and by how much times may be too long for that. No torch here.

Two signs: what other processes used of the cores, by the operating system's count, and one product that is timed at the
beginning, between kernels and groups, and at the end.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

from simpar.dataclass import dataclass
from simpar.units import format_seconds

STAT = Path("/proc/stat")
IDLE = (3, 4)  # columns of idle and of waiting for drives
COUNTED = 8  # columns of which none is part of another: user, nice, system, idle, iowait, irq, softirq, steal
BUSY = 0.1
"""By how much times may be too long before that is said."""


@dataclass(frozen=True)
class CoreTimes:
    """Seconds since the start that this process's cores were busy, could have been, and worked for it."""

    busy_s: float
    all_s: float
    own_s: float

    @staticmethod
    def now() -> CoreTimes | None:
        """The present counts, with those of ended children; None where the system does not count."""
        try:
            lines = STAT.read_text().splitlines()
            cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        except (OSError, AttributeError):
            return None
        tick = float(os.sysconf("SC_CLK_TCK"))
        rows = [[float(each) for each in line.split()[1 : 1 + COUNTED]] for line in lines if line.split()[0] in cores]
        every = sum(map(sum, rows))
        idle = sum(row[column] for row in rows for column in IDLE)
        used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return CoreTimes((every - idle) / tick, every / tick, sum(each.ru_utime + each.ru_stime for each in used))


@dataclass(frozen=True)
class Quiet:
    """Share of the cores that ``others`` used (None: not counted), and a product's seconds, one time after another."""

    others: float | None
    repeats: tuple[float, ...]

    @staticmethod
    def of(before: CoreTimes | None, after: CoreTimes | None, repeats: Sequence[float]) -> Quiet:
        """What counts at the beginning and at the end, and repeated times, say."""
        if before is None or after is None or after.all_s <= before.all_s:
            return Quiet(None, tuple(repeats))
        busy, own = after.busy_s - before.busy_s, after.own_s - before.own_s
        return Quiet(max(0.0, busy - own) / (after.all_s - before.all_s), tuple(repeats))

    @property
    def drift(self) -> float:
        """How much longer the slowest repeat took than the fastest."""
        return max(self.repeats) / min(self.repeats) - 1 if self.repeats else 0.0

    @property
    def width(self) -> float:
        """By which share times may be too long for a machine that is idle.

        What others take of all cores is missing where ranks want all of them: times grow by 1 / (1 - share).
        """
        share = min(self.others or 0.0, 0.99)
        return max(self.drift, share / (1 - share))

    @property
    def is_busy(self) -> bool:
        """Whether it is so much that it must be said."""
        return self.width > BUSY

    @property
    def words(self) -> str:
        """Both signs and the width."""
        used = "not counted" if self.others is None else f"{self.others:.0%} of the cores"
        times = (
            f"{format_seconds(min(self.repeats))} to {format_seconds(max(self.repeats))}" if self.repeats else "none"
        )
        return f"others used {used}, one product took {times}: up to {self.width:.0%} too slow for an idle machine"
