"""Memory, decided before time: which rows of the space fit, in closed form, for all of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.moving import PeakMemory
from simpar.cost.peak import Layouts, peak_memory_of
from simpar.cost.stack import resolve, under
from simpar.models.recompute import OPTIMAL
from simpar.plan.plan import Plan
from simpar.search.axes import Rows, fully_sharded
from simpar.search.checkpoints import frugal, set_policy, undecided
from simpar.search.requested import REQUESTED_NAMES

Floats = NDArray[np.float64]
COLUMNS = ("tp", "dp", "pp", "cp", "ep", "vpp", "micro_batch", "zero", "hsdp", "sequence_parallel")
PARTS = ("static_bytes", "activations_bytes", "transient_bytes", "held_bytes", "alternates")
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
    waiting = np.flatnonzero(undecided(rows, np.arange(rows.count)))
    if len(waiting):
        return _least_needs(rows, waiting)
    for which in _alike(rows):
        first, last = (
            np.broadcast_to(needed_bytes(rows, which, last=last), which.shape) for last in (False, True)
        )
        needed[which], on_last[which] = np.maximum(first, last), last > first
    return Need(needed, on_last)


def _least_needs(rows: Rows, waiting: NDArray[np.int64]) -> Need:
    """As :func:`needs`, undecided rows with the most frugal of policies."""
    needed, on_last = np.full(rows.count, np.inf), np.zeros(rows.count, dtype=bool)
    decided = np.flatnonzero(~undecided(rows, np.arange(rows.count)))
    if len(decided):
        found = needs(rows.some(decided))
        needed[decided], on_last[decided] = found.needed_bytes, found.on_last
    for policy, fits in frugal(rows.some(waiting)):
        mine = waiting[fits]
        some = rows.some(mine)
        set_policy(some, np.arange(len(mine)), policy)
        found = needs(some)
        better = found.needed_bytes < needed[mine]
        needed[mine[better]], on_last[mine[better]] = found.needed_bytes[better], found.on_last[better]
    return Need(needed, on_last)


def needed_bytes(rows: Rows, which: NDArray[np.int64], *, last: bool) -> Any:
    """Device memory that the first or the last pipeline rank of some rows needs, rows that are alike."""
    return (
        overhead_of(rows, which)
        + peak_of(rows, which, last=last).reservation(rows.problem.stack).needed_bytes
    )


def overhead_of(rows: Rows, which: NDArray[np.int64]) -> Any:
    """Bytes of the device's context and of communicators of some rows."""
    problem = rows.problem
    habits, device = problem.stack.memory.allocator, problem.cluster.device
    groups = sum((rows[name][which] > 1).astype(np.int64) for name in ("tp", "dp", "pp", "cp", "ep"))
    groups = groups + ((rows["ep"][which] > 1) & (rows["copies"][which] > 1))
    return habits.context_bytes + groups * habits.communicator_bytes if device.kind != "cpu" else 0.0


def peak_of(rows: Rows, which: NDArray[np.int64], *, last: bool) -> PeakMemory:
    """The closed form of the first or the last pipeline rank of some rows, rows that are alike."""
    problem = rows.problem
    layouts = Layouts(**{name: rows[name][which] for name in COLUMNS}, etp=rows["expert_tp"][which])
    plan = _template(rows, int(which[0]))
    stack = under(problem.stack, plan)
    return peak_memory_of(problem.graph, layouts, plan, problem.training, stack, last=last)


def peaks(rows: Rows, policy: str, *, last: bool) -> PeakMemory:
    """The closed form of the first or the last pipeline rank of every row under one policy of recomputation."""
    some = rows.some(np.arange(rows.count))
    set_policy(some, np.arange(some.count), policy)
    found = np.zeros((5, some.count))
    for which in _alike(some):
        peak = peak_of(some, which, last=last)
        for at, name in enumerate(PARTS):
            found[at, which] = getattr(peak, name)
    return PeakMemory(*found)


def _alike(rows: Rows) -> list[NDArray[np.int64]]:
    """Rows in groups of equal schedule, recompute, requested axes and kind of data parallelism."""
    key = rows.number(ALIKE, fully_sharded(rows), 2)
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    return np.split(order, cuts)


def _template(rows: Rows, index: int) -> Plan:
    """A resolved plan with what rows that are alike have in common."""
    from simpar.search.space import plan_of

    plan = plan_of(rows, index)
    if plan.memory.recompute == OPTIMAL:
        plan = plan.model_copy(update={"memory": plan.memory.model_copy(update={"recompute": "full"})})
    return resolve(plan, rows.problem.stack)
