"""What the operating system counts of this process's cores: how busy they were, and with whose work. No torch here."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from simpar.dataclass import dataclass

STAT = Path("/proc/stat")
IDLE = (3, 4)  # columns of idle and of waiting for drives
COUNTED = 8  # columns of which none is part of another: user, nice, system, idle, iowait, irq, softirq, steal


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


def others_share(before: CoreTimes | None, after: CoreTimes | None) -> float | None:
    """The share of the cores that other processes used between two counts; None where it is not counted."""
    if before is None or after is None or after.all_s <= before.all_s:
        return None
    busy, own = after.busy_s - before.busy_s, after.own_s - before.own_s
    return max(0.0, busy - own) / (after.all_s - before.all_s)
