"""Memory, decided before time: which rows of the space may fit, for all of them at once.

A row is dropped where a lower bound of its simulated peak (:mod:`simpar.cost.memory.bound`) with its exact static
memory is more than a device holds: simulated, it would not fit. Whether a row that is left does is found when it may
win (:mod:`simpar.program.peak`, and its simulation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.memory.allocator import reserve
from simpar.cost.memory.bound import Flight, flights, held_of, least_moving_bytes, trains_unlike
from simpar.cost.memory.layouts import Layouts, dims_of
from simpar.cost.memory.moments import V_SHAPED
from simpar.cost.memory.outside import overhead_bytes
from simpar.cost.memory.static import held_memory
from simpar.cost.stack import resolve, under
from simpar.models.recompute import OPTIMAL
from simpar.plan.check import layers_by_cost, spread_layers
from simpar.plan.mirrored import BOTH_ENDS, FOLDED, folded
from simpar.plan.offload import decided_offload
from simpar.plan.plan import Plan
from simpar.search.problem import Problem
from simpar.search.space.axes import Rows, both_ends, fully_sharded
from simpar.search.space.optional_axes import REQUESTED_NAMES
from simpar.search.space.recomputation import frugal, set_policy, undecided

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
COLUMNS = ("tp", "dp", "pp", "cp", "ep", "vpp", "micro_batch", "zero", "hsdp", "sequence_parallel")
SHAPED = ("tp", "cp", "ep", "etp", "micro_batch", "sequence_parallel")
"""Columns that sizes of tensors depend on."""
ALIKE = ("recompute", *REQUESTED_NAMES)
"""Axes of which one call of the bound sees a single value, with the kind of data parallelism."""
MOST_CODES = 2**62
FIRST, LAST = 0, 1.0
PLACES: tuple[int | float, ...] = (FIRST, 1, LAST)
"""Pipeline ranks that are looked at: from the first on, and the last."""
PLACES_IF_UNLIKE: tuple[int | float, ...] = (FIRST, 1, 2, 3, 0.25, 0.5, 0.75, LAST)
"""Where layers are not trained alike, so that the fullest rank may be any."""


@dataclass(frozen=True)
class Need:
    """Device memory that each row needs at least, in bytes, and the pipeline rank that needs it, int64[rows]."""

    needed_bytes: Floats
    stage: Ints


@dataclass(frozen=True)
class Least:
    """What a pipeline rank of rows holds at least, float64[rows].

    States, saved activations, workspaces beside them, what lies outside the allocator, and the device memory that all
    of it takes.
    """

    static_bytes: Floats
    activations_bytes: Floats
    transient_bytes: Floats
    overhead_bytes: Floats
    needed_bytes: Floats


def needs(rows: Rows) -> Need:
    """The device memory that each row needs at least: context, communicators and the allocator's least."""
    needed, stage = np.zeros(rows.count), np.zeros(rows.count, dtype=np.int64)
    if undecided(rows, np.arange(rows.count)).any():
        return _least_needs(rows, np.flatnonzero(undecided(rows, np.arange(rows.count))))
    unlike = trains_unlike(rows.problem.graph)
    for which in _alike(rows):
        for flight, least in least_of(rows, which, PLACES_IF_UNLIKE if unlike else PLACES):
            more = least.needed_bytes > needed[which]
            stage[which] = np.where(more, flight.rank, stage[which])
            needed[which] = np.maximum(needed[which], least.needed_bytes)
    return Need(needed, stage)


def fullest(rows: Rows, row: int) -> Least:
    """What the pipeline rank of a row that needs the most memory holds."""
    each = [least for _, least in least_of(rows, np.array([row]), PLACES)]
    return max(each, key=lambda least: float(np.max(least.needed_bytes)))


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


def peaks(rows: Rows, policy: str, *, last: bool) -> Least:
    """What the first or the last pipeline rank of every row holds at least under one policy of recomputation."""
    some = rows.some(np.arange(rows.count))
    set_policy(some, np.arange(some.count), policy)
    found = np.zeros((5, some.count))
    for which in _alike(some):
        [(_, least)] = least_of(some, which, (LAST if last else FIRST,))
        parts = [getattr(least, each.name) for each in fields(Least)]
        found[:, which] = np.stack(np.broadcast_arrays(*parts))
    return Least(*list(found))


def least_of(rows: Rows, which: Ints, places: Sequence[int | float]) -> list[tuple[Flight, Least]]:
    """What some pipeline ranks of rows that are alike hold at least."""
    problem, columns = rows.problem, _columns(rows, which)
    plan = _template(rows, int(which[0]))
    stack, training = under(problem.stack, plan), problem.training
    microbatches = training.global_batch // (columns["dp"] * columns["micro_batch"])
    names = [FOLDED if name == BOTH_ENDS else str(name) for name in rows.domain["schedule"]]
    number = rows.code["schedule"][which].astype(np.int64)
    pipelines = (columns["pp"], columns["vpp"], microbatches)
    shapes = set(zip(*(column.tolist() for column in pipelines[:2]), strict=True))
    layers = {(pp, vpp): _layers(problem, pp, vpp) for pp, vpp in shapes}
    looped = np.isin(number, [at for at, name in enumerate(names) if name not in V_SHAPED])
    alone, expand = _distinct([columns[name] for name in SHAPED])
    first, back = _distinct([*columns.values(), looped])
    every, few = Layouts(**columns), _some(columns, first)
    dims, dims_few = (dims_of(problem.graph, _some(columns, one), plan, training) for one in (alone, first))
    overhead = np.asarray(overhead_bytes(every.communicators, stack, problem.cluster))
    found = []
    for flight in flights(problem.graph, (names, number), plan.memory.recompute, pipelines, layers, places):
        held = held_of(problem.graph, flight.where(first))
        static = held_memory(problem.graph, held, dims_few.tensor, plan, stack, few)
        resident, between = (
            np.broadcast_to(size, len(first))[back] for size in (static.resident_bytes, static.total_bytes)
        )
        saved, beside = least_moving_bytes(problem.graph, flight, dims, every, (plan, stack), expand)
        beside = np.maximum(beside, between - resident - saved)
        needed = overhead + _taken(problem, resident, saved + beside, overhead, microbatches > 1)
        found.append((flight, Least(resident, saved, beside, overhead, needed)))
    return found


def _taken(
    problem: Problem, static: Floats, moving: Floats, outside: Floats, alternates: NDArray[np.bool_]
) -> Floats:
    """What the allocator takes: as little as it can, or where some of the device is to stay free what it reports."""
    habits, room = problem.stack.memory.allocator, problem.cluster.device.memory_bytes - outside
    found = reserve(static, moving, habits, alternates=alternates, limit_bytes=room)
    return np.asarray(found.reserved_bytes if problem.constraints.headroom else found.needed_bytes)


def _some(columns: dict[str, Any], which: Ints) -> Layouts:
    """Columns of some layouts."""
    return Layouts(**{name: column[which] for name, column in columns.items()})


def _distinct(columns: list[Any]) -> tuple[Ints, Ints]:
    """The first of every combination of values, and which combination every entry has."""
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        place, count = _placed(np.asarray(column, dtype=np.int64))
        if size * count > MOST_CODES:
            code = np.unique(code, return_inverse=True)[1].ravel()
            size = len(code)
        code, size = code * count + place, size * count
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    return first, index.ravel()


def _placed(column: Ints) -> tuple[Ints, int]:
    """Numbers that are as distinct as the sizes of a column, and how many there may be."""
    least, most = int(column.min()), int(column.max())
    if most - least < len(column):  # found without sorting
        place = np.cumsum(np.bincount(column - least) > 0) - 1
        return place[column - least], int(place[-1]) + 1
    values, index = np.unique(column, return_inverse=True)
    return index.ravel(), len(values)


def _layers(problem: Problem, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of every virtual stage."""
    count, stages = len(problem.graph.layers), pp * vpp
    by_cost = problem.stack.launch.pipeline_balance == "cost" and stages > 1
    return (layers_by_cost(problem.graph, stages) if by_cost else None) or spread_layers(count, stages)


def overhead_of(rows: Rows, which: Ints) -> Any:
    """Bytes of the device's context and of communicators of some rows."""
    layouts = Layouts(**_columns(rows, which))
    return overhead_bytes(layouts.communicators, rows.problem.stack, rows.problem.cluster)


def _columns(rows: Rows, which: Ints) -> dict[str, Any]:
    """Sizes of some rows as they are costed: of half the pipeline where it has two ends."""
    found = {name: rows[name][which] for name in COLUMNS} | {"etp": rows["expert_tp"][which]}
    two = both_ends(rows)[which]
    if two.any():
        found["pp"], found["dp"], found["vpp"] = (
            np.where(two, other, found[name])
            for name, other in (("pp", found["pp"] // 2), ("dp", 2 * found["dp"]), ("vpp", 2 * found["vpp"]))
        )
    return found


def _alike(rows: Rows) -> list[Ints]:
    """Rows in groups of equal recompute, requested axes and kind of data parallelism, in pipelines or not."""
    once = rows.problem.stack.overlap.once_in_pipelines & (rows["pp"] > 1)
    offloads = "offload_optimizer" in rows.domain or rows.problem.base.offload.is_used
    free = offloads & ((rows["zero"] >= 2) | (rows["width"] == 1))  # by the plan's own mesh, not half of it
    key = rows.number(ALIKE, 4 * fully_sharded(rows) + 2 * once + free, 8)
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    return np.split(order, cuts)


def _template(rows: Rows, index: int) -> Plan:
    """A resolved plan with what rows that are alike have in common; loads as little uneven as they may come out."""
    from simpar.search.space.rows import counted

    plan = counted(rows, index)
    if plan.memory.recompute == OPTIMAL:
        plan = plan.model_copy(update={"memory": plan.memory.model_copy(update={"recompute": "full"})})
    plan = resolve(plan, rows.problem.stack)
    plan = folded(plan.model_copy(update={"offload": decided_offload(plan)}))
    if plan.experts.expert_load == "sampled" and plan.experts.expert_imbalance:
        plan = plan.model_copy(update={"experts": plan.experts.model_copy(update={"expert_imbalance": 0.0})})
    return plan
