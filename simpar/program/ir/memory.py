"""Peaks of memory: the highest level of every class of ranks, exactly, from the Program's memory table."""

from itertools import pairwise

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.ir.program import MEMORY_CATEGORIES, Program, Timing
from simpar.units import Ints


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one class at its highest total: ``at_peak`` are its categories, int64[MEMORY_CATEGORIES].

    ``peak_op`` is the op whose allocation reaches it first, at ``peak_time_ns`` (-1: it is held from the beginning).
    """

    at_peak: Ints
    peak_time_ns: int
    peak_op: int

    @property
    def peak_bytes(self) -> int:
        """Highest total."""
        return int(self.at_peak.sum())


def memory_uses(program: Program, timing: Timing) -> tuple[MemoryUse, ...]:
    """The peaks of all classes, from one pass over the table; at one instant frees come before allocations."""
    table, result = program.memory, list[MemoryUse]()
    time = np.where(table.at_finish, timing.finish_ns[table.op], timing.start_ns[table.op])
    instant = time << 1 | (table.delta_bytes > 0)  # one packed key: time, then frees first
    order = np.lexsort((instant, table.class_id))
    level = np.cumsum(table.delta_bytes[order])  # of one class after the other
    begins = np.searchsorted(table.class_id[order], np.arange(len(program.class_names) + 1))
    for begin, end in pairwise(begins.tolist()):
        at_peak, before = np.zeros(len(MEMORY_CATEGORIES), dtype=np.int64), level[begin - 1] if begin else 0
        peak = begin + int(np.argmax(level[begin:end])) if end > begin else -1
        if peak < 0 or level[peak] <= before:
            result.append(MemoryUse(at_peak, 0, -1))
            continue
        rows = order[begin : peak + 1]
        np.add.at(at_peak, table.category[rows], table.delta_bytes[rows])
        result.append(MemoryUse(at_peak, int(time[rows[-1]]), int(table.op[rows[-1]])))
    return tuple(result)
