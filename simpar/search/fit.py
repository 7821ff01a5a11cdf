"""Memory, decided before time: which rows of the space fit, in closed form, for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.memory.layouts import Layouts
from simpar.cost.moving import PeakMemory
from simpar.cost.peak import peak_memory_of
from simpar.cost.places import Place, Where, is_placed, places
from simpar.cost.stack import resolve, under
from simpar.models.recompute import OPTIMAL
from simpar.plan.mirrored import folded
from simpar.plan.plan import Plan
from simpar.search.axes import Rows, both_ends, fully_sharded
from simpar.search.checkpoints import frugal, set_policy, undecided
from simpar.search.requested import REQUESTED_NAMES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
COLUMNS = ("tp", "dp", "pp", "cp", "ep", "vpp", "micro_batch", "zero", "hsdp", "sequence_parallel")
PARTS = ("static_bytes", "activations_bytes", "transient_bytes", "held_bytes", "alternates")
ALIKE = ("schedule", "recompute", *REQUESTED_NAMES)
"""Axes of which one call of the closed form sees a single value, with the kind of data parallelism."""


@dataclass(frozen=True)
class Need:
    """Device memory that each row needs, in bytes, and the pipeline rank that needs it, int64[rows]."""

    needed_bytes: Floats
    stage: Ints


def needs(rows: Rows) -> Need:
    """The smallest device memory that each row runs in: context, communicators and the allocator's least."""
    needed, stage = np.zeros(rows.count), np.zeros(rows.count, dtype=np.int64)
    waiting = np.flatnonzero(undecided(rows, np.arange(rows.count)))
    if len(waiting):
        return _least_needs(rows, waiting)
    for which in _alike(rows):
        each = [
            np.broadcast_to(needed_bytes(rows, which, where), which.shape) for where in _where(rows, which)
        ]
        most = np.argmax(each, axis=0)
        ranks = [_rank_at(rows, which, where) for where in _where(rows, which)]
        needed[which] = np.max(each, axis=0)
        stage[which] = np.take_along_axis(np.stack(ranks), most[None], axis=0)[0]
    return Need(needed, stage)


def fullest(rows: Rows, row: int) -> PeakMemory:
    """The closed form of the pipeline rank of a row that needs the most memory."""
    which = np.array([row])
    return max(
        (peak_of(rows, which, where) for where in _where(rows, which)),
        key=lambda peak: float(np.max(peak.reservation(rows.problem.stack).needed_bytes)),
    )


def _where(rows: Rows, which: Ints) -> Sequence[Where]:
    """Ranks of some rows, rows that are alike, among which the fullest is."""
    problem = rows.problem
    if not is_placed(problem.graph):
        return (False, True)
    sizes = _columns(rows, which)
    microbatches = problem.training.global_batch // (sizes["dp"] * sizes["micro_batch"])
    pipes = (*(np.asarray(sizes[name]) for name in ("pp", "vpp")), microbatches)
    return places(problem.graph, _template(rows, int(which[0])), problem.stack, pipes)


def _rank_at(rows: Rows, which: Ints, where: Where) -> Ints:
    if isinstance(where, Place):
        return where.rank
    return np.asarray(_columns(rows, which)["pp"] - 1 if where else np.zeros(len(which), dtype=np.int64))


def _least_needs(rows: Rows, waiting: Ints) -> Need:
    """As :func:`needs`, undecided rows with the most frugal of policies."""
    needed, stage = np.full(rows.count, np.inf), np.zeros(rows.count, dtype=np.int64)
    decided = np.flatnonzero(~undecided(rows, np.arange(rows.count)))
    if len(decided):
        found = needs(rows.some(decided))
        needed[decided], stage[decided] = found.needed_bytes, found.stage
    for policy, fits in frugal(rows.some(waiting)):
        mine = waiting[fits]
        some = rows.some(mine)
        set_policy(some, np.arange(len(mine)), policy)
        found = needs(some)
        better = found.needed_bytes < needed[mine]
        needed[mine[better]], stage[mine[better]] = found.needed_bytes[better], found.stage[better]
    return Need(needed, stage)


def needed_bytes(rows: Rows, which: Ints, where: Where) -> Any:
    """Device memory that one pipeline rank of some rows needs, rows that are alike."""
    peak = peak_of(rows, which, where)
    return overhead_of(rows, which) + peak.reservation(rows.problem.stack).needed_bytes


def overhead_of(rows: Rows, which: Ints) -> Any:
    """Bytes of the device's context and of communicators of some rows."""
    problem = rows.problem
    habits, device = problem.stack.memory.allocator, problem.cluster.device
    sizes = _columns(rows, which)
    groups = sum((sizes[name] > 1).astype(np.int64) for name in ("tp", "dp", "pp", "cp", "ep"))
    groups = groups + ((rows["ep"][which] > 1) & (rows["copies"][which] > 1))
    return habits.context_bytes + groups * habits.communicator_bytes if device.kind != "cpu" else 0.0


def peak_of(rows: Rows, which: Ints, where: Where = False) -> PeakMemory:
    """The closed form of one pipeline rank of some rows, rows that are alike: the first, the last or at a place."""
    problem = rows.problem
    layouts = Layouts(**_columns(rows, which), etp=rows["expert_tp"][which])
    plan = _template(rows, int(which[0]))
    stack = under(problem.stack, plan)
    return peak_memory_of(problem.graph, layouts, plan, problem.training, stack, where)


def _columns(rows: Rows, which: Ints) -> dict[str, Any]:
    """Sizes of some rows, rows that are alike, as they are costed: of half the pipeline where it has two ends."""
    found = {name: rows[name][which] for name in COLUMNS}
    if both_ends(rows)[which[0]]:
        found |= {"pp": found["pp"] // 2, "dp": 2 * found["dp"], "vpp": 2 * found["vpp"]}
    return found


def peaks(rows: Rows, policy: str, *, last: bool) -> PeakMemory:
    """The closed form of the first or the last pipeline rank of every row under one policy of recomputation."""
    some = rows.some(np.arange(rows.count))
    set_policy(some, np.arange(some.count), policy)
    found = np.zeros((5, some.count))
    for which in _alike(some):
        peak = peak_of(some, which, last)
        for at, name in enumerate(PARTS):
            found[at, which] = getattr(peak, name)
    return PeakMemory(*found)


def _alike(rows: Rows) -> list[Ints]:
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
    return folded(resolve(plan, rows.problem.stack))
