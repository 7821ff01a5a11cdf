"""Memory over time: exact step functions per class of ranks, from the Program's memory table."""

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.ir.program import MEMORY_CATEGORIES, Program, Timing
from simpar.units import Ints


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one class: ``by_category[i]`` bytes hold from ``time_ns[i]`` on (columns: MEMORY_CATEGORIES).

    ``at_peak`` are the categories at the highest total, ``peak_op`` the op whose allocation reaches it first
    (-1: it is held from the beginning).
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


def memory_uses(program: Program, timing: Timing) -> tuple[MemoryUse, ...]:
    """The exact curves of all classes, from one pass over the table; at one instant frees come before allocations."""
    owner = program.memory.class_id
    order = np.argsort(owner, kind="stable")
    cuts = np.cumsum(np.bincount(owner, minlength=len(program.class_names)))[:-1]
    return tuple(_use(program, timing, rows) for rows in np.split(order, cuts))


def _use(program: Program, timing: Timing, rows: Ints) -> MemoryUse:
    """The curve of some rows of the memory table."""
    table = program.memory
    op, delta = table.op[rows], table.delta_bytes[rows]
    time = np.where(table.at_finish[rows], timing.finish_ns[op], timing.start_ns[op])
    order = np.argsort(time << 1 | (delta > 0), kind="stable")  # one packed key: time, then frees first
    changes = np.zeros((len(order) + 1, len(MEMORY_CATEGORIES)), dtype=np.int64)
    changes[np.arange(1, len(order) + 1), table.category[rows][order]] = delta[order]
    curve = np.cumsum(changes, axis=0)
    times = np.append(0, time[order])
    last = np.append(np.flatnonzero(times[1:] != times[:-1]), len(times) - 1)  # each instant's last change
    peak = int(np.argmax(curve.sum(axis=1)))
    return MemoryUse(
        time_ns=times[last],
        by_category=curve[last],
        at_peak=curve[peak],
        peak_time_ns=int(times[peak]),
        peak_op=int(op[order[peak - 1]]) if peak else -1,
    )
