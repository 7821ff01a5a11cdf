"""What products and attention compute and at least move, for their place under a device's roofline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simpar.architectures.graph import PRODUCTS, Operator, evaluate
from simpar.cost.context import all_keys
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import seen_keys
from simpar.cost.products import OperatorTime, Sizes, is_frozen, projection_widths, stays_wide
from simpar.dataclass import dataclass


@dataclass(frozen=True)
class Work:
    """A direction of an operator for one microbatch on one rank: FLOP, bytes each moved once, seconds it takes.

    ``direction`` is "forward", "input gradient", "weight gradient" or "backward" (of attention, both at once).
    """

    direction: str
    flop: float
    moved_bytes: float
    seconds: float


def works_of(op: Operator, time: OperatorTime, sizes: Sizes) -> list[Work]:
    """The directions of an operator that computes products; none for others and for unfused attention.

    Seconds are all that the operator takes in that direction, casts and launches included. Keys that a mask hides are
    not counted.
    """
    sizes = replace(sizes, kernels=replace(sizes.kernels, precision=precision_of(op, sizes.kernels)))
    if op.kind in PRODUCTS:
        return _products(op, time, sizes)
    fused = op.attention is not None and sizes.kernels.attention != "unfused"
    return _attention(op, time, sizes) if fused else []


def precision_of(op: Operator, kernels: KernelModel) -> str:
    """The precision in which an operator's products are computed."""
    own = replace(kernels, precision=op.computes_in(kernels.precision))
    return own.activation_dtype if op.kind not in PRODUCTS or stays_wide(op, own) else own.precision


def _products(op: Operator, time: OperatorTime, sizes: Sizes) -> list[Work]:
    kernels, dims = sizes.kernels, sizes.dims
    experts = float(dims["experts"]) if op.kind == "grouped_matmul" else 1.0
    m, k = float(evaluate(op.rows, dims)) / experts, float(evaluate(op.contraction, dims))
    widths = [float(width) for width in projection_widths(op, sizes)]
    fused = sizes.stack.numerics.gradient_accumulation_fusion
    shapes = {
        "forward": ([(m, n, k) for n in widths], time.forward_s, False),
        "input gradient": ([(m, k, n) for n in widths], time.backward_input_s, False),
        "weight gradient": ([(k, n, m) for n in widths], time.backward_weight_s, fused),
    }
    if is_frozen(op):
        del shapes["weight gradient"]
    return [
        Work(
            direction,
            sum(2.0 * experts * rows * columns * depth for rows, columns, depth in each),
            sum(float(kernels.gemm_moved_bytes(*shape, batch=experts, accumulate=adds)) for shape in each),
            float(seconds),
        )
        for direction, (each, seconds, adds) in shapes.items()
    ]


def _attention(op: Operator, time: OperatorTime, sizes: Sizes) -> list[Work]:
    kernels, dims, mask = sizes.kernels, sizes.dims, op.attention
    assert mask is not None, "an attention operator carries its mask"
    widths, seen = (evaluate(mask.key_dim, dims), evaluate(mask.value_dim, dims)), float(seen_keys(mask, dims))
    result = []
    for backward, seconds in ((False, time.forward_s), (True, time.backward_input_s)):
        head_dim = float(kernels.head_dim(*widths, backward=backward))
        shape = (dims["batch"], dims["seq"], dims["heads"], head_dim)
        moved = kernels.attention_moved_bytes(
            shape, all_keys(mask, dims), evaluate(mask.kv_heads, dims), backward=backward
        )
        flop = float(np.asarray(kernels.attention_flop(shape, seen, backward=backward)))
        result.append(Work("backward" if backward else "forward", flop, float(np.asarray(moved)), float(seconds)))
    return result
