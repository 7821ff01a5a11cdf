"""The peak of a pipeline rank in closed form, for one layout or for arrays of them: what search bounds with.

    allocated = static + in flight x saved + largest of {forward, backward, loss} workspaces + sharding transients

The exact curve comes from the Program; this is a little above it, because it lets the largest workspace meet the
most activations, and needs neither a schedule's table nor a single op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simpar.cost.activations import activation_bytes
from simpar.cost.in_flight import in_flight, short_schedule
from simpar.cost.memory import (
    keeps_parameters,
    num_expert_shards,
    num_shards,
    once_a_step,
    parameter_widths,
    stage_chunks,
    stage_static_memory,
)
from simpar.cost.moving import Moving, PeakMemory, Scheme, Share
from simpar.cost.optimizers import moment_bytes, state_bytes
from simpar.cost.placeholders import placeholder_bytes
from simpar.cost.places import Place, Where
from simpar.cost.stack import Stack, reduce_bytes, under
from simpar.models.flops import shape_dims
from simpar.models.graph import Block, ModelGraph
from simpar.models.recompute import of_layer
from simpar.models.training import Training
from simpar.plan.plan import CUSTOM, Plan
from simpar.plan.routing import fullest_load
from simpar.plan.sharding import (
    SHARDED_DIMS,
    VOCAB_MULTIPLE,
    RankDims,
    context_dims,
    expert_dims,
    is_rows,
    rank_dims,
)

Array = Any
_ALONE = ("naive", "1f1b", "interleaved")
"""Schedules whose last stage runs a backward right after its forward, so that one microbatch's logits live."""


@dataclass(frozen=True)
class Layouts:
    """Columns of layouts, one value each (ints, bools or arrays that broadcast), otherwise as one plan says."""

    tp: Array
    dp: Array
    pp: Array = 1
    cp: Array = 1
    vpp: Array = 1
    micro_batch: Array = 1
    zero: Array = 0
    hsdp: Array = 1
    sequence_parallel: Array = False
    ep: Array = 1
    etp: Array = 0

    @property
    def expert_tensor_parallel(self) -> Array:
        """Ranks that share an expert; etp 0 means 1 where experts are spread, else tp."""
        usual = np.where(np.asarray(self.ep) > 1, 1, self.tp)
        return np.where(np.asarray(self.etp) > 0, self.etp, usual)

    @property
    def expert_shards(self) -> Array:
        """Ranks that share one copy of the sharded states of an expert."""
        copies = self.tp * np.asarray(self.cp) * self.dp // (self.ep * self.expert_tensor_parallel)
        return np.where(np.asarray(self.zero) > 0, np.maximum(copies // self.hsdp, 1), 1)

    @property
    def shards(self) -> Array:
        """Ranks that share one copy of the sharded states."""
        return np.where(np.asarray(self.zero) > 0, self.dp * self.cp // self.hsdp, 1)


def peak_memory(graph: ModelGraph, plan: Plan, training: Training, stack: Stack, stage: int) -> PeakMemory:
    """Peak of pipeline rank ``stage`` under a resolved and checked plan."""
    stack = under(stack, plan)
    dims = rank_dims(graph, plan, training)
    static = stage_static_memory(graph, plan, training, stack, stage)
    shape = _stage_of(graph, plan, training, stage)
    scheme = _scheme(
        plan, stack, plan.mesh.pp, plan.data_parallel.zero, (num_shards(plan), num_expert_shards(plan))
    )
    several = plan.num_microbatches(training.global_batch) > 1
    moving = Moving(graph, shape, dims, plan, stack)
    return moving.peak(
        static.resident_bytes, scheme, held=_held(plan.mesh.pp, shape, stack), alternates=several
    )


def peak_memory_of(
    graph: ModelGraph, layouts: Layouts, plan: Plan, training: Training, stack: Stack, where: Where = False
) -> PeakMemory:
    """Peaks of one pipeline rank of many layouts; ``plan`` gives everything but the columns.

    Without a place layers are spread evenly; of stages between the ends none is fuller than the first under a schedule
    whose first rank has the most in flight.
    """
    stack = under(stack, plan)
    dims = _dims_of(graph, layouts, plan, training)
    num_microbatches = training.global_batch // (layouts.dp * layouts.micro_batch)
    if isinstance(where, Place):
        shape = _shape_at(graph, layouts, plan, where)
    else:
        shape = _shape_of(graph, layouts, plan, num_microbatches, last=where)
    embedding, head = (block.trained_parameters(dims.tensor) for block in (graph.embedding, graph.head))
    tied = np.where(np.asarray(layouts.pp) == 1, dims.tensor["vocab"] * dims.tensor["hidden"], 0)
    tied = tied * graph.tied_embeddings
    layers = sum(block.trained_parameters(dims.tensor) * count for block, _, count in shape.layers)
    experts = sum(block.trained_experts(dims.tensor) * count for block, _, count in shape.layers)
    parameters = layers - experts + embedding * shape.embedding + head * shape.head
    parameters = parameters - tied * (not graph.embedding.still)
    residual = (
        dims.tensor["batch"] * dims.tensor["seq"] * dims.tensor["hidden"] * activation_bytes(plan.numerics)
    )
    held = (parameters, experts)
    static = _static(held, _moments(graph, shape, dims, plan), layouts, plan, stack) + _gathered_rows(
        layouts, stack, residual
    )
    sharded = np.asarray(layouts.zero) == 3
    for size, shards in zip(
        _frozen(graph, shape, dims, (plan, stack), tied),
        (layouts.shards, layouts.expert_shards),
        strict=True,
    ):
        static = static + size / np.where(sharded, shards, 1)
    scheme = _scheme(plan, stack, layouts.pp, layouts.zero, (layouts.shards, layouts.expert_shards))
    moving = Moving(graph, shape, dims, plan, stack)
    held = _held(layouts.pp, shape, stack)
    static = static + placeholder_bytes(graph, dims.tensor, stack)
    return moving.peak(static, scheme, held=held, alternates=np.asarray(num_microbatches) > 1)


def _held(pp: Array, stage: Share, stack: Stack) -> Array:
    """Share of partial sums that are freed but not released: the host runs ahead of the device.

    Without a pipeline it runs ahead freely; with one it waits for messages, except in the warm-up.
    """
    microbatches = np.maximum(stage.in_flight / stage.chunks, 1.0)
    ahead = np.where(np.asarray(pp) == 1, 1.0, np.clip(microbatches - 2.0, 0.0, None) / microbatches)
    return stack.memory.allocator.held_outputs * ahead


def _scheme(plan: Plan, stack: Stack, pp: Array, zero: Array, shards: tuple[Array, Array]) -> Scheme:
    """``shards`` of what all ranks of a stage hold, and of experts."""
    widths = parameter_widths(plan, stack)
    several, several_experts = (np.asarray(each) > 1 for each in shards)
    units = np.where(several & (np.asarray(zero) >= 2), 1.0, 0.0) * (plan.data_parallel.kind == "fsdp")
    apart = not stack.numerics.gradient_accumulation_fusion and widths.stored < widths.gradient
    low = widths.compute if apart or plan.data_parallel.kind == "fsdp" else 0.0
    fetches = plan.offload.offload_parameters != "none"
    comes = (np.asarray(zero) == 3) & ~keeps_parameters(plan, stack, pp, zero)
    return Scheme(
        gathered=np.where(fetches | (several & comes), widths.compute, 0.0),
        gathered_experts=np.where(fetches | (several_experts & comes), widths.compute, 0.0),
        sent=widths.gradient * plan.offload.ratio,
        gradient=low,
        reduced=reduce_bytes(plan, stack),
        units=units,
    )


def _stage_of(graph: ModelGraph, plan: Plan, training: Training, stage: int) -> Share:
    chunks = stage_chunks(graph, plan, training, stage)
    held = [piece for pieces in chunks.values() for piece in pieces]
    kinds: dict[tuple[str, str], int] = {}
    for layer, block in held:
        if 0 <= layer < len(graph.layers):
            key = (block.name, of_layer(plan.memory.recompute, layer))
            kinds[key] = kinds.get(key, 0) + 1
    table = plan.schedule == CUSTOM or len(chunks) > 1
    flying = _in_flight(plan, training, stage)
    return Share(
        layers=tuple((graph.blocks[name], recompute, count) for (name, recompute), count in kinds.items()),
        embedding=int(any(layer < 0 for layer, _ in held)),
        head=int(any(layer == len(graph.layers) for layer, _ in held)),
        chunks=len(chunks),
        in_flight=flying,
        head_in_flight=1 if plan.schedule in _ALONE else flying,
        passes=_passes(graph, plan, training, stage) if table else (),
    )


def _in_flight(plan: Plan, training: Training, stage: int) -> int:
    if plan.schedule == CUSTOM or plan.pipeline.pass_costs:
        return short_schedule(plan, training).peak_in_flight(stage)
    microbatches = plan.num_microbatches(training.global_batch)
    return int(in_flight(plan.schedule, stage, plan.mesh.pp, microbatches, plan.pipeline.vpp))


def _passes(
    graph: ModelGraph, plan: Plan, training: Training, stage: int
) -> tuple[tuple[int, tuple[tuple[Block, str], ...]], ...]:
    """Forwards and releases of one rank in schedule order, of a table as short as saturates it."""
    schedule = short_schedule(plan, training)
    policy, num_layers = plan.memory.recompute, len(graph.layers)
    pieces = {
        virtual: tuple(
            (block, of_layer(policy, layer) if 0 <= layer < num_layers else "none") for layer, block in held
        )
        for virtual, held in stage_chunks(graph, plan, training, stage).items()
    }
    codes, stages, _ = schedule.arrays(stage)
    signs = np.array([1, -1, 0, -1])[codes]
    return tuple(
        (int(sign), pieces[int(virtual)]) for sign, virtual in zip(signs, stages, strict=True) if sign
    )


def _shape_of(
    graph: ModelGraph, layouts: Layouts, plan: Plan, num_microbatches: Array, *, last: bool
) -> Share:
    pp, vpp = np.asarray(layouts.pp), np.asarray(layouts.vpp)
    rank = pp - 1 if last else np.zeros_like(pp)
    flying = in_flight(plan.schedule, rank, pp, num_microbatches, vpp)
    share = np.ceil(len(graph.layers) / (pp * vpp)) * vpp / len(graph.layers)
    kinds: dict[tuple[str, str], float] = {}
    for layer, name in enumerate(graph.layers):
        key = (name, of_layer(plan.memory.recompute, layer))
        kinds[key] = kinds.get(key, 0.0) + 1.0
    return Share(
        layers=tuple((graph.blocks[name], how, count * share) for (name, how), count in kinds.items()),
        embedding=np.where(last & (pp > 1), 0, 1),
        head=np.where(last | (pp == 1), 1, 0),
        chunks=vpp,
        in_flight=flying,
        head_in_flight=1 if plan.schedule in _ALONE else flying / vpp,
    )


def _shape_at(graph: ModelGraph, layouts: Layouts, plan: Plan, place: Place) -> Share:
    counts = place.counts.items()
    return Share(
        layers=tuple((graph.blocks[name], how, count) for (name, how), count in counts),
        embedding=place.embedding,
        head=place.head,
        chunks=np.asarray(layouts.vpp),
        in_flight=place.in_flight,
        head_in_flight=1 if plan.schedule in _ALONE else place.in_flight / np.asarray(layouts.vpp),
    )


def _dims_of(graph: ModelGraph, layouts: Layouts, plan: Plan, training: Training) -> RankDims:
    """Dims of both regions as columns, as :mod:`simpar.plan.sharding` has them for one plan."""
    copies = plan.tensor_parallel.copies
    tp, cp = np.asarray(layouts.tp) // copies, np.asarray(layouts.cp)
    whole = {**shape_dims(graph, training.seq_len // copies), "batch": layouts.micro_batch}
    tensor = {name: _local_size(name, size, tp, cp) for name, size in whole.items()}
    tensor |= context_dims(plan.context_parallel, cp)
    sharded = np.asarray(layouts.sequence_parallel)
    rows = {name: np.where(sharded, size // tp, size) for name, size in tensor.items() if is_rows(name)}
    sequence = {**tensor, **rows}
    if not graph.is_mixture:
        return RankDims(tensor, sequence)
    own = {
        "experts": graph.dims["experts"] // np.asarray(layouts.ep),
        "expert_ffn": graph.dims["expert_ffn"] // layouts.expert_tensor_parallel,
    }
    tensor, sequence = {**tensor, **own}, {**sequence, **own}
    load = fullest_load(graph.dims["experts"], plan.experts, layouts.ep)
    return RankDims(tensor, sequence, expert_dims(tensor, sequence, layouts.expert_tensor_parallel, load))


def _local_size(name: str, size: Array, tp: Array, cp: Array) -> Array:
    """A dim on one rank: heads, ffn and vocabulary divided by ``tp``, rows by ``cp``."""
    kind = name.rpartition(".")[2]
    if kind == "vocab":
        padded = -(-size // (VOCAB_MULTIPLE * tp)) * VOCAB_MULTIPLE
        return np.where(tp > 1, padded, size)
    if kind == "kv_heads":
        return np.maximum(size // tp, 1)
    if kind in SHARDED_DIMS:
        return size // tp
    return size // cp if kind == "seq" else size


def _moments(graph: ModelGraph, shape: Share, dims: RankDims, plan: Plan) -> tuple[Array, Array]:
    """Bytes of optimizer states of a rank before sharding: of what is no expert, of experts."""
    ends = ((graph.embedding, shape.embedding), (graph.head, shape.head))
    totals: list[Array] = [0.0, 0.0]
    for block, count in (*((block, count) for block, _, count in shape.layers), *ends):
        for which, size in enumerate(state_bytes(block, dims.tensor, plan.numerics)):
            totals[which] = totals[which] + size * count
    both = np.asarray(shape.embedding) * np.asarray(shape.head) * graph.tied_embeddings
    shared = both * dims.tensor["vocab"] * dims.tensor["hidden"] * (not graph.embedding.still)
    return totals[0] - shared * moment_bytes(plan.numerics, other=True), totals[1]


def _frozen(
    graph: ModelGraph, shape: Share, dims: RankDims, habits: tuple[Plan, Stack], tied: Array
) -> tuple[Array, Array]:
    """Bytes of what a rank holds that is not trained, before it is sharded: of what is no expert, of experts."""
    width = parameter_widths(*habits).compute
    ends = ((graph.embedding, shape.embedding), (graph.head, shape.head))
    totals: list[Array] = [-width * tied * graph.embedding.still, 0.0]
    for block, count in (*((block, count) for block, _, count in shape.layers), *ends):
        for which, size in enumerate(block.frozen_bytes(dims.tensor, width)):
            totals[which] = totals[which] + size * count
    return totals[0], totals[1]


def _static(
    held: tuple[Array, Array], moments: tuple[Array, Array], layouts: Layouts, plan: Plan, stack: Stack
) -> Array:
    """Resident static bytes of so many parameters and expert parameters, before the padding of shards.

    ``moments`` are the bytes of their optimizer states.
    """
    widths, zero = parameter_widths(plan, stack), np.asarray(layouts.zero)
    fsdp = plan.data_parallel.kind == "fsdp"
    offload, parameters = plan.offload, held[0] + held[1]
    sent = offload.offload_gradients
    if sent is None:
        sent = (zero >= 2) | (np.asarray(layouts.dp * np.asarray(layouts.cp)) == 1)
    shard = np.ceil(held[0] / layouts.shards) + np.ceil(held[1] / layouts.expert_shards)
    stored = np.where((zero == 3) | ((zero == 2) & fsdp), shard, parameters) * widths.stored
    stored = stored * (offload.offload_parameters == "none")
    gradients = np.where((zero < 2) | once_a_step(plan, stack, layouts.pp), parameters, shard)
    gradients = gradients * widths.gradient * (1.0 - offload.ratio * sent)
    others = widths.states - moment_bytes(plan.numerics)
    kept = moments[0] + moments[1]
    cut = moments[0] / layouts.shards + moments[1] / layouts.expert_shards
    states = np.where(zero >= 1, shard, parameters) * others + np.where(zero >= 1, cut, kept)
    states = np.maximum(states, 0.0) * (1.0 - offload.ratio)
    kept = np.where(keeps_parameters(plan, stack, layouts.pp, zero), widths.compute, 0.0) * parameters
    several = (layouts.dp * np.asarray(layouts.cp) > 1) & (plan.data_parallel.kind == "ddp")
    buckets = np.where(several, stack.memory.bucket_bytes, 0.0) * parameters
    return stored + gradients + states + kept + buckets + stack.memory.allocator.workspace_bytes


def _gathered_rows(layouts: Layouts, stack: Stack, residual_bytes: Array) -> Array:
    shared = (np.asarray(layouts.tp) > 1) & np.asarray(layouts.sequence_parallel, dtype=bool)
    return np.where(shared, stack.memory.gather_buffers * residual_bytes, 0.0)
