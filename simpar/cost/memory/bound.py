"""A lower bound of the simulated peak of pipeline ranks, for arrays of layouts at once, by which a search drops rows.

At a moment of the schedule (:mod:`simpar.cost.memory.moments`) a known number of forwards is in flight while one
forward or backward runs. The bound sums what is certainly there at that moment: saved tensors of these forwards, the
workspace of the chunk's last layer or of the head, parameters gathered for it and for the layer after it, and its
gradient. Bytes that depend on the duration of transfers (gradients that still wait for their reduction, copies on their
way to the host) are left out. The peak of the Program is therefore never below the bound, and equals it where there are
no such bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields

import numpy as np

from simpar.architectures.graph import Block, ModelGraph
from simpar.architectures.recompute import of_layer
from simpar.cost.activations import BlockActivations, block_activations
from simpar.cost.memory.moments import find_fullest_moment, moment, stages_of, stages_of_rank
from simpar.cost.memory.terms import HeldBlocks
from simpar.cost.memory.widths import (
    defers,
    keeps_parameters,
    kept_gradients,
    narrows_frozen,
    once_a_step,
    parameter_widths,
    reduces_late,
)
from simpar.dataclass import dataclass
from simpar.layout.layout import Layout
from simpar.layout.sharding import RankDims
from simpar.plan.schedules.actions import Schedule
from simpar.plan.schedules.producer import NONE
from simpar.stacks.stack import Stack
from simpar.units import Flags, Floats, Ints, Numbers

Kind = tuple[str, str]
"""Name of a block of layers, and how it is recomputed."""
Place = int | float | str
"""A pipeline rank: its number, at most the last one's; a share of the way to the last (1.0); or, by the name of a
block, the first of the ranks that hold most layers of it."""
SLACK = 2.0**-30
"""Relative; the Program rounds each size to whole bytes."""


@dataclass(frozen=True)
class Flight:
    """What pipeline ranks of layouts hold and have in flight at their moments, arrays [..., places, layouts].

    By kind of layer, ``counts`` are layers held and ``flying`` layers in flight (times microbatches); ``deepest`` is
    the largest number of microbatches in flight of any chunk. ``embeddings`` and ``heads`` are pairs: held, in flight.
    The next two are pairs as well, for the chunk that runs forward and the one that runs backward: ``last`` is the kind
    of its last layer (-1: none), ``ends`` whether it holds the head. Of the chunk that runs backward, ``neighbours`` is
    whether it has a layer before its last, ``splits`` whether its weight gradients are a later pass.
    """

    kinds: tuple[Kind, ...]
    rank: Ints
    counts: Ints
    flying: Ints
    deepest: Ints
    embeddings: Ints
    heads: Ints
    last: Ints
    ends: Flags
    neighbours: Flags
    splits: Flags

    def where(self, which: Ints) -> Flight:
        """Some of the layouts."""
        arrays = (getattr(self, each.name) for each in fields(self)[1:])
        return Flight(self.kinds, *(array[..., which] for array in arrays))

    def beside(self, other: Flight) -> Flight:
        """These layouts, and behind them those of another flight of the same model."""
        arrays = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self)[1:])
        return Flight(self.kinds, *(np.concatenate(pair, axis=-1) for pair in arrays))


def _in_flight(
    pipe: tuple[str, int, int], rank: int, microbatches: Ints, layers: tuple[Ints, Ints, Ints], table: Schedule | None
) -> tuple[Ints | Flags, ...]:
    """Columns of a :class:`Flight`, in its order, of one rank of ``pipe`` (schedule, ranks, chunks): [..., layouts].

    ``layers`` are the kind of every layer, how many layers of each kind [kinds, layers + 1] come before it, and the
    layers at which virtual stages begin. ``table`` is the action table itself, which only a single layout can have.
    """
    (schedule, ranks, chunks), (codes, before, bounds) = pipe, layers
    at = find_fullest_moment(table, rank) if table else moment(schedule, rank, ranks, microbatches, chunks)
    number = len(microbatches)
    stages = stages_of_rank(table, rank) if table else np.array(stages_of(schedule, rank, ranks, chunks))
    begin, end, last = bounds[stages], bounds[stages + 1], stages == len(bounds) - 2
    held = before[:, end] - before[:, begin]  # [kinds, chunks]
    final = np.where(end > begin, codes[end - 1], NONE)
    sides = np.array([at.forward, np.full(number, at.backward)])
    return (
        np.full(number, rank),
        np.repeat(held.sum(axis=1)[:, None], number, axis=1),
        held @ at.flying.T,
        at.flying.max(axis=1),
        *(np.array([np.full(number, here.any()), at.flying @ here]) for here in (stages == 0, last)),
        np.where(sides >= 0, final[sides], NONE),
        (sides >= 0) & last[sides],
        np.full(number, (end - begin)[at.backward] > 1),
        np.full(number, at.splits),
    )


def _rank_at(place: Place, pipe: tuple[str, int, int], layers: Sequence[str], bounds: Ints) -> int:
    """The pipeline rank at a place of ``pipe`` (schedule, ranks, chunks), whose stages begin at layers ``bounds``."""
    schedule, ranks, chunks = pipe
    if not isinstance(place, str):
        return min(place, ranks - 1) if isinstance(place, int) else round(place * (ranks - 1))
    before = np.cumsum([0, *(name == place for name in layers)])
    stages = np.array([stages_of(schedule, rank, ranks, chunks) for rank in range(ranks)])
    return int(np.argmax((before[bounds[stages + 1]] - before[bounds[stages]]).sum(axis=1)))


def flights(
    graph: ModelGraph,
    schedules: tuple[Sequence[str], Ints, Schedule | None],
    recompute: str,
    pipes: tuple[Ints, Ints, Ints],
    layers_of: Mapping[tuple[int, int], Sequence[int]],
    places: Sequence[Place],
) -> Flight:
    """Flights of some ranks of every layout.

    ``schedules`` are the names, the index of each layout's name among them (int64[layouts]), and the action table of a
    single layout, else None. ``pipes`` are pipeline ranks, chunks per rank and microbatches, each int64[layouts];
    ``layers_of`` gives the layers of every virtual stage by (ranks, chunks).
    """
    num_ranks, num_chunks, microbatches = pipes
    kinds = [(name, of_layer(recompute, layer)) for layer, name in enumerate(graph.layers)]
    distinct = tuple(dict.fromkeys(kinds))
    codes = np.array([distinct.index(kind) for kind in kinds], dtype=np.int64)
    before = np.cumsum([[0, *(codes == kind)] for kind in range(len(distinct))], axis=1)
    names, number, table = schedules
    parts = list[tuple[Ints | Flags, ...]]()
    shapes, which = np.unique(np.stack([number, num_ranks, num_chunks]), axis=1, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    cuts = np.cumsum(np.bincount(which.ravel(), minlength=shapes.shape[1]))[:-1]
    for (name, ranks, chunks), mine in zip(shapes.T.tolist(), np.split(order, cuts), strict=True):
        bounds = np.cumsum([0, *layers_of[ranks, chunks]])
        pipe, layers = (names[name], ranks, chunks), (codes, before, bounds)
        at = [_rank_at(place, pipe, graph.layers, bounds) for place in places]
        parts.extend(_in_flight(pipe, rank, microbatches[mine], layers, table) for rank in at)
    back, count = np.argsort(order), len(places)
    columns = (
        np.stack([np.concatenate(each[place::count], axis=-1) for place in range(count)], axis=-2)
        for each in zip(*parts, strict=True)
    )
    return Flight(distinct, *(column[..., back] for column in columns))


def held_blocks(graph: ModelGraph, flight: Flight) -> HeldBlocks:
    """The blocks that the ranks of a flight hold."""
    layers: dict[str, Numbers] = {}
    for (name, _), count in zip(flight.kinds, flight.counts, strict=True):
        layers[name] = layers.get(name, 0) + count
    blocks = [(graph.blocks[name], count) for name, count in layers.items()]
    ends = [(graph.embedding, flight.embeddings[0]), (graph.head, flight.heads[0])]
    return HeldBlocks((*blocks, *ends), flight.embeddings[0], flight.heads[0])


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes per parameter that data parallelism and offloading bring to a pass, arrays over layouts.

    ``gathered`` and ``gathered_experts`` arrive for a pass (0 where nothing does), ``ahead`` for the layer after it;
    ``gradient`` and ``gradient_experts`` are whole gradients that a backward makes, ``sent`` those that wait for their
    transfer to the host.
    """

    gathered: Floats
    gathered_experts: Floats
    ahead: Floats
    gradient: Floats
    gradient_experts: Floats
    sent: Floats

    @staticmethod
    def of(layout: Layout, stack: Stack, *, accumulates: Flags | bool) -> ParameterBytes:
        """Of layouts as columns; ``accumulates``: their steps have several microbatches."""
        width, zero = parameter_widths(layout, stack), np.asarray(layout.zero)
        together = not layout.replicas_are_independent and layout.kind != "single_process"
        fsdp = layout.kind == "fsdp" and together
        fetches = layout.offload_parameters != "none"
        comes = (zero == 3) & fsdp & ~keeps_parameters(layout)
        # than in the first backward
        later = reduces_late(layout, stack) | once_a_step(layout, stack) | (defers(layout, stack) & accumulates)
        makes = (zero >= 2) & fsdp & ~later
        dense, experts = layout.shards > 1, layout.expert_shards > 1
        away = 1.0 - kept_gradients(layout)
        whole = (fetches | (comes & dense), fetches | (comes & experts), comes & dense & (not fetches))
        made = (makes & dense, makes & experts)
        sent = away * width.gradient * together * ~later
        there = (np.where(each, width.compute, 0.0) for each in (*whole, *made))
        return ParameterBytes(*np.broadcast_arrays(*there, sent))

    def where(self, which: Ints) -> ParameterBytes:
        """Some of the layouts."""
        return ParameterBytes(*(column[which] for column in astuple(self)))


def least_moving_bytes(
    graph: ModelGraph,
    flight: Flight,
    dims: RankDims,
    scheme: ParameterBytes,
    habits: tuple[Layout, Stack],
    expand: Ints,
) -> tuple[Floats, Floats]:
    """(bytes that forwards in flight have saved, bytes of the running pass beside them), float64 over layouts.

    ``dims`` hold only distinct values, and ``expand`` int64[layouts] is the index of each layout among them.
    ``habits`` are the layout and the stack.
    """
    layout, stack = habits
    away = layout.offload_activations

    def counted(size: Numbers) -> Numbers:
        return np.asarray(size, dtype=np.float64)[expand] if np.ndim(size) else float(size)

    def sized(block: Block, recompute: str) -> BlockActivations:
        activations = block_activations(block, dims, stack, layout, recompute)
        return BlockActivations(*(counted(getattr(activations, each.name)) for each in fields(activations)))

    head = sized(graph.head, "none")
    saved = flight.heads[1] * head.saved_bytes
    saved = saved + (1.0 - away) * flight.embeddings[1] * sized(graph.embedding, "none").saved_bytes
    forward = np.where(flight.ends[0], head.forward_workspace_bytes, 0.0)
    backward = np.where(flight.ends[1], head.backward_workspace_bytes, 0.0)
    alike = len(set(graph.layers)) == 1
    for number, (name, recompute) in enumerate(flight.kinds):
        block = graph.blocks[name]
        sizes = sized(block, recompute)
        saved = saved + (1.0 - away) * flight.flying[number] * sizes.saved_bytes
        experts = counted(block.trained_experts(dims.tensor))
        dense = counted(block.trained_parameters(dims.tensor)) - experts
        width = parameter_widths(layout, stack).compute
        still = block.frozen_bytes(dims.tensor, width, narrowed=narrows_frozen(layout))
        frozen, frozen_experts = (counted(size) / width for size in still)
        at_once = counted(block.largest_share(dims.tensor)) if stack.buckets.by_weight else 1.0
        # bytes of a layer's parameters that arrive for a pass, and of the whole gradients that it makes
        came = scheme.gathered * (dense + frozen) + scheme.gathered_experts * (experts + frozen_experts)
        came = came * (not block.has_no_backward) * at_once
        made = (scheme.gradient * dense + scheme.gradient_experts * experts) * at_once
        made = made + scheme.sent * (dense + experts)
        after = scheme.ahead * (dense + frozen) * at_once * flight.neighbours * alike * (not block.has_no_backward)
        # where backwards are split, I needs the parameters and W makes the gradients: never both at once
        beside = np.where(flight.splits, np.maximum(came + after, made), came + after + made)
        again = sizes.recomputed_bytes + sizes.backward_workspace_bytes + beside
        own = away * sizes.saved_bytes
        # ``saved`` counts the head of the running microbatch: by the last layer's backward it is gone, before that
        # layer's forward it is not there yet
        there = own + again - flight.ends[1] * head.saved_bytes
        backward = np.where(flight.last[1] == number, np.maximum(backward, there), backward)
        runs = own + sizes.forward_workspace_bytes + came - flight.ends[0] * head.saved_bytes
        forward = np.where(flight.last[0] == number, np.maximum(forward, runs), forward)
    return saved * (1.0 - SLACK), np.maximum(np.maximum(forward, backward) * (1.0 - SLACK) - 64.0, 0.0)
