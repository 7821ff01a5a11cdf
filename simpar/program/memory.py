"""Memory over time: exact step functions per class of ranks, from the Program's memory table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.program.program import MEMORY_CATEGORIES, Program, Timing

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one class: ``by_category[i]`` bytes hold from ``time_ns[i]`` on (columns: MEMORY_CATEGORIES).

    ``at_peak`` are the categories at the highest total, ``peak_op`` the op that starts there (-1: no ops).
    """

    time_ns: Ints
    by_category: Ints
    at_peak: Ints
    peak_time_ns: int
    peak_op: int

    @property
    def peak_bytes(self) -> int:
        """Highest total."""
        return int(self.at_peak.sum())


def memory_use(program: Program, timing: Timing, class_id: int) -> MemoryUse:
    """The exact curve of one class; at one instant, frees come before allocations."""
    table = program.memory
    mine = np.flatnonzero(table.class_id == class_id)
    op, delta, category = table.op[mine], table.delta_bytes[mine], table.category[mine]
    time = np.where(table.at_finish[mine], timing.finish_ns[op], timing.start_ns[op])
    order = np.argsort(time * 2 + (delta > 0), kind="stable")
    columns = np.zeros((len(order) + 1, len(MEMORY_CATEGORIES)), dtype=np.int64)
    columns[np.arange(1, len(order) + 1), category[order]] = delta[order]
    curve = np.cumsum(columns, axis=0)
    times = np.concatenate([[0], time[order]])
    last = np.append(np.flatnonzero(np.diff(times)), len(times) - 1)
    peak = int(np.argmax(curve.sum(axis=1)))
    return MemoryUse(
        time_ns=times[last],
        by_category=curve[last],
        at_peak=curve[peak],
        peak_time_ns=int(times[peak]),
        peak_op=int(op[order[peak - 1]]) if peak else -1,
    )
