"""Kernels of a mixture: routers, the products of experts, and the copies of tokens on their way there and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simpar.architectures.graph import Dims, Operator, evaluate
from simpar.cost.products import (
    SWIZZLES,
    BlockCasts,
    OperatorTime,
    Sizes,
    is_frozen,
    matmul,
    memory_bound,
    output_elements,
    projection_widths,
    transpose_time_s,
    unfused_adapter,
    widen_time_s,
)
from simpar.units import DTYPE_BYTES, Numbers


def grouped_matmul(op: Operator, sizes: Sizes) -> OperatorTime:
    """One product per expert, all in one launch or one launch each, as the stack has it.

    In 8 and 4 bits the rows that arrive are cast first, into rows for one product and into columns for the other:
    expert by expert where products are launched so [NVIDIA Transformer Engine, multi_tensor_quantize]. Block scales are
    laid out for all experts at once. Casts of different experts run side by side, so their number costs host time only.
    With ``expert_epilogues`` the first product casts for the second, and in backward the second for the first. Rows
    that were sent cast are not cast into rows again.
    """
    rows, n, k = (evaluate(size, sizes.dims) for size in (op.rows, op.columns, op.contraction))
    kernels, experts = sizes.kernels, sizes.dims["experts"]
    m, fused = rows / experts, sizes.stack.numerics.gradient_accumulation_fusion
    if sizes.stack.experts.loop:
        return _looped_products(op, sizes)
    launches = 1 if sizes.stack.fusion.grouped_products else experts
    products, cast = kernels.products, BlockCasts.of(kernels.products, sizes.stack)
    casts = launches if cast.first else 0
    each = launches + SWIZZLES * products.is_laid_out
    done = {("expert_down", 0), ("expert_up", 1)} if sizes.stack.fusion.expert_epilogues else set()
    if arrived := sizes.stack.experts.sends_cast and products.scales:
        done |= {("expert_up", 0), ("expert_down", 1)}
    cast_s = [
        0.0
        if (op.name, side) in done
        else kernels.memory_time_s(cast.first * rows * width, kernels=int(cast.first > 0))
        for side, width in enumerate((k, n))
    ]
    cast_s[1] = cast_s[1] + kernels.memory_time_s(cast.weights * experts * k * n, kernels=0)
    overhead, frozen, widen_s = sizes.stack.experts.overhead, is_frozen(op), widen_time_s(op, sizes)
    # gradients that arrived cast are in rows, as inputs are
    columns = k * cast.inputs + n * (cast.inputs if arrived and op.name == "expert_down" else cast.gradients)
    weights_s: Numbers = 0.0
    if not frozen:
        weights_s = products.weight_gradient * kernels.gemm_time_s(k, n, m, batch=experts, accumulate=fused)
        weights_s = weights_s + kernels.memory_time_s(rows * columns, kernels=cast.kernels_later)
    bias, tiles = _weighted_bias(op, sizes), sizes.stack.fusion.expert_tiles
    forward_s = (
        kernels.tiled_time_s(m, n, k, batch=experts, tiles=tiles)
        if tiles
        else kernels.gemm_time_s(m, n, k, batch=experts)
    )
    return OperatorTime(
        op.name,
        overhead * (forward_s + cast_s[0]) + widen_s + bias.forward_s,
        overhead * (kernels.gemm_time_s(m, k, n, batch=experts) + cast_s[1])
        + widen_s
        + transpose_time_s(op, sizes)
        + bias.backward_input_s,
        overhead * weights_s,
        casts + each + bias.forward_kernels,
        casts + (1 if frozen else 2) * each + bias.backward_kernels,
    )


def _looped_products(op: Operator, sizes: Sizes) -> OperatorTime:
    """The products of one expert after the other, each a kernel that has the device to itself."""
    experts = sizes.dims["experts"]
    alone: Dims = {**sizes.dims, "experts": 1}
    widths = projection_widths(op, replace(sizes, dims=alone))
    m, k = evaluate(op.rows, sizes.dims) / experts, evaluate(op.contraction, sizes.dims)
    kernels, apart, frozen = sizes.kernels, len(widths), is_frozen(op)
    times = experts * sizes.stack.experts.overhead
    adapter = unfused_adapter(op, sizes)
    widen_s = widen_time_s(op, sizes)
    sums_s = (apart - 1) * kernels.memory_time_s(3.0 * m * k * kernels.activation_bytes)
    fused = sizes.stack.numerics.gradient_accumulation_fusion
    return OperatorTime(
        op.name,
        times * sum(kernels.gemm_time_s(m, n, k) for n in widths) + widen_s + adapter.forward_s,
        times * (sum(kernels.gemm_time_s(m, k, n) for n in widths) + sums_s) + widen_s + adapter.backward_input_s,
        0.0 if frozen else times * sum(kernels.gemm_time_s(k, n, m, accumulate=fused) for n in widths),
        experts * (apart + adapter.forward_kernels),
        experts * (apart * (1 if frozen else 2) + apart - 1 + adapter.backward_kernels),
    )


def _weighted_bias(op: Operator, sizes: Sizes) -> OperatorTime:
    """Bias of the experts' last product, weighted by the token's fp32 score, where no product's kernel adds it.

    Forward: bias x score is written, read and added for every expert, the rows of all experts are copied together and
    cast: 28 bytes per element. Backward: the cast back, two products with their sums for the gradients of scores and
    biases, and a copy: 40 bytes [NVIDIA Megatron-LM, TEGroupedMLP]. The first product adds its bias itself.
    """
    if len(op.weights) < 2 or op.name != "expert_down" or sizes.stack.fusion.expert_epilogues:
        return OperatorTime(op.name, 0.0, 0.0, 0.0, 0, 0)
    rows, experts = output_elements(op, sizes), sizes.dims["experts"]
    return memory_bound(op, sizes, (28.0 * rows, 40.0 * rows), (2 * experts + 2, 4 * experts + 2))


def router(op: Operator, sizes: Sizes) -> OperatorTime:
    """A product with fp32 logits, then scores, the top k, and the number of tokens of each expert."""
    product = matmul(op, sizes)
    logits = output_elements(op, sizes) * DTYPE_BYTES["fp32"]
    forward, backward, launches = (4.0, 3.0, 4) if sizes.stack.fusion.router else (12.0, 8.0, 14)
    scores = memory_bound(op, sizes, (forward * logits, backward * logits), (launches, launches))
    return OperatorTime(
        op.name,
        product.forward_s + scores.forward_s,
        product.backward_input_s + scores.backward_input_s,
        product.backward_weight_s,
        1 + launches,
        2 + launches,
    )


def dispatch(op: Operator, sizes: Sizes) -> OperatorTime:
    """Copy every token once for each of its experts; backward adds the copies' gradients up."""
    return _copy_routed(op, sizes, output_elements(op, sizes), outward="forward")


def combine(op: Operator, sizes: Sizes) -> OperatorTime:
    """Add the weighted copies of every token up; backward copies the gradient to them."""
    return _copy_routed(op, sizes, output_elements(op, sizes) * sizes.dims["topk"], outward="backward")


def _copy_routed(op: Operator, sizes: Sizes, elements: Numbers, *, outward: str) -> OperatorTime:
    """Time of copying routed tokens into the order of ranks and, where a rank has several experts, of experts.

    Where the copy is fused into the exchange, tokens are copied once; where products gather, not at all. Stacks with
    ``sends_cast`` cast tokens in front of the pass (``outward``: forward or backward) in which they leave.
    """
    dims, habits = sizes.dims, sizes.stack.experts
    copies, launches = np.where(np.asarray(dims["experts"]) > 1, 4.0, 2.0), 5
    if sizes.stack.fusion.permutation:
        copies, launches = np.asarray(2.0), 2
    if habits.loop:
        return _copy_in_loop(op, sizes, elements)
    kernels = sizes.kernels
    moved = copies * (elements * kernels.activation_bytes)
    # where products gather, dispatch sorts numbers of tokens alone; combine reads all copies and writes one
    if sizes.stack.fusion.expert_tiles:
        read = 0.0 if outward == "forward" else elements * (1.0 + 1.0 / dims["topk"])
        moved, launches = np.asarray(read * kernels.activation_bytes), 2 if outward == "forward" else 1
    rows_s = dims["batch"] * dims["seq"] * dims["topk"] * habits.row_s
    took_s = habits.overhead * kernels.memory_time_s(moved, kernels=launches) + rows_s
    products = kernels.products
    if not habits.sends_cast or not products.scales:
        return OperatorTime(op.name, took_s, took_s, 0.0, launches, launches)
    cast = elements / dims["topk"] * BlockCasts.of(products, sizes.stack).first
    sent_s = kernels.memory_time_s(copies * elements * products.operand_bytes + cast, kernels=launches + 1)
    forward_s, backward_s = (sent_s, took_s) if outward == "forward" else (took_s, sent_s)
    return OperatorTime(op.name, forward_s, backward_s, 0.0, launches + 1, launches + 1)


def _copy_in_loop(op: Operator, sizes: Sizes, elements: Numbers) -> OperatorTime:
    """Time of picking the tokens of one expert after the other, and of adding its outputs to those of all.

    Dispatch: positions of an expert's tokens (3 kernels), their rows; in backward a gradient of all tokens is zeroed,
    the rows are sorted and added to it (6), and it is added to that of the experts before: 4 passes over all tokens for
    every expert. Combine: scores, product, sum by index; in backward the rows, two products and a sum, and the scores'
    gradient as that of tokens [Hugging Face transformers, Qwen3MoeSparseMoeBlock; PyTorch, index_put_kernel].
    """
    experts, width = sizes.dims["experts"], sizes.kernels.activation_bytes
    outward = op.kind == "dispatch"
    forward, backward = (4, 8) if outward else (3, 12)
    rows = elements * width
    whole = 4.0 * experts * rows / sizes.dims["topk"] if outward else 0.0
    moved = (2.0 * rows, 3.0 * rows + whole) if outward else (5.0 * rows, 6.0 * rows)
    return memory_bound(op, sizes, moved, (forward * experts, backward * experts))
