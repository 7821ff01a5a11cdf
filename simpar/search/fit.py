"""Memory, decided before time: which rows of the space fit, in closed form, for all of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.moving import PeakMemory
from simpar.cost.peak import Layouts, peak_memory_of
from simpar.cost.stack import resolve, under
from simpar.plan.plan import Plan
from simpar.search.axes import Rows, fully_sharded
from simpar.search.requested import REQUESTED_NAMES

Floats = NDArray[np.float64]
COLUMNS = ("tp", "dp", "pp", "cp", "ep", "vpp", "micro_batch", "zero", "hsdp", "sequence_parallel")
ALIKE = ("schedule", "recompute", *REQUESTED_NAMES)
"""Axes of which one call of the closed form sees a single value, with the kind of data parallelism."""


@dataclass(frozen=True)
class Need:
    """Device memory that each row needs, in bytes, and on which end of the pipeline it does."""

    needed_bytes: Floats
    on_last: NDArray[np.bool_]


def needs(rows: Rows) -> Need:
    """The smallest device memory that each row runs in: context, communicators and the allocator's least."""
    needed, on_last = np.zeros(rows.count), np.zeros(rows.count, dtype=bool)
    for which in _alike(rows):
        first, last = (
            np.broadcast_to(needed_bytes(rows, which, last=last), which.shape) for last in (False, True)
        )
        needed[which], on_last[which] = np.maximum(first, last), last > first
    return Need(needed, on_last)


def needed_bytes(rows: Rows, which: NDArray[np.int64], *, last: bool) -> Any:
    """Device memory that the first or the last pipeline rank of some rows needs, rows that are alike."""
    problem = rows.problem
    peak = peak_of(rows, which, last=last)
    habits, device = problem.stack.memory.allocator, problem.cluster.device
    groups = sum((rows[name][which] > 1).astype(np.int64) for name in ("tp", "dp", "pp", "cp", "ep"))
    groups = groups + ((rows["ep"][which] > 1) & (rows["copies"][which] > 1))
    overhead = habits.context_bytes + groups * habits.communicator_bytes if device.kind != "cpu" else 0.0
    return overhead + peak.reservation(problem.stack).needed_bytes


def peak_of(rows: Rows, which: NDArray[np.int64], *, last: bool) -> PeakMemory:
    """The closed form of the first or the last pipeline rank of some rows, rows that are alike."""
    problem = rows.problem
    layouts = Layouts(**{name: rows[name][which] for name in COLUMNS}, etp=rows["expert_tp"][which])
    plan = _template(rows, int(which[0]))
    stack = under(problem.stack, plan)
    return peak_memory_of(problem.graph, layouts, plan, problem.training, stack, last=last)


def _alike(rows: Rows) -> list[NDArray[np.int64]]:
    """Rows in groups of equal schedule, recompute, requested axes and kind of data parallelism."""
    key = rows.number(ALIKE, fully_sharded(rows), 2)
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    return np.split(order, cuts)


def _template(rows: Rows, index: int) -> Plan:
    """A resolved plan with what rows that are alike have in common."""
    from simpar.search.space import plan_of

    return resolve(plan_of(rows, index), rows.problem.stack)
