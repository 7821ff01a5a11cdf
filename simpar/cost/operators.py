"""Operators to kernels: forward, input-gradient and weight-gradient seconds of every operator of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simpar.architectures.graph import AttentionPattern, Dims, Operator, Weight, evaluate
from simpar.cost.kernels import KernelModel
from simpar.cost.state_space import BACKWARD, FORWARD, scan_time_s
from simpar.layout.sharding import RankDims
from simpar.precisions import Precision
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES, Numbers

WIDEN, ADD = "widen", "add"
SUMS = (WIDEN, ADD)
"""Kernels behind a weight-gradient product: one widens the gradient to fp32, one adds it to the sum. In eager PyTorch
on an H200 both take equally long (0.27 and 0.26 ms a kernel), though the first moves half as much."""
SWIZZLES = 2
"""Kernels before a product that lay out the scales of its operands' blocks as tensor cores read them [NVIDIA
Transformer Engine, swizzle_scaling_factors]."""


@dataclass(frozen=True)
class OperatorTime:
    """Device seconds of one operator (scalars or arrays) and how many kernels it launches.

    ``sums_s`` is the part of ``backward_weight_s`` that the kernels of SUMS take, by name.
    """

    name: str
    forward_s: Numbers
    backward_input_s: Numbers
    backward_weight_s: Numbers
    forward_kernels: Numbers
    backward_kernels: Numbers
    sums_s: Mapping[str, Numbers] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """What a rule needs to know: dims of the operator's region, the kernel model and the stack."""

    dims: Dims
    kernels: KernelModel
    stack: Stack


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
        moved = _elements(op, sizes) * width
        forward, backward = sizes.stack.passes[op.kind]
        backward_s = sizes.kernels.memory_time_s(backward * moved, kernels=ruled.backward_kernels)
        by_weight = op.kind == "embedding"
        ruled = replace(
            ruled,
            forward_s=sizes.kernels.memory_time_s(forward * moved, kernels=ruled.forward_kernels),
            backward_input_s=0.0 if by_weight else backward_s,
            backward_weight_s=backward_s if by_weight else 0.0,
        )
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


def sum_s(size_bytes: float, elements: Numbers, kernels: KernelModel) -> Numbers:
    """Seconds of one kernel of SUMS over ``elements``; all kernels of SUMS together move ``size_bytes`` per element."""
    return kernels.memory_time_s(size_bytes / len(SUMS) * elements)


def _elements(op: Operator, sizes: Sizes) -> Numbers:
    return evaluate(op.rows, sizes.dims) * evaluate(op.columns, sizes.dims)


def _memory_bound(
    op: Operator, sizes: Sizes, moved_bytes: tuple[Numbers, Numbers], kernels: tuple[Numbers, Numbers]
) -> OperatorTime:
    """Time of an operator without weight gradients from its (forward, backward) bytes and kernels."""
    forward_s, backward_s = (
        sizes.kernels.memory_time_s(moved, kernels=number) for moved, number in zip(moved_bytes, kernels, strict=True)
    )
    return OperatorTime(op.name, forward_s, backward_s, 0.0, *kernels)


def _matmul(op: Operator, sizes: Sizes) -> OperatorTime:
    """Three products: forward (m x k)(k x n), input gradient (m x n)(n x k), weight gradient (k x m)(m x n).

    In 8 and 4 bits the output projection and routers stay in bf16, as everywhere in practice. 8-bit inputs are cast by
    the norms and activations that write them, gradients in separate passes that read bf16 and write fp8. With block
    scales inputs have such passes too, and scales that tensor cores apply are laid out anew. A stack may cast both
    operands of each product operation by operation (``tensor_cast``).
    """
    m, n, k = (evaluate(size, sizes.dims) for size in (op.rows, op.columns, op.contraction))
    inputs, weights, results = m * k, k * n, m * n  # elements of the matrices
    kernels = sizes.kernels
    input_s: Numbers = 0.0
    gradient_s: Numbers = 0.0
    columns_s: Numbers = 0.0
    casts: Numbers = 0
    later: Numbers = 0
    swizzles = 0
    if kernels.products.is_cast and (op.name == "lm_head" or op.kind == "router"):
        kernels = replace(kernels, precision=kernels.activation_dtype)
    products = kernels.products
    if products.scales:
        blocks = BlockCasts.of(products, sizes.stack)
        casts, later, swizzles = 1, blocks.kernels_later, SWIZZLES * products.is_laid_out
        input_s = kernels.memory_time_s(inputs * blocks.first)
        gradient_s = kernels.memory_time_s(results * blocks.first + weights * blocks.weights)
        columns_s = kernels.memory_time_s(m * (k * blocks.inputs + n * blocks.gradients), kernels=later)
    elif products.is_cast and (cast := sizes.stack.numerics.tensor_cast):
        outputs = sum(times for times, _ in op.columns)  # each is a product that casts the input anew
        casts = later = 2 * cast.kernels * outputs
        inputs = inputs * outputs
        operands: list[Numbers] = [inputs + weights, results + weights, results + inputs]
        input_s, gradient_s, columns_s = (
            kernels.memory_time_s(elements * cast.element_bytes, kernels=casts) for elements in operands
        )
    elif products.is_cast:
        gradient_s = kernels.memory_time_s(results * (products.handed_bytes + products.operand_bytes))
    frozen, swizzled_s = _is_frozen(op), swizzles * kernels.latency_s
    widen_s, turn_s = _widen_s(op, sizes), _transpose_s(op, sizes)
    fused = sizes.stack.numerics.gradient_accumulation_fusion
    return OperatorTime(
        op.name,
        kernels.gemm_time_s(m, n, k) + input_s + swizzled_s + widen_s,
        kernels.gemm_time_s(m, k, n) + gradient_s + swizzled_s + widen_s + turn_s,
        0.0
        if frozen
        else products.weight_gradient * kernels.gemm_time_s(k, n, m, accumulate=fused) + swizzled_s + columns_s,
        casts + 1 + swizzles,
        casts + (1 + swizzles if frozen else 2 * (1 + swizzles) + later) + bool(np.any(turn_s)),
    )


def _is_frozen(op: Operator) -> bool:
    """Whether a product has weights of its own and none is trained."""
    return bool(op.weights) and not op.is_trained


def _transpose_s(op: Operator, sizes: Sizes) -> Numbers:
    """Seconds to transpose frozen 8-bit weights for the gradient of inputs.

    On devices without block scales in hardware, 8-bit products read operands in one layout only, and recipes keep no
    transposed copy of frozen weights [NVIDIA Megatron-Bridge, disable_parameter_transpose_cache of the adapter
    presets].
    """
    kernels = sizes.kernels
    mine = [weight for weight in op.weights if _in_eight_bits(weight, kernels)]
    if not mine or "fp4" in kernels.device.peak_flop_per_s:
        return 0.0
    return kernels.memory_time_s(sum(evaluate(w.size, sizes.dims) for w in mine) * 2.0 * DTYPE_BYTES["fp8"])


def _in_eight_bits(weight: Weight, kernels: KernelModel) -> bool:
    """Whether a frozen weight is stored as 8-bit products read it."""
    products = kernels.products
    return products.is_cast and not products.scales and weight.stored_bytes == products.operand_bytes


def _widen_s(op: Operator, sizes: Sizes) -> Numbers:
    """Seconds to widen packed weights before a product."""
    packed = [w for w in op.weights if w.stored_bytes and not _in_eight_bits(w, sizes.kernels)]
    width = sizes.kernels.activation_bytes
    widened = (evaluate(w.size, sizes.dims) * ((w.stored_bytes or 0.0) + width) for w in packed)
    return sizes.kernels.memory_time_s(sum(widened)) if packed else 0.0


@dataclass(frozen=True)
class BlockCasts:
    """Bytes that casts with block scales move per element, at the speed of a copy.

    ``first``: an input or gradient, for the product that reads it first. Where columns are cast apart, ``inputs`` and
    ``gradients``: what the weight-gradient product reads, in ``kernels_later`` kernels; ``weights``: a transpose of the
    weights for the input-gradient product.
    """

    first: float
    inputs: float = 0.0
    gradients: float = 0.0
    weights: float = 0.0
    kernels_later: int = 0

    @staticmethod
    def of(products: Precision, stack: Stack) -> BlockCasts:
        """Rows and columns cast at once, or apart: columns then come from kept 8-bit inputs and re-read gradients."""
        scales, narrow = products.scales, products.operand_bytes
        if not (scales and stack.numerics.casts_apart):
            return BlockCasts(products.cast_bytes)
        rate = scales.cast_rate
        read_wide = (products.handed_bytes + narrow) / rate
        return BlockCasts(read_wide, 2 * narrow / rate, read_wide, 2 * narrow, kernels_later=2)


def _grouped_matmul(op: Operator, sizes: Sizes) -> OperatorTime:
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
    overhead, frozen, widen_s = sizes.stack.experts.overhead, _is_frozen(op), _widen_s(op, sizes)
    # gradients that arrived cast are in rows, as inputs are
    columns = k * cast.inputs + n * (cast.inputs if arrived and op.name == "expert_down" else cast.gradients)
    weights_s: Numbers = 0.0
    if not frozen:
        weights_s = products.weight_gradient * kernels.gemm_time_s(k, n, m, batch=experts, accumulate=fused)
        weights_s = weights_s + kernels.memory_time_s(rows * columns, kernels=cast.kernels_later)
    bias = _weighted_bias(op, sizes)
    return OperatorTime(
        op.name,
        overhead * (kernels.gemm_time_s(m, n, k, batch=experts) + cast_s[0]) + widen_s + bias.forward_s,
        overhead * (kernels.gemm_time_s(m, k, n, batch=experts) + cast_s[1])
        + widen_s
        + _transpose_s(op, sizes)
        + bias.backward_input_s,
        overhead * weights_s,
        casts + each + bias.forward_kernels,
        casts + (1 if frozen else 2) * each + bias.backward_kernels,
    )


def _weighted_bias(op: Operator, sizes: Sizes) -> OperatorTime:
    """Bias of the experts' last product, weighted by the token's fp32 score, where no product's kernel adds it.

    Forward: bias x score is written, read and added for every expert, the rows of all experts are copied together and
    cast: 28 bytes per element. Backward: the cast back, two products with their sums for the gradients of scores and
    biases, and a copy: 40 bytes [NVIDIA Megatron-LM, TEGroupedMLP]. The first product adds its bias itself.
    """
    if len(op.weights) < 2 or op.name != "expert_down" or sizes.stack.fusion.expert_epilogues:
        return OperatorTime(op.name, 0.0, 0.0, 0.0, 0, 0)
    rows, experts = _elements(op, sizes), sizes.dims["experts"]
    return _memory_bound(op, sizes, (28.0 * rows, 40.0 * rows), (2 * experts + 2, 4 * experts + 2))


def _router(op: Operator, sizes: Sizes) -> OperatorTime:
    """A product with fp32 logits, then scores, the top k, and the number of tokens of each expert."""
    product = _matmul(op, sizes)
    logits = _elements(op, sizes) * DTYPE_BYTES["fp32"]
    forward, backward, launches = (4.0, 3.0, 4) if sizes.stack.fusion.router else (12.0, 8.0, 14)
    scores = _memory_bound(op, sizes, (forward * logits, backward * logits), (launches, launches))
    return OperatorTime(
        op.name,
        product.forward_s + scores.forward_s,
        product.backward_input_s + scores.backward_input_s,
        product.backward_weight_s,
        1 + launches,
        2 + launches,
    )


def _dispatch(op: Operator, sizes: Sizes) -> OperatorTime:
    """Copy every token once for each of its experts; backward adds the copies' gradients up."""
    return _copy_routed(op, sizes, _elements(op, sizes), outward="forward")


def _combine(op: Operator, sizes: Sizes) -> OperatorTime:
    """Add the weighted copies of every token up; backward copies the gradient to them."""
    return _copy_routed(op, sizes, _elements(op, sizes) * sizes.dims["topk"], outward="backward")


def _copy_routed(op: Operator, sizes: Sizes, elements: Numbers, *, outward: str) -> OperatorTime:
    """Time of copying routed tokens into the order of ranks and, where a rank has several experts, of experts.

    Where the copy is fused into the exchange, tokens are copied once. Stacks with ``sends_cast`` cast tokens in front
    of the pass (``outward``: forward or backward) in which they leave for the experts.
    """
    dims, habits = sizes.dims, sizes.stack.experts
    copies, launches = np.where(np.asarray(dims["experts"]) > 1, 4.0, 2.0), 5
    if sizes.stack.fusion.permutation:
        copies, launches = np.asarray(2.0), 2
    kernels = sizes.kernels
    moved = copies * (elements * kernels.activation_bytes)
    rows_s = dims["batch"] * dims["seq"] * dims["topk"] * habits.row_s
    took_s = habits.overhead * kernels.memory_time_s(moved, kernels=launches) + rows_s
    products = kernels.products
    if not habits.sends_cast or not products.scales:
        return OperatorTime(op.name, took_s, took_s, 0.0, launches, launches)
    cast = elements / dims["topk"] * BlockCasts.of(products, sizes.stack).first
    sent_s = kernels.memory_time_s(copies * elements * products.operand_bytes + cast, kernels=launches + 1)
    forward_s, backward_s = (sent_s, took_s) if outward == "forward" else (took_s, sent_s)
    return OperatorTime(op.name, forward_s, backward_s, 0.0, launches + 1, launches + 1)


def _attention(op: Operator, sizes: Sizes) -> OperatorTime:
    """All keys at once; under context parallelism the blocks of :mod:`simpar.cost.context` add up to a little more."""
    assert op.attention is not None, "an attention operator carries its mask"
    dims, mask = sizes.dims, op.attention
    widths, context = (evaluate(mask.key_dim, dims), evaluate(mask.value_dim, dims)), dims[mask.context]
    if mask.document is not None and sizes.kernels.attention != "unfused":
        context = np.minimum(context, mask.document)  # kernels work document by document
    both = [
        sizes.kernels.attention_time_s(
            (dims["batch"], dims["seq"], dims["heads"], sizes.kernels.head_dim(*widths, backward=backward)),
            context=context,
            seen=seen_keys(mask, dims),
            backward=backward,
        )
        for backward in (False, True)
    ]
    if np.any(dims.get("before", 0)):  # a slice adds to gradients of earlier keys and values: three passes
        keys = sum(evaluate(width, dims) for width in (mask.key_dim, mask.value_dim))
        earlier = dims["batch"] * dims["before"] * evaluate(mask.kv_heads, dims) * keys
        both[1] = both[1] + sizes.kernels.memory_time_s(3.0 * earlier * sizes.kernels.activation_bytes)
    launches = (1, 3) if sizes.kernels.attention != "unfused" else (5, 8)
    return OperatorTime(op.name, both[0], both[1], 0.0, *launches)


def seen_keys(mask: AttentionPattern, dims: Dims) -> Numbers:
    """Keys that a query sees on average; ``before`` of them stand before the first query (a slice of a sequence).

    A slice has pairs(context) - pairs(before) pairs over context - before queries, where pairs(n) = n mean_keys(n).
    """
    context, before = dims[mask.context], dims.get("before", 0)
    if not np.any(before):
        return mask.mean_keys(context)
    first, last = (n * mask.mean_keys(n) for n in (before, context))
    return (last - first) / (context - before)


def _streaming(
    passes: Callable[[Operator, Stack], tuple[float, float, int]],
) -> Callable[[Operator, Sizes], OperatorTime]:
    """The rule of a memory-bound operator from its (forward passes, backward passes, kernels)."""

    def rule(op: Operator, sizes: Sizes) -> OperatorTime:
        forward, backward, launches = passes(op, sizes.stack)
        moved = _elements(op, sizes) * sizes.kernels.activation_bytes
        time = _memory_bound(op, sizes, (forward * moved, backward * moved), (launches, launches))
        return replace(time, backward_kernels=2 * launches)

    return rule


def _scan(op: Operator, sizes: Sizes) -> OperatorTime:
    """A state carried along the sequence, chunk by chunk."""
    both = [scan_time_s(sizes.dims, sizes.kernels, counts) for counts in (FORWARD, BACKWARD)]
    return OperatorTime(op.name, both[0], both[1], 0.0, FORWARD.kernels, BACKWARD.kernels)


def _gate(op: Operator, sizes: Sizes) -> OperatorTime:
    """Forward: the end of the scan's last kernel, which reads the gate and writes. Backward: a kernel of its own.

    That kernel reads three tensors and writes two.
    """
    moved = _elements(op, sizes) * sizes.kernels.activation_bytes
    return _memory_bound(op, sizes, (2.0 * moved, 5.0 * moved), (0, 1))


def _embedding(op: Operator, sizes: Sizes) -> OperatorTime:
    """Gather rows; backward scatters into the gradient table."""
    moved = _elements(op, sizes) * sizes.kernels.activation_bytes
    forward, backward = sizes.kernels.memory_time_s(2 * moved), sizes.kernels.memory_time_s(4 * moved)
    if not op.is_trained:
        return OperatorTime(op.name, forward, 0.0, 0.0, 1, 0)
    return OperatorTime(op.name, forward, 0.0, backward, 1, 2)


def _loss(op: Operator, sizes: Sizes) -> OperatorTime:
    """Cross entropy over the logits: fused in one pass each way, else upcast, log-softmax and gather."""
    logits, wide = _elements(op, sizes), DTYPE_BYTES["fp32"]
    forward, backward, launches = 2.0 + 4 * wide, 2.0 + 3 * wide, 6
    if sizes.stack.fusion.cross_entropy:
        forward, backward, launches = 2.0, 4.0, 1
    return _memory_bound(op, sizes, (forward * logits, backward * logits), (launches, launches))


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
    "clamp": lambda _, stack: _NO_PASSES if stack.fusion.expert_epilogues else (4.0, 5.0, 3),
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
    "matmul": _matmul,
    "attention": _attention,
    "grouped_matmul": _grouped_matmul,
    "router": _router,
    "dispatch": _dispatch,
    "combine": _combine,
    "scan": _scan,
    "gate": _gate,
    "embedding": _embedding,
    "loss": _loss,
    **{kind: _streaming(passes) for kind, passes in _PASSES.items()},
}
