"""The peak of a pipeline rank in closed form, from above: what the choice of what to recompute is made with.

    allocated = static + in flight x saved + largest of {forward, backward, loss} workspaces + sharding transients

The exact curve comes from the Program; this is a little above it, because it lets the largest workspace meet the
most activations, and needs neither a schedule's table nor a single op.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simpar.cost.in_flight import in_flight, short_schedule
from simpar.cost.memory import keeps_parameters, parameter_widths, stage_chunks, stage_static_memory
from simpar.cost.memory.layouts import Layouts
from simpar.cost.stack import Stack, reduce_bytes, under
from simpar.cost.transient_memory import Moving, PeakMemory, Scheme, Share
from simpar.models.graph import Block, ModelGraph
from simpar.models.recompute import of_layer
from simpar.models.training import Training
from simpar.plan.plan import CUSTOM, Plan
from simpar.plan.sharding import rank_dims

Array = Any
_ALONE = ("naive", "1f1b", "interleaved")
"""Schedules whose last stage runs a backward right after its forward, so that one microbatch's logits live."""


def peak_memory(graph: ModelGraph, plan: Plan, training: Training, stack: Stack, stage: int) -> PeakMemory:
    """Peak of pipeline rank ``stage`` under a resolved and checked plan."""
    stack = under(stack, plan)
    dims = rank_dims(graph, plan, training)
    static = stage_static_memory(graph, plan, training, stack, stage)
    shape = _stage_of(graph, plan, training, stage)
    layouts = Layouts.of(plan)
    scheme = _scheme(plan, stack, layouts.pp, layouts.zero, (layouts.shards, layouts.expert_shards))
    several = plan.num_microbatches(training.global_batch) > 1
    moving = Moving(graph, shape, dims, plan, stack)
    return moving.peak(
        static.resident_bytes,
        scheme,
        held=unreleased(plan.mesh.pp, shape.in_flight / shape.chunks, stack),
        alternates=several,
    )


def unreleased(pp: Array, in_flight: Array, stack: Stack) -> Array:
    """Share of partial sums that are freed but not released: the host runs ahead of the device.

    Without a pipeline it runs ahead freely; with one it waits for messages, except in the warm-up. ``in_flight`` are
    microbatches.
    """
    microbatches = np.maximum(in_flight, 1.0)
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
    flying = most_in_flight(plan, training, stage)
    return Share(
        layers=tuple((graph.blocks[name], recompute, count) for (name, recompute), count in kinds.items()),
        embedding=int(any(layer < 0 for layer, _ in held)),
        head=int(any(layer == len(graph.layers) for layer, _ in held)),
        chunks=len(chunks),
        in_flight=flying,
        head_in_flight=1 if plan.schedule in _ALONE else flying,
        passes=_passes(graph, plan, training, stage) if table else (),
    )


def most_in_flight(plan: Plan, training: Training, stage: int) -> int:
    """Most forwards that wait for their backward on a pipeline rank."""
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
