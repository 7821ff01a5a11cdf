"""Memory, decided before time: which rows of the space may fit, for all of them at once.

A row is dropped if a lower bound of its simulated peak (:mod:`simpar.cost.memory.bound`) plus its exact static memory
exceeds the device: simulated, it would not fit. Whether a remaining row fits is decided when it may win
(:mod:`simpar.program.footprint`, and its simulation). Every term is evaluated once for each combination of its inputs:
states by layout, microbatches in flight by pipeline, tensor sizes by shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.architectures.graph import ModelGraph
from simpar.architectures.recompute import FULL, NONE, OPTIMAL, by_layer, joint_mode
from simpar.cost.memory.allocator import memory_risk, overhead_bytes, reserve
from simpar.cost.memory.bound import Flight, ParameterBytes, Place, flights, held_blocks, least_moving_bytes
from simpar.cost.memory.routed import experts_risk_bytes
from simpar.cost.memory.static import gathered_rows_bytes, held_memory, residual_bytes
from simpar.cost.memory.widths import once_a_step
from simpar.dataclass import dataclass
from simpar.layout.decider import fill_open_choices
from simpar.layout.deciders import BY_MODEL, BY_STACK, DISPATCH, OFFLOAD
from simpar.layout.layout import Layout, fold_two_ended, stack_for_layout, stated_choices
from simpar.layout.sharding import dims_of
from simpar.plan.choices import BY_NAME, OPTIONAL_AXES, names_that_decide
from simpar.plan.choices.choice import BLOCKS, MEMORY
from simpar.plan.choices.data_parallel import fully_sharded
from simpar.plan.choices.memory import select_undecided
from simpar.plan.choices.pipeline import select_two_ended
from simpar.plan.offload import leaves_unasked
from simpar.plan.schedules import HALF_SCHEDULES, producer_of
from simpar.plan.schedules.actions import Schedule
from simpar.planner.problem import Problem
from simpar.planner.space.jobs import fill_dp
from simpar.planner.space.table import ROW_BATCH, Rows, are_among, factorize
from simpar.stacks.stack import AllocatorHabits
from simpar.uncertainty.memory import Parts
from simpar.uncertainty.table import load_error_table
from simpar.units import MIB, Floats, Ints

COLUMNS = ("dp", *(name for name in names_that_decide(MEMORY) if BY_NAME[name].is_number))
"""Choices of which one call of the bound has many values, as does ``etp``."""
SHAPED = tuple(name for name in (*COLUMNS, "etp") if name in names_that_decide(BLOCKS))
"""Columns that tensor sizes depend on."""
ROWS_OF_STREAM = ("micro_batch", "sequence_parallel")
"""Columns on which states depend only through buffers for gathered rows, which are added to them."""
ALIKE = ("recompute", *(axis.name for axis in OPTIONAL_AXES if MEMORY in axis.decides))
"""Axes that have a single value in one call of the bound, as does the kind of data parallelism."""
FIRST, LAST = 0, 1.0
PLACES: tuple[Place, ...] = (FIRST, 1, LAST)
"""Pipeline ranks that are checked; where layers differ, :func:`_places` adds one."""
PLACES_IF_UNLIKE: tuple[Place, ...] = (FIRST, 1, 2, 3, 0.25, 0.5, 0.75, LAST)
"""PLACES if some layers are frozen and others are not, so that any rank may be the fullest."""
ROUNDING_BYTES = 2.0 * MIB
"""Needs are rounded up to allocator segments, so more transient memory may lower a need with its risk by this much."""
SEGMENTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Numbers of layers recomputed from one input that are tried for whether anything fits."""


@dataclass(frozen=True)
class Need:
    """The least device memory that each row needs, in bytes, and the pipeline rank that needs it, int32[rows].

    ``predicted_bytes`` ignores that predictions err.
    """

    needed_bytes: Floats
    stage: NDArray[np.int32]
    predicted_bytes: Floats

    def subset(self, which: NDArray[np.bool_]) -> Need:
        """The needs of some of the rows."""
        return Need(self.needed_bytes[which], self.stage[which], self.predicted_bytes[which])


@dataclass(frozen=True)
class Least:
    """The least that pipeline ranks of rows hold at some moment of the schedule, arrays [places, rows].

    Fields: the rank, its layers, the most microbatches of a layer in flight; bytes of states, saved activations,
    workspaces beside these, and memory outside the allocator; predicted gaps for each byte that comes and goes; and the
    device memory for all of it, with the requested probability and as predicted.
    """

    rank: Floats
    layers: Floats
    deepest: Floats
    static_bytes: Floats
    activations_bytes: Floats
    transient_bytes: Floats
    overhead_bytes: Floats
    gaps: Floats
    needed_bytes: Floats
    predicted_bytes: Floats


def needs(rows: Rows) -> Need:
    """The least device memory that each row needs: context, communicators, and the allocator's least.

    Rows with undecided recomputation need what the most frugal policy needs.
    """
    needed, stage = np.full(rows.count, np.inf), np.zeros(rows.count, dtype=np.int32)
    predicted, flying = needed.copy(), Flights(rows, _places(rows.problem.graph))
    for first in range(0, rows.count, ROW_BATCH):
        part = slice(first, first + ROW_BATCH)
        some, here = rows.subset(part), np.arange(first, min(first + ROW_BATCH, rows.count))
        waiting = select_undecided(some)
        for policy, mine in [(None, ~waiting), *(_frugal(some, waiting) if waiting.any() else ())]:
            need = some.subset(mine)
            if policy is not None:
                need.set("recompute", np.arange(need.count), policy)
            (most, least), rank = _most(need, flying)
            better = most < needed[here[mine]]
            needed[here[mine][better]], stage[here[mine][better]] = most[better], rank[better]
            predicted[here[mine]] = np.minimum(predicted[here[mine]], least)
    return Need(needed, stage, predicted)


def bytes_with_table(rows: Rows, row: int, table: Schedule, problem: Problem | None = None) -> float:
    """The least device memory of a row with the table that it runs, in bytes, for its or another ``problem``."""
    one = rows.subset([row])
    one.problem = problem or rows.problem
    parts = _of_alike(one, np.zeros(1, dtype=np.int64), Flights(one, range(table.num_ranks), table))
    return float(Least(*parts).needed_bytes.max())


def _frugal(rows: Rows, waiting: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Policies that need the least memory, each with the waiting rows whose stages are long enough for it."""
    layers = len(rows.problem.graph.layers)
    longest = np.maximum(-(-layers // rows["stages"]), 1)
    yield NONE, waiting
    for size in SEGMENTS:
        if (fits := waiting & (longest >= size)).any():
            yield by_layer([(joint_mode(size), layers)]) if size > 1 else FULL, fits


def _most(rows: Rows, flying: Flights) -> tuple[Floats, Floats]:
    """The need of the fullest pipeline rank of every row, and which rank it is.

    float64[2, rows], with the requested probability and as predicted, and float64[rows].
    """
    most, rank = np.zeros((2, rows.count)), np.zeros(rows.count)
    for which in _alike(rows) if rows.count else ():
        least_held = Least(*_of_alike(rows, which, flying))
        place = np.argmax(least_held.needed_bytes, axis=0), np.arange(len(which))
        most[:, which] = least_held.needed_bytes[place], least_held.predicted_bytes.max(axis=0)
        rank[which] = least_held.rank[place]
    return most, rank


def _places(graph: ModelGraph) -> tuple[Place, ...]:
    """The pipeline ranks that are checked; where layers differ, also that with most of those that make most of it."""
    if any(graph.blocks[name].has_no_backward for name in graph.layers):
        return PLACES_IF_UNLIKE
    names = dict.fromkeys(graph.layers)
    if len(names) == 1:
        return PLACES
    return (*PLACES, max(names, key=lambda name: graph.layers.count(name) * graph.blocks[name].parameters(graph.dims)))


def find_fullest_rank(rows: Rows, row: int) -> dict[str, float]:
    """The fields of :class:`Least` for the pipeline rank of a row that needs the most memory."""
    least_held = compute_least(rows.subset([row]), _places(rows.problem.graph))
    place = int(np.argmax(least_held.needed_bytes[:, 0]))
    return {name: float(getattr(least_held, name)[place, 0]) for name in Least.__annotations__}


def compute_least(rows: Rows, places: Sequence[Place]) -> Least:
    """The least that pipeline ranks at ``places`` hold."""
    values, flying = np.zeros((len(Least.__annotations__), len(places), rows.count)), Flights(rows, places)
    for which in _alike(rows) if rows.count else ():
        for part, column in zip(values, _of_alike(rows, which, flying), strict=True):
            part[:, which] = column
    return Least(*values)


@dataclass
class Flights:
    """Flights of the pipelines of rows at some ranks (``places``), each made once for a way of recomputation.

    A single row may come with its ``table``; without it, the least over the tables of its schedule for any durations
    counts.
    """

    rows: Rows
    places: Sequence[Place]
    table: Schedule | None = None
    _known: dict[str, tuple[Ints, Flight]] = field(default_factory=dict)

    @cached_property
    def names(self) -> list[str]:
        """Schedules by their codes, as they are costed: of half a pipeline if it has two ends."""
        return [HALF_SCHEDULES.get(str(name), str(name)) for name in self.rows.domain["schedule"]]

    def of(self, recompute: str, pipes: tuple[Ints, ...]) -> Flight:
        """Flights of some pipelines: codes of schedules, ranks, chunks and microbatches, each int64[n]."""
        number, ranks, chunks, microbatches = pipes
        code = ((number << 26 | microbatches) << 12 | chunks) << 20 | ranks
        if recompute not in self._known:
            self._known[recompute] = code, self._make(recompute, pipes)
        codes, flight = self._known[recompute]
        if (new := ~are_among(code, np.sort(codes))).any():
            codes = np.append(codes, code[new])
            flight = flight.beside(self._make(recompute, tuple(column[new] for column in pipes)))
            self._known[recompute] = codes, flight
        order = np.argsort(codes)
        return flight.where(order[np.searchsorted(codes, code, sorter=order)])

    def _make(self, recompute: str, pipes: tuple[Ints, ...]) -> Flight:
        problem, (number, *sizes) = self.rows.problem, pipes
        each = set(zip(*(column.tolist() for column in sizes[:2]), strict=True))
        layers = {(pp, vpp): _layers(problem, pp, vpp) for pp, vpp in each}
        ranks, chunks, microbatches = sizes
        schedules, sized = (self.names, number, self.table), (ranks, chunks, microbatches)
        return flights(problem.graph, schedules, recompute, sized, layers, self.places)


def _of_alike(rows: Rows, which: Ints, flying: Flights) -> tuple[Floats, ...]:
    """The fields of :class:`Least` for pipeline ranks of rows that are alike."""
    problem, columns = rows.problem, _columns(rows, which)
    graph, template = problem.graph, _template(rows, int(which[0]))
    stack, training = stack_for_layout(problem.stack, template), problem.training
    microbatches = training.global_batch // (columns["dp"] * columns["micro_batch"])
    number = rows.code["schedule"][which].astype(np.int64)
    looped = np.isin(number, [at for at, name in enumerate(flying.names) if not producer_of(name).v_shaped])
    pipe, pipe_of = factorize(number, columns["pp"], columns["vpp"], microbatches)
    shape, shape_of = factorize(*(columns[name] for name in SHAPED))
    alternates = microbatches > 1
    several = (alternates,) if template.defer_grad_reduce else ()  # then states depend on it
    sizes_of_states = (columns[name] for name in columns if name not in ROWS_OF_STREAM)
    layout, layout_of = factorize(*sizes_of_states, looped, *several)
    layouts = _some(template, columns | {"sequence_parallel": np.zeros(len(which), dtype=bool)}, layout)
    accumulates = alternates[layout]
    schemes = ParameterBytes.of(layouts, stack, accumulates=accumulates)
    _, scheme_of = factorize(*(np.unique(column, return_inverse=True)[1] for column in astuple(schemes)))
    moving, moving_of = factorize(pipe_of, shape_of, scheme_of[layout_of])
    scheme = schemes.where(layout_of[moving])
    shapes = _some(template, columns, shape)
    dims, shaped = (dims_of(graph, some, training) for some in (layouts, shapes))
    overhead = np.broadcast_to(overhead_bytes(layouts.communicators, stack, problem.cluster), len(layout))
    outside = np.asarray(overhead[layout_of], dtype=np.float64)
    pipelines = (number[pipe], columns["pp"][pipe], columns["vpp"][pipe], microbatches[pipe])
    flight = flying.of(template.recompute, pipelines)
    held = held_blocks(graph, flight.where(pipe_of[layout]))
    held = replace(held, microbatches=microbatches[layout])
    static = held_memory(graph, held, dims.tensor, layouts, stack, problem.cluster.device)
    buffers = gathered_rows_bytes(shapes, residual_bytes(shaped.tensor, shapes)) * stack.memory.gather_buffers
    buffers = np.broadcast_to(np.floor(buffers), len(shape))[shape_of]
    resident, end = (
        np.broadcast_to(size, (len(flying.places), len(layout)))[:, layout_of] + buffers
        for size in (static.resident_bytes, static.end_bytes)
    )
    moves, sizes = flight.where(pipe_of[moving]), shape_of[moving]
    kept, workspace = least_moving_bytes(graph, moves, shaped, scheme, (template, stack), sizes)
    saved, beside = kept[:, moving_of], workspace[:, moving_of]
    beside = np.maximum(beside, end - resident - saved)
    errors = load_error_table().memory
    said = problem.base.experts.expert_imbalance  # also if loads are sampled
    asked = replace(template, expert_imbalance=said)
    experts = experts_risk_bytes(graph, moves, shaped, (asked, stack), sizes, errors.imbalance)
    unsure = (np.broadcast_to(each, kept.shape)[:, moving_of] for each in experts)
    gaps = stack.memory.allocator.tight_gaps(alternates)
    parts = Parts(resident, saved + beside, outside, *unsure)._replace(gaps=gaps)
    needed = _needed_bytes(problem, parts, alternates, stack.memory.allocator)
    pipelined = (each[:, pipe_of] for each in (flight.rank, flight.counts.sum(axis=0), flight.deepest))
    return (*pipelined, resident, saved, beside, outside, gaps, *needed)


def _needed_bytes(
    problem: Problem, parts: Parts, alternates: NDArray[np.bool_], allocator: AllocatorHabits
) -> tuple[Floats, Floats]:
    """The least need with the requested probability, and the need as predicted.

    The allocator takes as little as it can or, if some of the device is to stay free, what it reports.
    """
    outside = parts.outside_bytes
    room = problem.cluster.device.memory_bytes - outside
    reserved = reserve(parts.static_bytes, parts.moving_bytes, allocator, alternates=alternates, limit_bytes=room)
    risk, share = memory_risk(problem.stack, problem.cluster), 1.0 - problem.constraints.headroom
    needed = outside + reserved.needed_bytes
    surely = risk.needed_bytes(problem.constraints.fit_probability, needed, parts)
    surely = np.maximum(needed, surely - ROUNDING_BYTES)
    reported = reserved.reserved_bytes if share < 1.0 else 0.0
    return np.maximum(share * surely, outside + reported), np.maximum(share * needed, outside + reported)


def _some(template: Layout, columns: dict[str, NDArray[Any]], which: Ints) -> Layout:
    """Some of the layouts that differ from a template in columns."""
    return template.with_columns({name: column[which] for name, column in columns.items()})


def _layers(problem: Problem, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of every virtual stage."""
    choices = {"pp": pp, "vpp": vpp, "stages": None, "encoder_in_bubbles": False, "layers": None}
    layout = Layout(**fill_open_choices(choices, BY_MODEL, (problem.graph, problem.stack)))
    return layout.stage_layers(len(problem.graph.layers))


def _columns(rows: Rows, which: Ints) -> dict[str, NDArray[Any]]:
    """Sizes of some rows as they are costed: of half the pipeline if it has two ends."""
    result = {name: rows[name][which] for name in COLUMNS} | {"etp": rows["expert_tp"][which]}
    two = select_two_ended(rows)[which]
    if two.any():
        result["pp"], result["dp"], result["vpp"] = (
            np.where(two, other, result[name])
            for name, other in (("pp", result["pp"] // 2), ("dp", 2 * result["dp"]), ("vpp", 2 * result["vpp"]))
        )
    return result


def _alike(rows: Rows) -> list[Ints]:
    """Groups rows by recomputation, requested axes, kind of data parallelism, and whether they are pipelined."""
    once = rows.problem.stack.once_a_step(True, rows["is_pipelined"])
    offloads = "offload_optimizer" in rows.domain or rows.problem.base.offload.is_used
    free = offloads & leaves_unasked(rows["zero"], rows["width"])  # of the plan's own mesh, not half of it
    key = rows.number(ALIKE, 4 * fully_sharded(rows) + 2 * once + free, 8)
    first, place = factorize(key)
    small = place.astype(np.min_scalar_type(len(first)))  # 16-bit numbers get a radix sort
    order = np.argsort(small, kind="stable")
    return np.split(order, np.cumsum(np.bincount(place))[:-1])


def _template(rows: Rows, index: int) -> Layout:
    """A layout with what rows that are alike share.

    Sampled loads are as even as they may come out, and gradients are reduced as early as in any of the rows. Where that
    is left open, parameters are resharded as under ZeRO-3, which some of the rows may have.
    """
    plan, stack = fill_dp(rows, index), rows.problem.stack
    reshards = plan.data_parallel.reshard_after_forward
    layout = fold_two_ended(
        Layout.of(plan, fill_open_choices(stated_choices(plan), (DISPATCH, *BY_STACK, OFFLOAD), stack))
    )
    return replace(
        layout,
        recompute=FULL if layout.recompute == OPTIMAL else layout.recompute,
        overlap_grad_reduce=True,
        reshard_after_forward=not once_a_step(layout, stack) if reshards is None else reshards,
        expert_imbalance=0.0 if layout.expert_load == "sampled" else layout.expert_imbalance,
    )
