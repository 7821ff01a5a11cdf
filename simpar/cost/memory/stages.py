"""What a pipeline rank of one plan holds, and its account."""

from __future__ import annotations

import numpy as np

from simpar.cost.in_flight import placement
from simpar.cost.memory.static import Held, StaticMemory, held_memory
from simpar.cost.stack import Stack
from simpar.models.graph import Block, ModelGraph
from simpar.models.training import Training
from simpar.plan.check import stage_layers
from simpar.plan.plan import Plan
from simpar.plan.sharding import tensor_dims


def stage_static_memory(
    graph: ModelGraph, plan: Plan, training: Training, stack: Stack, stage: int
) -> StaticMemory:
    """The account of pipeline rank ``stage``: of its tensor-parallel share of all its virtual stages.

    ``plan`` must be resolved and checked.
    """
    held = held_blocks(graph, plan, training, stage)
    return held_memory(graph, held, tensor_dims(graph, plan, training), plan, stack)


def held_blocks(graph: ModelGraph, plan: Plan, training: Training, stage: int) -> Held:
    """Blocks of a pipeline rank with how often it holds each."""
    layers = [piece for held in stage_chunks(graph, plan, training, stage).values() for piece in held]
    counts: dict[str, tuple[Block, int]] = {}
    for _, block in layers:
        counts[block.name] = (block, counts.get(block.name, (block, 0))[1] + 1)
    places = {layer for layer, _ in layers}
    return Held(tuple(counts.values()), embedding=int(-1 in places), head=int(len(graph.layers) in places))


def stage_chunks(
    graph: ModelGraph, plan: Plan, training: Training, stage: int
) -> dict[int, tuple[tuple[int, Block], ...]]:
    """Virtual stages of pipeline rank ``stage``, each with its (layer, block) in model order.

    Layer -1 is the embedding, the layer count the head.
    """
    counts = stage_layers(plan, len(graph.layers))
    bounds = np.concatenate([[0], np.cumsum(counts)]).tolist()
    named = [(layer, graph.blocks[name]) for layer, name in enumerate(graph.layers)]
    found: dict[int, tuple[tuple[int, Block], ...]] = {}
    for virtual in (v for v, rank in enumerate(placement(plan, training)) if rank == stage):
        before = ((-1, graph.embedding),) if virtual == 0 else ()
        after = ((len(named), graph.head),) if virtual == len(counts) - 1 else ()
        found[virtual] = (*before, *named[bounds[virtual] : bounds[virtual + 1]], *after)
    return found
