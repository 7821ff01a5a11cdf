"""What a rank holds whatever pass runs: the terms of its static memory, exact to the byte.

| scheme | bytes a parameter (bf16 compute, fp32 AdamW with master weights, bf16 gradients) |
|---|---|
| none, DDP | 2 + 2 + 12 |
| ZeRO-1 | 4 + 12/N |
| ZeRO-2 | 2 + 14/N |
| ZeRO-3 | 16/N |

With fp32 gradients add 2 [Rajbhandari et al. 2020, arXiv 1910.02054]; a stack that stores fp32 parameters holds
(4 + 4 + 8)/N under ZeRO-3. The same code evaluates one plan and arrays of plans; sizes are whole bytes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from simpar.architectures.graph import Block, Dims, ModelGraph, Operator, evaluate
from simpar.cost.activations import activation_bytes
from simpar.cost.memory.outputs import output_terms
from simpar.cost.memory.quantized import narrow_weights, with_quantized
from simpar.cost.memory.terms import BETWEEN, PASSES, UPDATE, HeldBlocks, ParameterGroup, StaticMemory, Term
from simpar.cost.memory.update import update_bytes
from simpar.cost.memory.widths import (
    Widths,
    defers,
    keeps_parameters,
    kept_gradients,
    narrows_frozen,
    once_a_step,
    parameter_widths,
    reduced_bytes,
    reduces_late,
)
from simpar.cost.optimizers import moment_bytes, state_bytes
from simpar.hardware.device import Device
from simpar.layout.layout import Layout
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES, Flags, Ints, Numbers

_FLAT_ALIGNMENT = 128


def parameter_terms(
    parts: Sequence[ParameterGroup],
    layout: Layout,
    stack: Stack,
    *,
    residual_bytes: Numbers = 0.0,
    accumulates: Flags | bool,
) -> tuple[Term, ...]:
    """Terms of a rank's parameters under a resolved plan: with gradients, optimizer states and buffers.

    ``residual_bytes`` is the size of one microbatch's residual stream with all rows; ``accumulates``: a step has
    several microbatches.
    """
    widths, zero = parameter_widths(layout, stack), np.asarray(layout.zero)
    shards, fsdp = layout.shards, layout.kind == "fsdp"
    num_parameters, shard = sum(part.elements for part in parts), sum(part.shard for part in parts)
    sharded = is_sharded(layout)
    whole_gradients = (zero < 2) | reduces_late(layout, stack) | once_a_step(layout, stack)
    spread = sum(part.elements * (np.asarray(part.shard) < part.elements) for part in parts)
    gathered = np.where(keeps_parameters(layout), spread, 0)
    gathers = (zero == 1) | (zero == 2)
    copied = np.where(gathers, sum(part.elements + part.shard for part in parts[:2]), 0) * (shards > 1)
    for part in parts[2:]:
        copied = copied + np.where(gathers, part.elements + part.shard, 0)
    bucketed = np.where((layout.width > 1) & (layout.kind == "ddp"), num_parameters, 0)
    rows = gathered_rows_bytes(layout, residual_bytes)
    # FSDP adds up what it reduces once a step in the dtype of that reduction [torch, fsdp/_fully_shard/_fsdp_param.py,
    # to_accumulated_grad_if_needed]; shards take the place of the whole block by block
    at_last = once_a_step(layout, stack) | (fsdp & (zero >= 2) & reduces_late(layout, stack))
    added = np.where(at_last, max(reduced_bytes(layout, stack), widths.compute), widths.gradient)
    whole = num_parameters * added / widths.gradient
    kept = kept_gradients(layout) * np.where(whole_gradients, whole, shard)
    waits = defers(layout, stack) & accumulates & (np.asarray(spread) > 0)
    waiting: Numbers = 0.0
    if np.any(waits):
        width = max(reduced_bytes(layout, stack), widths.compute) if fsdp else widths.gradient
        waiting = np.where(waits, np.maximum(num_parameters * width - kept * widths.gradient, 0.0), 0.0)
    if stack.numerics.update.in_backward:
        block: Numbers = sum(part.block for part in parts)
        kept = block + 0.0 * kept
    weights = weight_terms(
        layout,
        stack,
        stored=np.where(sharded, shard, num_parameters) * float(layout.offload_parameters == "none"),
        gradients=kept,
        states_bytes=_states(parts, widths, zero, layout) * (1.0 - layout.host_share),
        buckets=bucketed,
    )
    buffers = buffer_terms(layout, stack, copied=copied, rows_bytes=rows)
    largest: Numbers = 0.0
    for part in parts:
        largest = np.maximum(largest, part.largest)
    updated = np.where(zero >= 1, shard, num_parameters)
    update = update_term(layout, stack, shard=updated, largest=largest, gradients=kept)
    of_passes = (
        Term("parameters", "gathered for all passes", gathered, widths.compute, PASSES),
        Term("gradients", "whole until the last microbatch", waiting, 1.0, PASSES),
    )
    return *weights, *buffers, update, *of_passes


def is_sharded(layout: Layout) -> Flags:
    """Whether ranks store shards of the parameters: under ZeRO-3, and under FSDP's ZeRO-2."""
    zero = np.asarray(layout.zero)
    return np.asarray((zero == 3) | ((zero == 2) & (layout.kind == "fsdp")))


def gathered_rows_bytes(layout: Layout, residual_bytes: Numbers) -> Numbers:
    """Bytes of one buffer for the rows of a residual stream that tensor parallelism gathers."""
    gathers = (np.asarray(layout.tp) > 1) & np.asarray(layout.sequence_parallel, bool)
    return np.where(gathers, residual_bytes, 0.0)


def residual_bytes(dims: Dims, layout: Layout) -> Numbers:
    """Bytes of the residual stream of one microbatch with all rows of a rank's context."""
    return dims["batch"] * dims["seq"] * dims["hidden"] * activation_bytes(layout)


def weight_terms(
    layout: Layout, stack: Stack, *, stored: Numbers, gradients: Numbers, states_bytes: Numbers, buckets: Numbers
) -> tuple[Term, ...]:
    """Terms of weights from numbers of elements: parameters, gradients, gradients with separate buckets; and states."""
    widths = parameter_widths(layout, stack)
    return (
        Term("parameters", "stored", stored, widths.stored),
        Term("gradients", "gradients", gradients, widths.gradient),
        Term("gradients", "buckets apart", buckets, stack.memory.bucket_bytes),
        Term("optimizer_states", "states", states_bytes),
    )


def update_term(layout: Layout, stack: Stack, *, shard: Numbers, largest: Numbers, gradients: Numbers) -> Term:
    """The term of the update of ``shard`` parameters, beside ``gradients`` elements that are kept for it."""
    kept_bytes = gradients * parameter_widths(layout, stack).gradient
    needed = update_bytes(layout, stack, shard=shard, largest=largest, kept_bytes=kept_bytes)
    return Term("transient", "gradients and temporaries of the update", needed, 1.0, UPDATE)


def buffer_terms(layout: Layout, stack: Stack, *, copied: Numbers, rows_bytes: Numbers) -> tuple[Term, ...]:
    """Terms of library workspaces, of buffers for gathered rows, and of flat copies for gathers of parameters.

    A gather behind the update copies the rank's shard and all that it produces: ``copied`` elements.
    """
    habits, width = stack.memory, parameter_widths(layout, stack).stored
    return (
        Term("transient", "library workspaces", habits.allocator.workspace_bytes),
        Term("transient", "gathered rows", rows_bytes, habits.gather_buffers),
        Term("transient", "copies of gathered parameters", copied, width * habits.gather_copies, BETWEEN),
    )


def _states(parts: Sequence[ParameterGroup], widths: Widths, zero: Ints, layout: Layout) -> Numbers:
    """Bytes of optimizer states: the mean per parameter, times the rank's share of them."""
    total: Numbers = 0.0
    for part in parts:
        mean = np.asarray(part.moments_bytes) / np.maximum(part.elements, 1)
        mean = mean * (not layout.servers) + widths.master
        total = total + mean * np.where(zero >= 1, part.shard, part.elements)
    return total


def held_memory(
    graph: ModelGraph, held: HeldBlocks, dims: Dims, layout: Layout, stack: Stack, device: Device
) -> StaticMemory:
    """The account of a rank of ``device`` that holds some blocks, under dims of one rank (region "tensor").

    ``plan`` must be resolved. Tied embeddings are held once where embedding and head meet. Shards carry their padding:
    FSDP pads the first dim of every parameter to a multiple of the group, flat buffers end at a multiple of
    lcm(N, 128) elements.
    """
    tied = graph.tied_embeddings * held.ends_meet * dims["vocab"] * dims["hidden"]
    parts = _parameter_groups(held, dims, layout, tied * (not graph.embedding.has_no_backward))
    if stack.memory.whole_vocabulary and graph.has_vocabulary:
        others = held.embedding * (dims["whole_vocab"] - dims["vocab"]) * dims["hidden"]
        parts[0] = _with_table(parts[0], others, layout)
    rows_bytes, accumulates = residual_bytes(dims, layout), np.asarray(held.microbatches) > 1
    terms = parameter_terms(parts, layout, stack, residual_bytes=rows_bytes, accumulates=accumulates)
    if layout.products.is_cast:
        narrow = narrow_weights(held.blocks, held.shared, dims, layout.precision, device)
        sharded = is_sharded(layout)
        shares = [np.where(sharded, part.shard / np.maximum(part.elements, 1), 1.0) for part in parts]
        terms = with_quantized(terms, narrow, shares, layout, stack)
    frozen = Term("parameters", "frozen", _frozen(graph, held, dims, parameter_widths(layout, stack), layout))
    placeholders = Term("transient", "empty weight gradients", placeholder_bytes(graph, dims, stack))
    updated = sum(term.size_bytes for term in terms if term.alive == UPDATE)
    outputs = output_terms(held, dims, layout, stack, updated) if graph.has_vocabulary else ()
    return StaticMemory((*terms, frozen, _casts(held, dims, layout, stack), placeholders, *outputs))


def _parameter_groups(held: HeldBlocks, dims: Dims, layout: Layout, tied: Numbers) -> list[ParameterGroup]:
    """Parts: everything but experts, experts, and what all pipeline ranks hold, if they do.

    ``tied`` elements, which two blocks hold, are counted once.
    """
    fsdp, shards = layout.kind == "fsdp", [layout.shards, layout.expert_shards]
    shards += [layout.encoder_shards] if held.shared else []
    sums: list[list[Numbers]] = [[0] * len(shards) for _ in range(5)]
    elements, shard, moments, largest, fullest = sums
    for block, count in held.blocks:
        for expert, states in enumerate(state_bytes(block, dims, layout)):
            part = 2 if block.name in held.shared else expert
            moments[part] = moments[part] + count * states
        parts: list[list[Numbers]] = [[0] * len(shards) for _ in range(3)]
        whole, own, most = parts
        for rows, size, is_expert in _weights(block, dims, layout.expert_shards):
            part = 2 if block.name in held.shared else is_expert
            each = -(-rows // shards[part]) * (size // np.maximum(rows, 1)) if fsdp else size
            whole[part], own[part], most[part] = whole[part] + size, own[part] + each, np.maximum(most[part], each)
        held_here = np.asarray(count) > 0
        for part in range(len(shards)):
            elements[part] = elements[part] + count * whole[part]
            shard[part] = shard[part] + count * own[part]
            largest[part] = np.maximum(largest[part], held_here * most[part])
            fullest[part] = np.maximum(fullest[part], held_here * own[part])
    elements[0] = elements[0] - tied
    moments[0] = moments[0] - tied * moment_bytes(layout, other=True)
    if fsdp:
        table = -(-dims["vocab"] // shards[0]) * (tied // dims["vocab"])
        shard[0] = shard[0] - table
    else:
        shard = [flat_shard(*each) for each in zip(elements, shards, strict=True)]
    return [ParameterGroup(*each) for each in zip(elements, shard, moments, largest, fullest, strict=True)]


def _with_table(part: ParameterGroup, elements: Numbers, layout: Layout) -> ParameterGroup:
    """A part with more elements of the token table: those that a rank holds beside its own slice of the vocabulary."""
    moments = elements * moment_bytes(layout, other=True)
    shard = -(-elements // np.asarray(layout.shards))
    return ParameterGroup(
        part.elements + elements, part.shard + shard, part.moments_bytes + moments, part.largest, part.block
    )


def flat_shard(elements: Numbers, shards: Numbers) -> Numbers:
    """Elements of one shard of a flat buffer, with its padding."""
    aligned = np.where(np.asarray(shards) > 1, np.lcm(shards, _FLAT_ALIGNMENT), 1)
    return -(-elements // aligned) * aligned // shards


def _weights(block: Block, dims: Dims, expert_shards: Numbers) -> Iterator[tuple[Numbers, Numbers, bool]]:
    """(size of the dim that is cut, elements, whether of experts) of all trained weights; projections cut outputs.

    Experts are stacked: they are cut one from another and, where there are more shards than experts, by their outputs
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
                rows = np.where(np.asarray(expert_shards) > experts, evaluate(op.columns, own), experts)
            yield rows, size, weight.kind == "expert"


def _casts(held: HeldBlocks, dims: Dims, layout: Layout, stack: Stack) -> Term:
    """The term of narrow copies of a rank's weights, see :func:`cast_term`."""
    matrices: Numbers = 0.0
    for block, count in held.blocks:
        own = block.view(dims)
        products = (op for op in block.operators if is_cast(op))
        weights = (weight for op in products for weight in op.weights if weight.trainable)
        read = (weight.size for weight in weights if weight.kind in ("matrix", "expert"))
        matrices = matrices + count * sum(evaluate(size, own) for size in read)
    sharded = (np.asarray(layout.zero) >= 2) & (np.asarray(layout.width) > 1)
    return cast_term(layout, stack, matrices, sharded=sharded)


def is_cast(op: Operator) -> bool:
    """Whether an operator is a product, which reads its weights in the dtype of products."""
    return op.kind in ("matmul", "grouped_matmul")


def cast_term(layout: Layout, stack: Stack, matrices: Numbers, *, sharded: Flags | bool) -> Term:
    """The term of narrow copies of matrices stored wider than products read them, unless a gather narrows them."""
    widths = parameter_widths(layout, stack)
    # 8-bit products cast their weights each time instead
    casts = stack.memory.cast_weights and not layout.products.is_cast and widths.stored > widths.compute
    here = np.logical_not(sharded) * float(casts and layout.offload_parameters == "none")
    return Term("parameters", "cast for all passes", matrices * here, widths.compute, PASSES)


def _frozen(graph: ModelGraph, held: HeldBlocks, dims: Dims, widths: Widths, layout: Layout) -> Numbers:
    """Bytes of frozen weights, in the compute dtype, wider or packed; none where they are fetched.

    They are sharded under ZeRO-3, unless gathered parameters stay: then shards of those that the gather narrows lie
    beside them.
    """
    if layout.offload_parameters != "none":
        return 0.0
    width = widths.compute
    total: Numbers = 0.0
    twice = graph.tied_embeddings * graph.embedding.has_no_backward * held.ends_meet
    for which, shards in enumerate((layout.shards, layout.expert_shards)):
        stored, read = (
            sum(count * block.frozen_bytes(dims, width, narrowed=narrowed)[which] for block, count in held.blocks)
            for narrowed in (False, narrows_frozen(layout))
        )
        if not which:
            table = twice * width * dims["vocab"] * dims["hidden"]
            stored, read = stored - table, read - table
        stays = keeps_parameters(layout)
        beside = np.where(stays & (np.asarray(stored) > read), stored / shards, 0.0)
        total = total + np.where(stays, read + beside, stored / np.where(np.asarray(layout.zero) == 3, shards, 1))
    return total


def placeholder_bytes(graph: ModelGraph, dims: Dims, stack: Stack) -> Numbers:
    """Bytes of empty weight gradients, one of each shape among the layers' products, under a rank's dims.

    Products that add their weight gradient into an fp32 buffer still owe autograd a tensor of the weight's shape.
    Transformer Engine makes one of each shape at the first backward and keeps it for the run, so a layer's projections
    cost their own size in bf16 once, however many layers there are [``get_dummy_wgrad`` of its linear modules].
    """
    if not (stack.memory.transformer_engine and stack.numerics.gradient_accumulation_fusion):
        return 0.0
    shapes: dict[object, Numbers] = {}
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
