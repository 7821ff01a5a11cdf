"""Operators to kernels: forward, input-gradient and weight-gradient seconds of every operator of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from simpar.architectures.graph import AttentionPattern, Dims, Operator, Selection, evaluate
from simpar.cost import indexer
from simpar.cost.context import all_keys
from simpar.cost.kernels import KernelModel
from simpar.cost.linear_attention import DIRECTIONS, linear_attention_time_s
from simpar.cost.products import (
    ADD,
    SUMS,
    OperatorTime,
    Sizes,
    count_modules,
    count_projections,
    matmul,
    memory_bound,
    output_elements,
    sum_s,
)
from simpar.cost.routed import combine, dispatch, grouped_matmul, router
from simpar.cost.state_space import BACKWARD, FORWARD, scan_time_s
from simpar.layout.sharding import RankDims
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES, Numbers


def operator_times(
    operators: Sequence[Operator], dims: RankDims, kernels: KernelModel, stack: Stack
) -> list[OperatorTime]:
    """Kernel times of a block's operators, in order. Raises KeyError for an operator kind without a rule."""
    return [_operator_time(op, Sizes(dims.of(op), kernels, stack)) for op in operators]


def _operator_time(op: Operator, sizes: Sizes) -> OperatorTime:
    """Time by the rule of the operator's kind; the stack's measured passes replace those that the rule counts."""
    if (precision := op.computes_in(sizes.kernels.precision)) != sizes.kernels.precision:
        sizes = replace(sizes, kernels=replace(sizes.kernels, precision=precision))
    ruled = _RULES[op.kind](op, sizes)
    if op.kind in sizes.stack.passes and np.any(ruled.forward_kernels):
        # losses are computed in fp32 at any precision
        width = DTYPE_BYTES["fp32"] if op.kind == "loss" else sizes.kernels.activation_bytes
        moved = output_elements(op, sizes) * width
        forward, backward = sizes.stack.passes[op.kind]
        backward_s = sizes.kernels.memory_time_s(backward * moved, kernels=ruled.backward_kernels)
        by_weight = op.kind == "embedding"
        ruled = replace(
            ruled,
            forward_s=sizes.kernels.memory_time_s(forward * moved, kernels=ruled.forward_kernels),
            backward_input_s=0.0 if by_weight else backward_s,
            backward_weight_s=backward_s if by_weight else 0.0,
        )
    ruled = replace(ruled, modules=count_modules(op, sizes.dims, sizes.stack))
    return _add_gradient_sums(op, ruled, sizes)


def _add_gradient_sums(op: Operator, ruled: OperatorTime, sizes: Sizes) -> OperatorTime:
    """The time with the kernels of SUMS added, where the stack runs them; fp32 gradients are not widened."""
    size, mine = sizes.stack.numerics.sum_bytes, [w for w in op.weights if w.trainable]
    if not size or not mine:
        return ruled
    elements = sum(evaluate(weight.size, sizes.dims) for weight in mine)
    names = (ADD,) if sizes.kernels.activation_bytes == DTYPE_BYTES["fp32"] else SUMS
    sums_s = dict.fromkeys(names, sum_s(size, elements, sizes.kernels))
    return replace(
        ruled,
        backward_weight_s=ruled.backward_weight_s + sum(sums_s.values()),
        backward_kernels=ruled.backward_kernels + len(sums_s),
        sums_s=sums_s,
    )


def _attention(op: Operator, sizes: Sizes) -> OperatorTime:
    """All keys at once; under context parallelism the blocks of :mod:`simpar.cost.context` add up to a little more."""
    assert op.attention is not None, "an attention operator carries its mask"
    dims, mask = sizes.dims, op.attention
    widths, context = (evaluate(mask.key_dim, dims), evaluate(mask.value_dim, dims)), all_keys(mask, dims)
    kv_heads = evaluate(mask.kv_heads, dims)
    if mask.document is not None and sizes.kernels.attention != "unfused":
        context = np.minimum(context, mask.document)  # kernels work document by document
    both = [
        sizes.kernels.attention_time_s(
            (dims["batch"], dims["seq"], dims["heads"], sizes.kernels.head_dim(*widths, backward=backward)),
            context=context,
            seen=seen_keys(mask, dims),
            backward=backward,
            kv_heads=kv_heads,
            drops=mask.dropout,
        )
        for backward in (False, True)
    ]
    key_values = kv_heads * sum(widths)  # elements of a token's keys and values
    if np.any(dims.get("before", 0)):  # a slice adds to gradients of earlier keys and values: three passes
        earlier = dims["batch"] * dims["before"] * key_values
        both[1] = both[1] + sizes.kernels.memory_time_s(3.0 * earlier * sizes.kernels.activation_bytes)
    if sizes.kernels.attention == "unfused":
        return OperatorTime(op.name, both[0], both[1], 0.0, 5, 8)
    if sizes.stack.fusion.packed_attention:
        return OperatorTime(op.name, both[0], both[1], 0.0, 1, 3)
    # each of q, k, v is read and written by a kernel of its own; one joins their gradients
    elements = dims["batch"] * dims["seq"] * (dims["heads"] * widths[0] + key_values)
    copied = 2.0 * elements * sizes.kernels.activation_bytes
    copies_s = [sizes.kernels.memory_time_s(copied, kernels=kernels) for kernels in (3, 1)]
    return OperatorTime(op.name, both[0] + copies_s[0], both[1] + copies_s[1], 0.0, 4, 4)


def seen_keys(mask: AttentionPattern, dims: Dims) -> Numbers:
    """Keys that a query sees on average; ``before`` of them stand before the first query (a slice of a sequence).

    A slice has pairs(context) - pairs(before) pairs over context - before queries, where pairs(n) = n mean_keys(n).
    """
    context, before = all_keys(mask, dims), dims.get("before", 0)
    if not np.any(before):
        return mask.mean_keys(context)
    first, last = (n * mask.mean_keys(n) for n in (before, context))
    return (last - first) / (context - before)


def _streaming(
    passes: Callable[[Operator, Stack], tuple[float, float, int]],
) -> Callable[[Operator, Sizes], OperatorTime]:
    """The rule of a memory-bound operator from its (forward passes, backward passes, kernels)."""

    def rule(op: Operator, sizes: Sizes) -> OperatorTime:
        forward, backward, once = passes(op, sizes.stack)
        launches = once * _rounds(op, sizes)
        moved = output_elements(op, sizes) * sizes.kernels.activation_bytes
        time = memory_bound(op, sizes, (forward * moved, backward * moved), (launches, launches))
        return replace(time, backward_kernels=2 * launches)

    return rule


def _rounds(op: Operator, sizes: Sizes) -> Numbers:
    """How often a memory-bound operator runs: for each expert in a loop, each projection's norm, each adapter's sum."""
    looped = sizes.stack.experts.loop and op.region == "expert"
    return count_projections(op, sizes.stack) * (sizes.dims["experts"] if looped else 1)


def _scan(op: Operator, sizes: Sizes) -> OperatorTime:
    """A state carried along the sequence, chunk by chunk."""
    both = [scan_time_s(sizes.dims, sizes.kernels, counts) for counts in (FORWARD, BACKWARD)]
    return OperatorTime(op.name, both[0], both[1], 0.0, FORWARD.kernels, BACKWARD.kernels)


def _linear_attention(op: Operator, sizes: Sizes) -> OperatorTime:
    """A matrix of state per head, chunk by chunk."""
    forward, backward = DIRECTIONS[op.kind]
    both = [linear_attention_time_s(sizes.dims, sizes.kernels, counts) for counts in (forward, backward)]
    return OperatorTime(op.name, both[0], both[1], 0.0, forward.kernels, backward.kernels)


def _indexer(op: Operator, sizes: Sizes) -> OperatorTime:
    """Keys chosen for every query."""
    forward = indexer.score_time_s(sizes.dims, sizes.kernels)
    backward = indexer.gradient_time_s(sizes.dims, sizes.kernels, _chosen_keys(sizes))
    return OperatorTime(op.name, forward, backward, 0.0, indexer.FORWARD_KERNELS, indexer.BACKWARD_KERNELS)


def _index_loss(op: Operator, sizes: Sizes) -> OperatorTime:
    """What the indexer learns from: no gradient flows from it to the layer."""
    key_dim = evaluate(op.contraction, sizes.dims)
    forward = indexer.target_time_s(sizes.dims, sizes.kernels, _chosen_keys(sizes), key_dim)
    return OperatorTime(op.name, forward, 0.0, 0.0, indexer.LOSS_KERNELS, 0)


def _chosen_keys(sizes: Sizes) -> Numbers:
    """Keys that are chosen for a query on average: all earlier ones where they are few."""
    topk, ratio, block = (int(sizes.dims[f"index_{name}"]) for name in ("topk", "ratio", "block"))
    return Selection(topk, ratio, block).mean_keys(sizes.dims["context"])


def _gate(op: Operator, sizes: Sizes) -> OperatorTime:
    """Forward: the end of the scan's last kernel, which reads the gate and writes. Backward: a kernel of its own.

    That kernel reads three tensors and writes two.
    """
    moved = output_elements(op, sizes) * sizes.kernels.activation_bytes
    return memory_bound(op, sizes, (2.0 * moved, 5.0 * moved), (0, 1))


def _mix(op: Operator, sizes: Sizes) -> OperatorTime:
    """One kernel that reads its inputs and writes; backward reads these and the gradient, and writes theirs."""
    rows, width = evaluate(op.rows, sizes.dims), sizes.kernels.activation_bytes
    read, written = rows * evaluate(op.contraction, sizes.dims) * width, output_elements(op, sizes) * width
    return memory_bound(op, sizes, (read + written, 2 * read + written), (1, 1))


def _embedding(op: Operator, sizes: Sizes) -> OperatorTime:
    """Gather rows; backward scatters into the gradient table."""
    moved = output_elements(op, sizes) * sizes.kernels.activation_bytes
    forward, backward = sizes.kernels.memory_time_s(2 * moved), sizes.kernels.memory_time_s(4 * moved)
    if not op.is_trained:
        return OperatorTime(op.name, forward, 0.0, 0.0, 1, 0)
    return OperatorTime(op.name, forward, 0.0, backward, 1, 2)


def _loss(op: Operator, sizes: Sizes) -> OperatorTime:
    """Cross entropy over the logits: fused in one pass each way, else upcast, log-softmax and gather.

    Over a sharded vocabulary they are widened (6 bytes a logit), read for the maximum (4), less the maximum (8),
    exponentials (8) that are summed (4) and divided by the sum (8); in backward scaled (8) and narrowed (6)
    [NVIDIA Megatron-LM, core/tensor_parallel/cross_entropy.py].
    """
    logits, wide = output_elements(op, sizes), DTYPE_BYTES["fp32"]
    forward, backward, launches = 2.0 + 4 * wide, 2.0 + 3 * wide, 6
    if sizes.stack.fusion.sharded_loss:
        forward, backward, launches = 2.0 + 9 * wide, 2.0 + 3 * wide, 14
    if sizes.stack.fusion.cross_entropy:
        forward, backward, launches = 2.0, 4.0, 1
    return memory_bound(op, sizes, (forward * logits, backward * logits), (launches, launches))


def _eager_norm(op: Operator) -> tuple[float, float, int]:
    """(Forward, backward) passes and kernels of a norm that is not fused, a pass being two bytes an element.

    Forward: widen to fp32, square, mean, scale, narrow, weight: 3 + 4 + 2 + 4 + 3 + 2. Backward: of the weighting 2,
    and 4 for the gradient of weights that are trained; widen 3; of the scaling 4 and, for the root, 8; of the square
    12; their sum 6; narrow 3 [Hugging Face transformers, LlamaRMSNorm; PyTorch, derivatives.yaml].
    """
    return 18.0, 42.0 if op.is_trained else 38.0, 8


_NO_PASSES = (0.0, 0.0, 0)


def _gated_activation(op: Operator, stack: Stack) -> tuple[float, float, int]:
    """(Forward, backward) passes and kernels; inputs kept in 8 bits are cast there and back, 2 x 3 bytes an output."""
    if stack.fusion.expert_epilogues and op.region == "expert":
        return _NO_PASSES
    cast = float(stack.memory.gate_inputs == "fp8")
    again = float(stack.memory.gate == "inputs")
    forward, backward, kernels = (3.0, 5.0 + again, 1) if stack.fusion.activation else (5.0, 8.0, 2)
    return forward + 3.0 * cast, backward + 3.0 * cast, kernels + int(cast)


_PASSES: dict[str, Callable[[Operator, Stack], tuple[float, float, int]]] = {
    "copy": lambda _op, _stack: (2.0, 2.0, 1),
    # fused: read x, write y; backward reads x, dy and writes dx
    "norm": lambda op, stack: (2.0, 3.0, 1) if stack.fusion.norm else _eager_norm(op),
    # per output element: read gate and up, write; eager keeps the silu output as a tensor of its own. With expert
    # epilogues the product in front does this, in backward the one behind. An output that was not kept is written again
    "gated_activation": lambda op, stack: _gated_activation(op, stack),
    # read, write; the bias in front is a pass of its own unless fused
    "activation": lambda _, stack: (2.0, 3.0, 1) if stack.fusion.activation else (4.0, 5.0, 2),
    # two halves read, limited, written and joined again; backward reads the input too and joins the gradients
    "clamp": lambda op, stack: _NO_PASSES if stack.fusion.expert_epilogues and op.region == "expert" else (4.0, 5.0, 3),
    # query and key are read and written; eager rotates halves through several tensors
    "rope": lambda _, stack: (1.7, 1.7, 1) if stack.fusion.rope else (7.0, 7.0, 8),
    # read, write; backward computes the output again, reads input and gradient and writes the input's gradient
    "convolution": lambda _op, _stack: (2.0, 5.0, 1),
    # read all, write one; the gradient flows to the inputs without a copy but is summed once
    "add": lambda op, stack: (
        _NO_PASSES if stack.fusion.residual or len(op.inputs) < 2 else (len(op.inputs) + 1.0, 3.0, 1)
    ),
    # read, write, and a mask of one byte; fused with bias and residual it costs only the mask
    "dropout": lambda _, stack: (1.0, 1.0, 0) if stack.fusion.dropout else (2.5, 2.5, 1),
}
"""By memory-bound kind: (forward, backward) passes over the output's elements and kernels, as the stack runs them."""
_RULES: dict[str, Callable[[Operator, Sizes], OperatorTime]] = {
    "matmul": matmul,
    "attention": _attention,
    "grouped_matmul": grouped_matmul,
    "router": router,
    "dispatch": dispatch,
    "combine": combine,
    "scan": _scan,
    "gate": _gate,
    "indexer": _indexer,
    "index_loss": _index_loss,
    **dict.fromkeys(DIRECTIONS, _linear_attention),
    "mix": _mix,
    "embedding": _embedding,
    "loss": _loss,
    **{kind: _streaming(passes) for kind, passes in _PASSES.items()},
}
