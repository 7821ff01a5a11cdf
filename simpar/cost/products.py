"""Products to kernels, and what every rule of operators shares: sizes, times, and how many modules they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from simpar.architectures.graph import Dims, Operator, Weight, evaluate
from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
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
PACKED = ("qkv", "mlp_up", "expert_up", "shared_up")
"""Products that stand for several projections of the same input."""


@dataclass(frozen=True)
class OperatorTime:
    """Device seconds of one operator (scalars or arrays), how many kernels it launches, how many modules it stands for.

    ``sums_s`` is the part of ``backward_weight_s`` that the kernels of SUMS take, by name. ``modules`` are those that
    hold parameters.
    """

    name: str
    forward_s: Numbers
    backward_input_s: Numbers
    backward_weight_s: Numbers
    forward_kernels: Numbers
    backward_kernels: Numbers
    sums_s: Mapping[str, Numbers] = field(default_factory=dict)
    modules: Numbers = 0


@dataclass(frozen=True)
class Sizes:
    """What a rule needs to know: dims of the operator's region, the kernel model and the stack."""

    dims: Dims
    kernels: KernelModel
    stack: Stack


def count_projections(op: Operator, stack: Stack) -> int:
    """Products, or norms, that an operator stands for: 1 unless the stack keeps projections apart."""
    if stack.fusion.projections:
        return 1
    if op.name == "qk_norm":
        return 2
    return len(op.projections) if op.name.partition(".")[0] in PACKED else 1


def projection_widths(op: Operator, sizes: Sizes) -> list[Numbers]:
    """Columns of every product that an operator stands for."""
    apart = count_projections(op, sizes.stack) > 1
    return [evaluate(columns, sizes.dims) for columns in (op.projections if apart else [op.columns])]


def count_modules(op: Operator, dims: Dims, stack: Stack) -> Numbers:
    """Modules with parameters that an operator stands for; experts in a loop have modules of their own."""
    each = count_projections(op, stack) if op.weights else 0
    return each * dims["experts"] if stack.experts.loop and op.kind == "grouped_matmul" else each


def sum_s(size_bytes: float, elements: Numbers, kernels: KernelModel) -> Numbers:
    """Seconds of one kernel of SUMS over ``elements``; all kernels of SUMS together move ``size_bytes`` per element."""
    return kernels.memory_time_s(size_bytes / len(SUMS) * elements)


def output_elements(op: Operator, sizes: Sizes) -> Numbers:
    """Elements of an operator's output."""
    return evaluate(op.rows, sizes.dims) * evaluate(op.columns, sizes.dims)


def memory_bound(
    op: Operator, sizes: Sizes, moved_bytes: tuple[Numbers, Numbers], kernels: tuple[Numbers, Numbers]
) -> OperatorTime:
    """Time of an operator without weight gradients from its (forward, backward) bytes and kernels."""
    forward_s, backward_s = (
        sizes.kernels.memory_time_s(moved, kernels=number) for moved, number in zip(moved_bytes, kernels, strict=True)
    )
    return OperatorTime(op.name, forward_s, backward_s, 0.0, *kernels)


def matmul(op: Operator, sizes: Sizes) -> OperatorTime:
    """Three products: forward (m x k)(k x n), input gradient (m x n)(n x k), weight gradient (k x m)(m x n).

    In 8 and 4 bits the output projection and routers stay in bf16, as everywhere in practice. 8-bit inputs are cast by
    the norms and activations that write them, gradients in separate passes that read bf16 and write fp8. With block
    scales inputs have such passes too, and scales that tensor cores apply are laid out anew. A stack may cast both
    operands of each product operation by operation (``tensor_cast``); with scales by row every stack does
    (:func:`by_row_s`). Where projections of one input are products of their own, its gradient is summed over them.
    """
    m, n, k = (evaluate(size, sizes.dims) for size in (op.rows, op.columns, op.contraction))
    widths = projection_widths(op, sizes)
    apart = len(widths)
    inputs, weights, results = m * k, k * n, m * n  # elements of the matrices
    kernels = sizes.kernels
    input_s: Numbers = 0.0
    gradient_s: Numbers = 0.0
    columns_s: Numbers = 0.0
    casts: Numbers = 0
    later: Numbers = 0
    swizzles = 0
    if stays_wide(op, kernels):
        kernels = replace(kernels, precision=kernels.activation_dtype)
    products = kernels.products
    if products.scales:
        blocks = BlockCasts.of(products, sizes.stack)
        casts, later, swizzles = 1, blocks.kernels_later, SWIZZLES * products.is_laid_out
        input_s = kernels.memory_time_s(inputs * blocks.first)
        gradient_s = kernels.memory_time_s(results * blocks.first + weights * blocks.weights)
        columns_s = kernels.memory_time_s(m * (k * blocks.inputs + n * blocks.gradients), kernels=later)
    elif products.by_row:
        casts, later = 2, 5  # forward 2, backward 3 for the gradient of inputs and 4 for that of weights
        input_s = by_row_s(kernels, [inputs, weights])
        gradient_s = by_row_s(kernels, [results], [weights])
        columns_s = by_row_s(kernels, [], [results, inputs])
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
    frozen, swizzled_s = is_frozen(op), swizzles * kernels.latency_s
    widen_s, turn_s = widen_time_s(op, sizes), transpose_time_s(op, sizes)
    fused = sizes.stack.numerics.gradient_accumulation_fusion
    sums_s = (apart - 1) * kernels.memory_time_s(3.0 * inputs * kernels.activation_bytes) if apart > 1 else 0.0
    adapter = unfused_adapter(op, sizes)
    weights_s = sum(kernels.gemm_time_s(k, each, m, accumulate=fused) for each in widths)
    return OperatorTime(
        op.name,
        sum(kernels.gemm_time_s(m, each, k) for each in widths) + input_s + swizzled_s + widen_s + adapter.forward_s,
        sum(kernels.gemm_time_s(m, k, each) for each in widths)
        + gradient_s
        + swizzled_s
        + widen_s
        + turn_s
        + sums_s
        + adapter.backward_input_s,
        0.0 if frozen else products.weight_gradient * weights_s + swizzled_s + columns_s,
        casts + apart * (1 + swizzles) + adapter.forward_kernels,
        casts
        + apart * (1 + swizzles if frozen else 2 * (1 + swizzles))
        + (0 if frozen else later)
        + bool(np.any(turn_s))
        + (apart - 1)
        + adapter.backward_kernels,
    )


def stays_wide(op: Operator, kernels: KernelModel) -> bool:
    """Whether a product stays in 16 bits where others are cast to 8 or 4."""
    return kernels.products.is_cast and (op.name == "lm_head" or op.kind == "router")


def by_row_s(kernels: KernelModel, rows: Sequence[Numbers], columns: Sequence[Numbers] = ()) -> Numbers:
    """Seconds to cast tensors of so many elements with a scale for every row along the contraction.

    ``rows`` lie in memory as the product reads them: a kernel finds the largest value of a row on the chip, reading it
    once. Along ``columns`` one kernel reads a tensor for the largest values, another reads it again and writes it.
    Products share nothing, since their scales run along other sides [torchao, matmul_with_hp_or_float8_args].
    """
    wide, narrow = kernels.products.handed_bytes, kernels.products.operand_bytes
    moved = sum(rows) * (wide + narrow) + sum(columns) * (2 * wide + narrow)
    return kernels.memory_time_s(moved, kernels=len(rows) + 2 * len(columns))


def unfused_adapter(op: Operator, sizes: Sizes) -> OperatorTime:
    """Kernels around the products of an adapter, where they are not fused: for each of its projections.

    With dropout the input is read, written, and a mask of one byte an element; in backward its gradient is masked. It
    is added to that of the frozen product, 3 passes. The output is scaled, two passes each way [PEFT,
    tuners/lora/layer.py].
    """
    down, up = op.name.endswith(".lora_a"), op.name.endswith(".lora_b")
    if sizes.stack.fusion.adapters or not (down or up):
        return OperatorTime(op.name, 0.0, 0.0, 0.0, 0, 0)
    each = len(op.columns)
    if up:
        moved = 2.0 * output_elements(op, sizes) * sizes.kernels.activation_bytes
        return memory_bound(op, sizes, (moved, moved), (each, each))
    moved = each * evaluate(op.rows, sizes.dims) * evaluate(op.contraction, sizes.dims) * sizes.kernels.activation_bytes
    drops = int(sizes.stack.fusion.adapter_dropout)
    passes, launches = (2.5 * drops, 3.0 + 2.5 * drops), (each * drops, each * (1 + drops))
    return memory_bound(op, sizes, (passes[0] * moved, passes[1] * moved), launches)


def is_frozen(op: Operator) -> bool:
    """Whether a product has weights of its own and none is trained."""
    return bool(op.weights) and not op.is_trained


def transpose_time_s(op: Operator, sizes: Sizes) -> Numbers:
    """Seconds to transpose frozen 8-bit weights for the gradient of inputs.

    Most devices read operands of 8-bit products in one layout only (``any_8_bit_layout``), and recipes keep no
    transposed copy of frozen weights [NVIDIA Megatron-Bridge, disable_parameter_transpose_cache of the adapter
    presets].
    """
    kernels = sizes.kernels
    mine = [weight for weight in op.weights if _in_eight_bits(weight, kernels)]
    if not mine or kernels.device.any_8_bit_layout:
        return 0.0
    return kernels.memory_time_s(sum(evaluate(w.size, sizes.dims) for w in mine) * 2.0 * DTYPE_BYTES["fp8"])


def _in_eight_bits(weight: Weight, kernels: KernelModel) -> bool:
    """Whether a frozen weight is stored as 8-bit products read it."""
    products = kernels.products
    return products.is_cast and not products.scales and weight.stored_bytes == products.operand_bytes


def widen_time_s(op: Operator, sizes: Sizes) -> Numbers:
    """Seconds to widen, or narrow, weights before a product that are not stored as it reads them, nor gathered so."""
    width = sizes.kernels.activation_bytes
    packed = [w for w in op.weights if w.stored_bytes not in (None, width) and not _in_eight_bits(w, sizes.kernels)]
    if sizes.stack.numerics.gathers_narrow:
        packed = [w for w in packed if (w.stored_bytes or 0.0) < width]
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
