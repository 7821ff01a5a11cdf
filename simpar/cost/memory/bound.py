"""A lower bound of the simulated peak of pipeline ranks, for arrays of layouts at once: what search drops rows with.

At a moment of the schedule (:mod:`simpar.cost.memory.moments`) so many forwards are in flight and one forward or
backward runs. What is certainly there then is summed: what the forwards saved, the workspace of the last layer of the
chunk or of the head, parameters that came for it and for the layer after it, its gradient. What depends on how long
transfers take (gradients that still wait for their reduction, copies on their way to the host) is left out, so the
Program never holds less at its peak, and exactly as much where nothing of that kind is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.activations import BlockActivations, block_activations
from simpar.cost.memory.layouts import Layouts
from simpar.cost.memory.moments import moment, stages_of
from simpar.cost.memory.static import Held
from simpar.cost.memory.widths import keeps_parameters, kept_gradients, once_a_step, parameter_widths
from simpar.cost.stack import Stack
from simpar.models.graph import Block, ModelGraph
from simpar.models.recompute import of_layer
from simpar.plan.plan import Plan
from simpar.plan.sharding import RankDims
from simpar.plan.sync import apart

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Kind = tuple[str, str]
"""Name of a block of layers, and how it is recomputed."""
NONE = -1
SLACK = 2.0**-30
"""Relative; sizes of the Program are rounded to whole bytes one by one."""


@dataclass(frozen=True)
class Flight:
    """What a pipeline rank holds and has in flight at its moment, arrays of one length.

    ``counts`` are layers held and ``flying`` layers in flight by kind; ``last`` are numbers of kinds (-1: none): of the
    last layer of the chunk that runs forward, and of the one that runs backward. ``ends`` say whether those chunks hold
    the head, ``neighbours`` whether the backward's has a layer before its last.
    """

    rank: Ints
    kinds: tuple[Kind, ...]
    counts: dict[Kind, Ints]
    flying: dict[Kind, Ints]
    embeddings: tuple[Ints, Ints]
    heads: tuple[Ints, Ints]
    last: tuple[Ints, Ints]
    ends: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    neighbours: NDArray[np.bool_]
    splits: NDArray[np.bool_]

    def where(self, which: Ints) -> Flight:
        """Some of the layouts."""
        return Flight(
            rank=self.rank[which],
            kinds=self.kinds,
            counts={kind: count[which] for kind, count in self.counts.items()},
            flying={kind: count[which] for kind, count in self.flying.items()},
            embeddings=(self.embeddings[0][which], self.embeddings[1][which]),
            heads=(self.heads[0][which], self.heads[1][which]),
            last=(self.last[0][which], self.last[1][which]),
            ends=(self.ends[0][which], self.ends[1][which]),
            neighbours=self.neighbours[which],
            splits=self.splits[which],
        )


def flights(
    graph: ModelGraph,
    schedules: tuple[Sequence[str], Ints],
    recompute: str,
    pipes: tuple[Ints, Ints, Ints],
    layers_of: Mapping[tuple[int, int], Sequence[int]],
    places: Sequence[int | float],
) -> list[Flight]:
    """Flights of some ranks of every layout.

    ``schedules`` are names and the number of every layout's, ``pipes`` pp, vpp and microbatches, int64[layouts];
    ``layers_of`` gives layers of every virtual stage by (pp, vpp); ``places`` are ranks: whole numbers from the first
    one on (as far as there are so many), or shares of the way to the last one (1.0).
    """
    pp, vpp, microbatches = pipes
    kinds = [(name, of_layer(recompute, layer)) for layer, name in enumerate(graph.layers)]
    distinct = tuple(dict.fromkeys(kinds))
    codes = np.array([distinct.index(kind) for kind in kinds], dtype=np.int64)
    found = [_Columns.empty(len(pp), distinct) for _ in places]
    names, number = schedules
    shapes, which = np.unique(np.stack([number, pp, vpp]), axis=1, return_inverse=True)
    order, cuts = _groups(which.ravel(), shapes.shape[1])
    for (name, ranks, chunks), mine in zip(shapes.T.tolist(), np.split(order, cuts), strict=True):
        bounds = np.cumsum([0, *layers_of[ranks, chunks]])
        for place, columns in zip(places, found, strict=True):
            rank = min(place, ranks - 1) if isinstance(place, int) else round(place * (ranks - 1))
            columns.fill(mine, (names[name], rank, ranks, chunks), microbatches[mine], (codes, bounds))
    return [columns.flight() for columns in found]


def _groups(number: Ints, count: int) -> tuple[Ints, Ints]:
    """Positions by their number, and where those of each end."""
    order = np.argsort(number, kind="stable")
    return order, np.cumsum(np.bincount(number, minlength=count))[:-1]


@dataclass
class _Columns:
    """Columns of a flight while they are filled shape by shape."""

    kinds: tuple[Kind, ...]
    rank: Ints
    held: Ints
    flying: Ints
    ends: Ints
    last: Ints
    neighbours: NDArray[np.bool_]
    heads: NDArray[np.bool_]
    splits: NDArray[np.bool_]

    @staticmethod
    def empty(count: int, kinds: tuple[Kind, ...]) -> _Columns:
        sized = (len(kinds), count)
        return _Columns(
            kinds,
            np.zeros(count, dtype=np.int64),
            np.zeros(sized, dtype=np.int64),
            np.zeros(sized, dtype=np.int64),
            np.zeros((4, count), dtype=np.int64),
            np.full((2, count), NONE, dtype=np.int64),
            np.zeros(count, dtype=bool),
            np.zeros((2, count), dtype=bool),
            np.zeros(count, dtype=bool),
        )

    def fill(
        self, mine: Ints, pipe: tuple[str, int, int, int], microbatches: Ints, layers: tuple[Ints, Ints]
    ) -> None:
        """Rows ``mine`` of one (schedule, rank, ranks, chunks)."""
        schedule, rank, ranks, chunks = pipe
        codes, bounds = layers
        stages = np.array(stages_of(schedule, rank, ranks, chunks))
        at = moment(schedule, rank, ranks, microbatches, chunks)
        own = [codes[bounds[stage] : bounds[stage + 1]] for stage in stages.tolist()]
        table = np.array([np.bincount(each, minlength=len(self.kinds)) for each in own])  # [chunks, kinds]
        self.rank[mine] = rank
        self.held[:, mine] = table.sum(axis=0)[:, None]
        self.flying[:, mine] = (at.flying @ table).T
        first, last = stages == 0, stages == len(bounds) - 2
        self.ends[:, mine] = np.stack(
            [
                np.full(len(mine), first.any()),
                at.flying @ first.astype(np.int64),
                np.full(len(mine), last.any()),
                at.flying @ last.astype(np.int64),
            ]
        )
        final = np.array([each[-1] if len(each) else NONE for each in own])
        forward = at.forward
        self.last[0, mine] = np.where(forward >= 0, final[forward], NONE)
        self.last[1, mine] = final[at.backward] if at.backward >= 0 else NONE
        self.heads[0, mine] = (forward >= 0) & last[forward]
        self.heads[1, mine] = at.backward >= 0 and last[at.backward]
        self.neighbours[mine] = len(own[at.backward]) > 1
        self.splits[mine] = at.splits

    def flight(self) -> Flight:
        """The filled columns."""
        return Flight(
            rank=self.rank,
            kinds=self.kinds,
            counts=dict(zip(self.kinds, self.held, strict=True)),
            flying=dict(zip(self.kinds, self.flying, strict=True)),
            embeddings=(self.ends[0], self.ends[1]),
            heads=(self.ends[2], self.ends[3]),
            last=(self.last[0], self.last[1]),
            ends=(self.heads[0], self.heads[1]),
            neighbours=self.neighbours,
            splits=self.splits,
        )


def trains_unlike(graph: ModelGraph) -> bool:
    """Whether some layers are frozen, so that where on a pipeline a layer stands decides what it keeps."""
    return any(graph.blocks[name].still for name in graph.layers)


def held_of(graph: ModelGraph, flight: Flight) -> Held:
    """The blocks that the ranks of a flight hold."""
    layers: dict[str, Any] = {}
    for (name, _), count in flight.counts.items():
        layers[name] = layers.get(name, 0) + count
    blocks = [(graph.blocks[name], count) for name, count in layers.items()]
    ends = [(graph.embedding, flight.embeddings[0]), (graph.head, flight.heads[0])]
    return Held((*blocks, *ends), flight.embeddings[0], flight.heads[0])


@dataclass(frozen=True)
class Scheme:
    """Bytes a parameter that data parallelism and offloading bring to a pass, arrays over layouts.

    ``gathered`` and ``gathered_experts`` come for a pass (0: nothing comes), ``ahead`` for the layer after it;
    ``gradient`` are whole ones that a backward makes, ``sent`` those that wait for their way to the host.
    """

    gathered: Floats
    gathered_experts: Floats
    ahead: Floats
    gradient: Floats
    gradient_experts: Floats
    sent: Floats

    @staticmethod
    def of(layouts: Layouts, plan: Plan, stack: Stack) -> Scheme:
        """Of resolved plans that differ in the columns of ``layouts``."""
        width, zero = parameter_widths(plan, stack), np.asarray(layouts.zero)
        together = not apart(plan) and plan.data_parallel.kind != "single_process"
        fsdp = plan.data_parallel.kind == "fsdp" and together
        fetches = plan.offload.offload_parameters != "none"
        comes = (zero == 3) & fsdp & ~keeps_parameters(plan, stack, layouts.pp, zero)
        makes = (zero >= 2) & fsdp & ~once_a_step(plan, stack, layouts.pp) & ~np.asarray(layouts.late, bool)
        dense, experts = layouts.shards > 1, layouts.expert_shards > 1
        away = 1.0 - kept_gradients(plan, zero, layouts.width)
        return Scheme(
            gathered=np.where(fetches | (comes & dense), width.compute, 0.0),
            gathered_experts=np.where(fetches | (comes & experts), width.compute, 0.0),
            ahead=np.where(comes & dense & (not fetches), width.compute, 0.0),
            gradient=np.where(makes & dense, width.compute, 0.0),
            gradient_experts=np.where(makes & experts, width.compute, 0.0),
            sent=np.asarray(away * width.gradient * together * ~np.asarray(layouts.late, bool)),
        )


def least_moving_bytes(
    graph: ModelGraph,
    flight: Flight,
    dims: RankDims,
    layouts: Layouts,
    habits: tuple[Plan, Stack],
    expand: Any,
) -> tuple[Floats, Floats]:
    """(bytes that forwards in flight have saved, bytes beside them), float64 over layouts.

    ``dims`` are those of the distinct ranks, and ``expand`` the index of every layout's among them (or ...). The plan
    must be resolved.
    """
    plan, stack = habits
    scheme, away = Scheme.of(layouts, plan, stack), plan.offload.offload_activations

    def counted(size: Any) -> Any:
        return np.asarray(size, dtype=np.float64)[expand] if np.ndim(size) else float(size)

    def sized(block: Block, recompute: str) -> BlockActivations:
        found = block_activations(block, dims, stack, plan.numerics, recompute)
        return BlockActivations(*(counted(getattr(found, each.name)) for each in fields(found)))

    head = sized(graph.head, "none")
    saved = flight.heads[1] * head.saved_bytes
    saved = saved + (1.0 - away) * flight.embeddings[1] * sized(graph.embedding, "none").saved_bytes
    forward = np.where(flight.ends[0], head.forward_workspace_bytes, 0.0)
    backward = np.where(flight.ends[1], head.backward_workspace_bytes, 0.0)
    alike = len(set(graph.layers)) == 1
    for number, (name, recompute) in enumerate(flight.kinds):
        block = graph.blocks[name]
        sizes = sized(block, recompute)
        saved = saved + (1.0 - away) * flight.flying[name, recompute] * sizes.saved_bytes
        experts = counted(block.trained_experts(dims.tensor))
        dense = counted(block.trained_parameters(dims.tensor)) - experts
        width = parameter_widths(plan, stack).compute
        frozen, frozen_experts = (counted(size) / width for size in block.frozen_bytes(dims.tensor, width))
        came = scheme.gathered * (dense + frozen) + scheme.gathered_experts * (experts + frozen_experts)
        came = came * (not block.still)
        made = scheme.gradient * dense + scheme.gradient_experts * experts + scheme.sent * (dense + experts)
        after = scheme.ahead * (dense + frozen) * flight.neighbours * alike * (not block.still)
        beside = np.where(flight.splits, np.maximum(came + after, made), came + after + made)
        again = sizes.recomputed_bytes + sizes.backward_workspace_bytes + beside
        own = away * sizes.saved_bytes
        there = own + again - flight.ends[1] * head.saved_bytes
        backward = np.where(flight.last[1] == number, np.maximum(backward, there), backward)
        runs = own + sizes.forward_workspace_bytes + came - flight.ends[0] * head.saved_bytes
        forward = np.where(flight.last[0] == number, np.maximum(forward, runs), forward)
    return saved * (1.0 - SLACK), np.maximum(np.maximum(forward, backward) * (1.0 - SLACK) - 64.0, 0.0)
