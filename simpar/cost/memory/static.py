"""What a rank holds besides what its passes bring and take: the terms of its account, exact to the byte.

| scheme | bytes a parameter (bf16 compute, fp32 AdamW with master weights, bf16 gradients) |
|---|---|
| none, DDP | 2 + 2 + 12 |
| ZeRO-1 | 4 + 12/N |
| ZeRO-2 | 2 + 14/N |
| ZeRO-3 | 16/N |

With fp32 gradients add 2 [Rajbhandari et al. 2020, arXiv 1910.02054]; a stack that stores fp32 parameters holds
(4 + 4 + 8)/N under ZeRO-3. The same code evaluates one plan and arrays of plans; sizes are whole bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from simpar.cost.activations import activation_bytes
from simpar.cost.memory.widths import Widths, keeps_parameters, kept_gradients, once_a_step, parameter_widths
from simpar.cost.optimizers import moment_bytes, state_bytes
from simpar.cost.stack import Stack
from simpar.models.graph import Block, Dims, ModelGraph, evaluate
from simpar.plan.layouts import Layouts
from simpar.plan.plan import Plan
from simpar.units import DTYPE_BYTES, Numbers

ALWAYS, PASSES, BETWEEN = "always", "passes", "between"
"""When a term is alive: the whole step, from its first forward to its last backward, or from its end to its begin."""
_FLAT_ALIGNMENT = 128


@dataclass(frozen=True)
class Term:
    """``elements`` of ``width`` bytes each, of a category, and when they are there."""

    category: str
    name: str
    elements: Numbers
    width: Numbers = 1.0
    alive: str = ALWAYS

    @property
    def size_bytes(self) -> Numbers:
        """Whole bytes of the term."""
        return np.floor(self.elements * self.width)


@dataclass(frozen=True)
class StaticMemory:
    """Terms of a rank that no single pass brings or takes. Sizes are ints for one plan, float64 for many."""

    terms: tuple[Term, ...]

    def of(self, category: str, *alive: str) -> Any:
        """Bytes of a category that are there at some times."""
        found = (term for term in self.terms if term.category == category and term.alive in alive)
        return _whole(sum((term.size_bytes for term in found), start=np.float64(0.0)))

    @property
    def parameters_bytes(self) -> Any:
        """Parameters that are there all the time."""
        return self.of("parameters", ALWAYS)

    @property
    def gathered_bytes(self) -> Any:
        """Parameters that are gathered once a step and kept for its passes."""
        return self.of("parameters", PASSES)

    @property
    def gradients_bytes(self) -> Any:
        """Gradients, and buckets of them apart from the gradients."""
        return self.of("gradients", ALWAYS)

    @property
    def optimizer_bytes(self) -> Any:
        """Optimizer states with master weights."""
        return self.of("optimizer_states", ALWAYS)

    @property
    def buffers_bytes(self) -> Any:
        """Workspaces of libraries, gathered rows, placeholders of gradients."""
        return self.of("transient", ALWAYS)

    @property
    def copies_bytes(self) -> Any:
        """What the parameter gather after the update leaves, gone when passes peak."""
        return self.of("transient", BETWEEN)

    @property
    def resident_bytes(self) -> Any:
        """What stays through forward and backward."""
        return self._alive(ALWAYS, PASSES)

    @property
    def total_bytes(self) -> Any:
        """All that is allocated between two steps."""
        return self._alive(ALWAYS, BETWEEN)

    def _alive(self, *times: str) -> Any:
        sizes = (term.size_bytes for term in self.terms if term.alive in times)
        return _whole(sum(sizes, start=np.float64(0.0)))


def _whole(size: Any) -> Any:
    return int(size) if np.ndim(size) == 0 else size


@dataclass(frozen=True)
class Part:
    """Parameters that some ranks share: how many a rank works with, how many are its shard, bytes of their moments."""

    elements: Numbers
    shard: Numbers
    moments_bytes: Numbers


@dataclass(frozen=True)
class Held:
    """Blocks of one pipeline rank with how often it holds each, embedding and head among them."""

    blocks: tuple[tuple[Block, Numbers], ...]
    embedding: Numbers
    head: Numbers

    @property
    def ends_meet(self) -> Numbers:
        """Whether the rank holds embedding and head."""
        both: Numbers = np.asarray(self.embedding) * np.asarray(self.head)
        return both


def static_memory(
    num_parameters: Numbers,
    plan: Plan,
    stack: Stack,
    layouts: Layouts | None = None,
    *,
    parts: tuple[Part, ...] = (),
    residual_bytes: Numbers = 0.0,
) -> StaticMemory:
    """The account of a rank that is responsible for ``num_parameters`` (before data-parallel sharding).

    ``plan`` must be resolved; ``layouts`` are columns in place of its own. ``parts`` say what is a shard, with its
    padding (default: one part, rounded up to whole elements). ``residual_bytes`` are the whole rows of one microbatch's
    residual stream.
    """
    layouts = layouts or Layouts.of(plan)
    widths, zero, fsdp = (
        parameter_widths(plan, stack),
        np.asarray(layouts.zero),
        plan.data_parallel.kind == "fsdp",
    )
    shards = layouts.shards
    parts = parts or (
        Part(num_parameters, -(-num_parameters // shards), num_parameters * moment_bytes(plan.numerics)),
    )
    shard = sum(part.shard for part in parts)
    sharded = (zero == 3) | ((zero == 2) & fsdp)
    whole_gradients = (zero < 2) | layouts.late | once_a_step(plan, stack, layouts.pp)
    gathered = np.where(keeps_parameters(plan, stack, layouts.pp, zero), num_parameters, 0)
    copied = np.where((zero == 1) | (zero == 2), num_parameters + shard, 0) * (shards > 1)
    bucketed = np.where((layouts.width > 1) & (plan.data_parallel.kind == "ddp"), num_parameters, 0)
    rows = np.where(
        (np.asarray(layouts.tp) > 1) & np.asarray(layouts.sequence_parallel, bool), residual_bytes, 0.0
    )
    kept = kept_gradients(plan, zero, layouts.width) * np.where(whole_gradients, num_parameters, shard)
    weights = weight_terms(
        plan,
        stack,
        stored=np.where(sharded, shard, num_parameters) * float(plan.offload.offload_parameters == "none"),
        gradients=kept,
        states_bytes=_states(parts, widths, zero, plan) * (1.0 - plan.offload.ratio),
        buckets=bucketed,
    )
    return StaticMemory(
        (
            *weights,
            *buffer_terms(stack, rows),
            Term("parameters", "gathered for all passes", gathered, widths.compute, PASSES),
            copies_term(plan, stack, copied),
        )
    )


def weight_terms(
    plan: Plan,
    stack: Stack,
    *,
    stored: Numbers,
    gradients: Numbers,
    states_bytes: Numbers,
    buckets: Numbers,
) -> tuple[Term, ...]:
    """Terms of so many parameters, gradients and gradients with a bucket apart on a rank, and bytes of its states."""
    widths = parameter_widths(plan, stack)
    return (
        Term("parameters", "stored", stored, widths.stored),
        Term("gradients", "gradients", gradients, widths.gradient),
        Term("gradients", "buckets apart", buckets, stack.memory.bucket_bytes),
        Term("optimizer_states", "states", states_bytes),
    )


def copies_term(plan: Plan, stack: Stack, copied: Numbers) -> Term:
    """What gathers after the update copy: parameters of the rank's shard, and all that they make."""
    width = parameter_widths(plan, stack).stored * stack.memory.gather_copies
    return Term("transient", "copies of gathered parameters", copied, width, BETWEEN)


def buffer_terms(stack: Stack, rows_bytes: Numbers) -> tuple[Term, ...]:
    """Terms of library workspaces, and of buffers for so many bytes of gathered rows."""
    habits = stack.memory
    return (
        Term("transient", "library workspaces", habits.allocator.workspace_bytes),
        Term("transient", "gathered rows", rows_bytes, habits.gather_buffers),
    )


def _states(parts: tuple[Part, ...], widths: Widths, zero: Any, plan: Plan) -> Numbers:
    """Bytes of optimizer states: what a parameter has on average, for every one of the rank's share."""
    total: Numbers = 0.0
    for part in parts:
        mean = np.asarray(part.moments_bytes) / np.maximum(part.elements, 1)
        mean = mean * (not plan.data_parallel.servers) + widths.master
        total = total + mean * np.where(zero >= 1, part.shard, part.elements)
    return total


def held_memory(
    graph: ModelGraph, held: Held, dims: Dims, plan: Plan, stack: Stack, layouts: Layouts | None = None
) -> StaticMemory:
    """The account of a rank that holds some blocks, under dims of one rank (region "tensor").

    ``plan`` must be resolved. Tied embeddings are held once where embedding and head meet. Shards carry their padding:
    FSDP pads the first dim of every parameter to a multiple of the group, flat buffers end at a multiple of
    lcm(N, 128) elements.
    """
    layouts = layouts or Layouts.of(plan)
    tied = graph.tied_embeddings * held.ends_meet * dims["vocab"] * dims["hidden"]
    parts = tuple(_parts(held, dims, plan, layouts, tied * (not graph.embedding.still)))
    residual = dims["batch"] * dims["seq"] * dims["hidden"] * activation_bytes(plan.numerics)
    found = static_memory(
        sum(part.elements for part in parts), plan, stack, layouts, parts=parts, residual_bytes=residual
    )
    frozen = Term("parameters", "frozen", _frozen(graph, held, dims, (plan, stack), layouts))
    placeholders = Term("transient", "empty weight gradients", placeholder_bytes(graph, dims, stack))
    return StaticMemory((*found.terms, frozen, placeholders))


def _parts(held: Held, dims: Dims, plan: Plan, layouts: Layouts, tied: Numbers) -> Iterator[Part]:
    """What all ranks of a stage hold, and its experts; ``tied`` elements are counted twice by the blocks."""
    fsdp = plan.data_parallel.kind == "fsdp"
    for which, shards in enumerate((layouts.shards, layouts.expert_shards)):
        elements: Numbers = 0
        shard: Numbers = 0
        moments: Numbers = 0
        for block, count in held.blocks:
            moments = moments + count * state_bytes(block, dims, plan.numerics)[which]
            for rows, size, kind in _weights(block, dims, shards):
                if (kind == "expert") == which:
                    elements = elements + count * size
                    shard = shard + count * (-(-rows // shards) * (size // np.maximum(rows, 1))) * fsdp
        if not which:
            elements = elements - tied
            shard = shard - fsdp * (-(-dims["vocab"] // shards) * (tied // dims["vocab"]))
            moments = moments - tied * moment_bytes(plan.numerics, other=True)
        if not fsdp:
            shard = flat_shard(elements, shards)
        yield Part(elements, shard, moments)


def flat_shard(elements: Numbers, shards: Numbers) -> Numbers:
    """Elements of one shard of a flat buffer, with its padding."""
    aligned = np.where(np.asarray(shards) > 1, np.lcm(shards, _FLAT_ALIGNMENT), 1)
    return -(-elements // aligned) * aligned // shards


def _weights(block: Block, dims: Dims, shards: Numbers) -> Iterator[tuple[Numbers, Numbers, str]]:
    """(dim that is cut, elements, kind) of every trained parameter; the first dim of a projection is its output.

    Experts are stacked: they are cut one from another, and where there are more shards than experts by their outputs
    [torchtitan, ``apply_fsdp``: ``Shard(1)`` beyond as many ranks as experts].
    """
    own = block.view(dims)
    for op in block.operators:
        for weight in (weight for weight in op.weights if weight.trainable):
            size = evaluate(weight.size, own)
            rows = size
            if weight.kind == "matrix":
                rows = evaluate(op.columns, own)
            elif weight.kind == "embedding":
                rows = size // own["hidden"]
            elif weight.kind == "expert":
                experts = np.asarray(own["experts"])
                rows = np.where(np.asarray(shards) > experts, evaluate(op.columns, own), experts)
            yield rows, size, weight.kind


def _frozen(
    graph: ModelGraph, held: Held, dims: Dims, habits: tuple[Plan, Stack], layouts: Layouts
) -> Numbers:
    """Bytes of weights that are not trained: as they are computed with, or packed; in shards where parameters are."""
    width, total = parameter_widths(*habits).compute, 0.0
    twice = graph.tied_embeddings * graph.embedding.still * held.ends_meet
    for which, shards in enumerate((layouts.shards, layouts.expert_shards)):
        size: Any = sum(count * block.frozen_bytes(dims, width)[which] for block, count in held.blocks)
        if not which:
            size = size - twice * width * dims["vocab"] * dims["hidden"]
        total = total + size / np.where(np.asarray(layouts.zero) == 3, shards, 1)
    return total


def placeholder_bytes(graph: ModelGraph, dims: Dims, stack: Stack) -> Any:
    """Bytes of empty weight gradients, one of each shape among the layers' products, under a rank's dims.

    Products that add their weight gradient into an fp32 buffer still owe autograd a tensor of the weight's shape.
    Transformer Engine makes one of each shape at the first backward and keeps it for the run, so a layer's projections
    cost their own size in bf16 once, however many layers there are [``get_dummy_wgrad`` of its linear modules].
    """
    if not (stack.memory.transformer_engine and stack.numerics.gradient_accumulation_fusion):
        return 0.0
    shapes: dict[object, Any] = {}
    for block in {name: graph.blocks[name] for name in graph.layers}.values():
        own = block.view(dims)
        for op in block.operators:
            if op.kind not in ("matmul", "grouped_matmul"):
                continue
            experts = own["experts"] if op.kind == "grouped_matmul" else 1
            kinds = ("matrix", "expert")
            matrices = [weight.size for weight in op.weights if weight.kind in kinds and weight.trainable]
            shapes[block.scope, op.kind, tuple(matrices)] = sum(evaluate(m, own) for m in matrices) / experts
    return DTYPE_BYTES["bf16"] * sum(shapes.values())
