"""Static memory of a rank, exact to the byte: parameters, gradients, optimizer states, buffers, fixed overheads.

| scheme | bytes a parameter (bf16 compute, fp32 AdamW with master weights, bf16 gradients) |
|---|---|
| none, DDP | 2 + 2 + 12 |
| ZeRO-1 | 4 + 12/N |
| ZeRO-2 | 2 + 14/N |
| ZeRO-3 | 16/N |

With fp32 gradients add 2 [Rajbhandari et al. 2020, arXiv 1910.02054]; a stack that stores fp32 parameters holds
(4 + 4 + 8)/N under ZeRO-3. What moves during a step is in :mod:`simpar.cost.activations`, what the process holds
for all of it in :mod:`simpar.cost.allocator`, the closed form of the peak in :mod:`simpar.cost.peak`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simpar.cost.activations import activation_bytes
from simpar.cost.allocator import reserve, round_allocation
from simpar.cost.in_flight import placement
from simpar.cost.optimizers import MOMENTS, moment_bytes, state_bytes
from simpar.cost.placeholders import placeholder_bytes
from simpar.cost.stack import Stack
from simpar.hardware.cluster import Cluster
from simpar.models.graph import Block, Dims, ModelGraph, evaluate
from simpar.models.training import Training
from simpar.plan.check import stage_layers
from simpar.plan.plan import Plan
from simpar.plan.sharding import tensor_dims
from simpar.units import DTYPE_BYTES

Array = Any

__all__ = [
    "MOMENTS", "StaticMemory", "Widths", "checkpointed_peak", "num_communicators", "num_expert_shards", "num_shards",
    "overhead_bytes", "parameter_widths", "reserved_bytes", "round_allocation", "stage_chunks", "stage_static_memory",
    "static_memory",
]  # fmt: skip

_FLAT_ALIGNMENT = 128


@dataclass(frozen=True)
class StaticMemory:
    """Bytes that a rank holds between steps.

    ``buffers`` are gradient buckets apart from the gradients, gathered rows of sequence parallelism and the
    workspaces of GEMM libraries; ``copies`` are left from the parameter gather after the update and gone when
    the next pass peaks.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    buffers_bytes: int = 0
    copies_bytes: int = 0

    @property
    def resident_bytes(self) -> int:
        """What stays through forward and backward."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes + self.buffers_bytes

    @property
    def total_bytes(self) -> int:
        """All that is allocated after a step."""
        return self.resident_bytes + self.copies_bytes


def static_memory(
    num_parameters: int,
    plan: Plan,
    stack: Stack,
    *,
    shard_elements: int | None = None,
    residual_bytes: float = 0.0,
    moments_bytes: float | None = None,
) -> StaticMemory:
    """Static bytes of a rank that is responsible for ``num_parameters`` (before data-parallel sharding).

    ``plan`` must be resolved (dp, gradient dtype and master weights decided). ``shard_elements`` is the size of
    one shard with its padding (default: rounded up to whole elements), ``residual_bytes`` the whole rows of one
    microbatch's residual stream, ``moments_bytes`` a parameter of states where they differ between parameters.
    """
    zero, widths, offload = plan.data_parallel.zero, parameter_widths(plan, stack), plan.offload
    states = widths.states
    if moments_bytes is not None and not plan.data_parallel.servers:
        states += moments_bytes - moment_bytes(plan.numerics)
    shard = -(-num_parameters // num_shards(plan)) if shard_elements is None else shard_elements
    sharded = zero == 3 or (zero == 2 and plan.data_parallel.kind == "fsdp")
    here = offload.offload_parameters == "none"
    late = plan.data_parallel.overlap_grad_reduce is False
    whole = zero < 2 or late or bool(once_a_step(plan, stack, plan.mesh.pp))
    return StaticMemory(
        parameters_bytes=int(widths.stored * (shard if sharded else num_parameters)) if here else 0,
        gradients_bytes=int(kept_gradients(plan) * widths.gradient * (num_parameters if whole else shard)),
        optimizer_bytes=int((1.0 - offload.ratio) * states * (shard if zero >= 1 else num_parameters)),
        buffers_bytes=int(_buffers(num_parameters, plan, stack, residual_bytes)),
        copies_bytes=int(widths.stored * (num_parameters + shard)) if _copies(plan, stack) else 0,
    )


@dataclass(frozen=True)
class Widths:
    """Bytes a parameter: as stored, its gradient, its optimizer states with master weights, as computed with."""

    stored: float
    gradient: float
    states: float
    compute: float


def parameter_widths(plan: Plan, stack: Stack) -> Widths:
    """Bytes a parameter under a resolved plan; stacks may store parameters in fp32 whatever they compute in."""
    numerics, whole = plan.numerics, DTYPE_BYTES["fp32"]
    compute = whole if numerics.precision == "fp32" else DTYPE_BYTES["bf16"]
    stored = whole if stack.numerics.parameter_dtype == "fp32" else compute
    master = whole if numerics.master_weights and stored < whole else 0.0
    gradient = DTYPE_BYTES[numerics.grad_dtype or "fp32"]
    states = 0.0 if plan.data_parallel.servers else moment_bytes(numerics) + master
    return Widths(stored, gradient, states + outer_bytes(plan), compute)


def kept_gradients(plan: Plan) -> float:
    """Share of the gradients that has a place of its own on the device."""
    return 1.0 - plan.offload.ratio * bool(plan.offload.offload_gradients)


def once_a_step(plan: Plan, stack: Stack, pp: Array) -> Array:
    """Whether FSDP gathers parameters and reduces whole gradients once a step; bool, or an array like ``pp``."""
    return (plan.data_parallel.kind == "fsdp" and stack.overlap.once_in_pipelines) & (np.asarray(pp) > 1)


def keeps_parameters(plan: Plan, stack: Stack, pp: Array, zero: Array) -> Array:
    """Whether sharded parameters stay gathered between forward and backward; bool, or an array of them."""
    data = plan.data_parallel
    stays = data.zero == 3 and data.reshard_after_forward is False
    third = (np.asarray(zero) == 3) & (stays | once_a_step(plan, stack, pp))
    return (data.kind == "fsdp") & ((np.asarray(zero) == 2) | third)


def outer_bytes(plan: Plan) -> float:
    """Bytes a parameter of DiLoCo's outer optimizer: where the round began, and a momentum, both fp32.

    Source: Douillard et al. 2023, arXiv 2311.08105, algorithm 1 (Nesterov momentum on the outer gradient).
    """
    return 2 * DTYPE_BYTES["fp32"] if plan.data_parallel.sync == "diloco" else 0.0


def num_shards(plan: Plan) -> int:
    """Ranks that share one copy of the sharded states; context-parallel ranks count."""
    data = plan.data_parallel
    return int(plan.mesh.dp or 1) * plan.mesh.cp // data.hsdp if data.zero else 1


def num_expert_shards(plan: Plan) -> int:
    """Ranks that share one copy of the sharded states of an expert: fewer, because others hold other experts."""
    data = plan.data_parallel
    return max(plan.mesh.expert_data_parallel // data.hsdp, 1) if data.zero else 1


def _buffers(num_parameters: int, plan: Plan, stack: Stack, residual_bytes: float) -> float:
    """Buckets of DDP, parameters that FSDP keeps gathered, gathered rows, library workspaces."""
    habits, mesh, data = stack.memory, plan.mesh, plan.data_parallel
    size = habits.allocator.workspace_bytes
    if int(mesh.dp or 1) * mesh.cp > 1 and data.kind == "ddp":
        size += habits.bucket_bytes * num_parameters
    if keeps_parameters(plan, stack, mesh.pp, data.zero):
        size += parameter_widths(plan, stack).compute * num_parameters
    if mesh.tp > 1 and plan.tensor_parallel.sequence_parallel:
        size += habits.gather_buffers * residual_bytes
    return size


def _copies(plan: Plan, stack: Stack) -> bool:
    return stack.memory.gather_copies and plan.data_parallel.zero in (1, 2) and num_shards(plan) > 1


def stage_static_memory(
    graph: ModelGraph, plan: Plan, training: Training, stack: Stack, stage: int
) -> StaticMemory:
    """Static bytes of pipeline rank ``stage``, its tensor-parallel share of all its virtual stages.

    ``plan`` must be resolved and checked. Tied embeddings are held once where embedding and head meet, and by
    both the first and the last stage otherwise. Shards carry their padding: FSDP pads the first dim of every
    parameter to a multiple of the group, flat buffers end at a multiple of lcm(N, 128) elements.
    """
    dims = tensor_dims(graph, plan, training)
    chunks = stage_chunks(graph, plan, training, stage)
    blocks = [block for held in chunks.values() for _, block in held]
    weights = _weights(blocks, dims)
    shared = 0
    both = graph.tied_embeddings and graph.embedding in blocks and graph.head in blocks
    if both and not graph.embedding.still:
        shared = int(dims["vocab"] * dims["hidden"])
        weights.remove(next(weight for weight in weights if weight[1] == shared))
    experts = [(rows, size) for rows, size, kind in weights if kind == "expert"]
    others = [(rows, size) for rows, size, kind in weights if kind != "expert"]
    elements = sum(size for _, size, _ in weights)
    fsdp = plan.data_parallel.kind == "fsdp"
    shard = _shard(others, num_shards(plan), fsdp=fsdp) + _shard(experts, num_expert_shards(plan), fsdp=fsdp)
    tokens = dims["batch"] * dims["seq"]
    residual = tokens * dims["hidden"] * activation_bytes(plan.numerics)
    moments = float(sum(sum(state_bytes(block, dims, plan.numerics)) for block in blocks))
    if shared:
        moments -= shared * moment_bytes(plan.numerics, other=True)
    found = static_memory(
        elements,
        plan,
        stack,
        shard_elements=shard,
        residual_bytes=residual,
        moments_bytes=moments / elements if elements else None,
    )
    return replace(
        found,
        parameters_bytes=found.parameters_bytes + frozen_bytes(blocks, graph, plan, stack, dims),
        buffers_bytes=found.buffers_bytes + int(placeholder_bytes(graph, dims, stack)),
    )


def frozen_bytes(blocks: Sequence[Block], graph: ModelGraph, plan: Plan, stack: Stack, dims: Dims) -> int:
    """Bytes of a rank's frozen weights: as they are computed with, or packed; in shards where parameters are."""
    width = parameter_widths(plan, stack).compute
    held, experts = (
        sum(map(float, each)) for each in zip(*(b.frozen_bytes(dims, width) for b in blocks), strict=True)
    )
    if graph.tied_embeddings and graph.embedding.still and graph.embedding in blocks and graph.head in blocks:
        held -= width * dims["vocab"] * dims["hidden"]
    if plan.data_parallel.zero < 3:
        return int(held + experts)
    return int(held / num_shards(plan) + experts / num_expert_shards(plan))


def _shard(weights: Sequence[tuple[int, int]], shards: int, *, fsdp: bool) -> int:
    """Elements of one shard of tensors (first dim, size), padding included."""
    if fsdp:
        return sum(-(-rows // shards) * (size // rows) for rows, size in weights)
    elements = sum(size for _, size in weights)
    aligned = int(np.lcm(shards, _FLAT_ALIGNMENT)) if shards > 1 else 1
    return -(-elements // aligned) * aligned // shards


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


def _weights(blocks: Sequence[Block], dims: Dims) -> list[tuple[int, int, str]]:
    """(first dim, elements, kind) of every parameter; the first dim of a projection is its output."""
    found = []
    for block in blocks:
        own = block.view(dims)
        for op in block.operators:
            for weight in (weight for weight in op.weights if weight.trainable):
                size = int(evaluate(weight.size, own))
                rows = {
                    "matrix": int(evaluate(op.columns, own)), "embedding": size // int(own["hidden"]),
                    "expert": int(own.get("experts", 1)),
                }  # fmt: skip
                found.append((rows.get(weight.kind, size), size, weight.kind))
    return found


def num_communicators(plan: Plan) -> int:
    """Kinds of groups that a rank of a plan communicates in."""
    mesh = plan.mesh
    copies = mesh.expert_data_parallel if mesh.ep > 1 else 1
    return sum(size > 1 for size in (mesh.tp, int(mesh.dp or 1), mesh.pp, mesh.cp, mesh.ep, copies))


def overhead_bytes(communicators: int, stack: Stack, cluster: Cluster) -> float:
    """Device context and communicators of a rank."""
    if cluster.device.kind == "cpu":
        return 0.0
    return stack.memory.allocator.context_bytes + communicators * stack.memory.allocator.communicator_bytes


def reserved_bytes(
    allocated_peak_bytes: float, stack: Stack, static_bytes: float = 0.0, *, alternates: bool = False
) -> float:
    """Bytes the allocator holds for an allocated peak of which ``static_bytes`` stay for the whole step.

    ``alternates``: passes of several microbatches do. See :func:`simpar.cost.allocator.reserve`.
    """
    moving = allocated_peak_bytes - static_bytes
    return float(reserve(static_bytes, moving, stack.memory.allocator, alternates=alternates).needed_bytes)


def checkpointed_peak(num_layers: int, every: int, layer_bytes: float, boundary_bytes: float) -> float:
    """Activation peak of a chain with a checkpoint every ``every`` layers.

    All boundaries plus one segment in full: minimal at about sqrt(num_layers x boundary / layer) [Chen et al.
    2016, arXiv 1604.06174].
    """
    return -(-num_layers // every) * boundary_bytes + every * layer_bytes
