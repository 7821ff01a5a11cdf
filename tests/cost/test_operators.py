"""One number by hand for the rule of every kind of operator: bytes and FLOP as its definition counts them.

The device makes arithmetic easy: 1e12 FLOP/s (8 bits: twice that) and 1e12 bytes/s, of which kernels reach all, on one
multiprocessor, and 1 us a kernel. So a kernel that moves 1 MB takes 1 us more, as does one of 1 MFLOP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simpar.architectures.graph import AttentionPattern, Operator, Weight, term
from simpar.cost.kernels import KernelModel
from simpar.cost.linear_attention import DIRECTIONS
from simpar.cost.operators import _RULES, operator_times
from simpar.cost.products import OperatorTime
from simpar.hardware.device import Device
from simpar.layout.sharding import RankDims
from simpar.stacks.stack import Stack, TensorCast
from simpar.units import TERA, US

IDEAL = {
    "gemm_efficiency": 1.0, "gemm_efficiency_fp8": 1.0, "gemm_prologue_k": 0.0, "gemm_wave_overlap": 1.0,
    "gemm_small_tile_loss": 0.0, "gemm_wgrad_loss": 0.25, "attention_forward_efficiency": 0.5,
    "attention_backward_efficiency": 0.25, "attention_score_dim": 0.0, "attention_half_seq": 0.0, "attention_tail": 0.0,
    "scan_forward_efficiency": 0.5, "scan_backward_efficiency": 0.25, "memory_efficiency": 1.0,
    "kernel_latency_us": 1.0,
}  # fmt: skip
DEVICE = Device(
    name="by hand", peak_flop_per_s={"bf16": TERA, "fp8": 2 * TERA, "fp32": TERA}, memory_bytes=1e12,
    memory_bandwidth=TERA, num_sms=1, kernels=IDEAL,
)  # fmt: skip
DIMS = {
    "batch": 2, "seq": 512, "hidden": 1024, "ffn": 2048, "vocab": 4096, "heads": 16, "kv_heads": 4, "head_dim": 64,
    "context": 512, "experts": 4, "num_experts": 256, "topk": 2, "load": 1.0, "mamba_heads": 4, "mamba_head_dim": 64,
    "mamba_groups": 2, "state": 128, "chunk": 256,
}  # fmt: skip
BLACKWELL = DEVICE.model_copy(update={"peak_flop_per_s": {**DEVICE.peak_flop_per_s, "fp4": 4 * TERA}})
"""The same device with scales of blocks in its tensor cores."""
TOKENS, HIDDEN, ROUTED = term("batch", "seq"), term("hidden"), term("batch", "seq", "topk", "load")
E = 2 * 512 * 1024
"""Elements of a tensor of 2 x 512 tokens of 1,024 features."""


def stack(**parts: dict[str, Any]) -> Stack:
    """A stack without habits, but for fields of some of its parts."""
    return Stack.model_validate({"name": "by hand", "description": "no habits", **parts})


EAGER = {
    "norm": False, "activation": False, "rope": False, "dropout": False, "cross_entropy": False, "router": False,
    "permutation": False, "grouped_products": False, "attention": "unfused",
}  # fmt: skip


def operator(kind: str, name: str = "op", **fields: Any) -> Operator:
    """An operator whose output is ``E`` elements, unless changed."""
    return Operator(name, kind, **{"rows": TOKENS, "columns": HIDDEN, "region": "tensor", **fields})


def timed(
    op: Operator, of: Stack | None = None, precision: str = "bf16", device: Device = DEVICE, **dims: float
) -> OperatorTime:
    """Times of one operator."""
    own = {**DIMS, **dims}
    kernels = KernelModel(device, precision, attention=of.fusion.attention if of else "flash")
    (found,) = operator_times([op], RankDims(own, own, own), kernels, of or stack())
    return found


def us(found: OperatorTime) -> list[float]:
    """Microseconds forward, backward for inputs, backward for weights."""
    return [float(each) / US for each in (found.forward_s, found.backward_input_s, found.backward_weight_s)]


def kernels(found: OperatorTime) -> tuple[float, float]:
    """Kernels launched forward and backward."""
    return float(found.forward_kernels), float(found.backward_kernels)


COUNTED: set[str] = set()
"""Kinds whose numbers are below; the last test compares them with the table of rules."""


def counted(*kinds: str) -> Any:
    """Mark a test as holding the numbers of some kinds."""
    COUNTED.update(kinds)
    return lambda test: test


# Bytes of an output element: each read or write of a 16-bit tensor of this size is 2. Then kernels, a time's launches.
STREAMED = [
    ("copy", {}, 2 + 2, 2 + 2, 1),  # read x, write y; read dy, write dx
    ("norm", {}, 2 + 2, 2 + 2 + 2, 1),  # read x, write y; read x and dy, write dx
    ("gated_activation", {}, 2 * 3, 2 * 5, 1),  # read gate and up, write; read those and dy, write two gradients
    ("gated_activation", EAGER, 2 * 5, 2 * 8, 2),  # silu(gate) written and read on top; backward so and its gradient
    ("activation", {}, 2 + 2, 2 + 2 + 2, 1),  # read, write; read x and dy, write dx
    ("activation", EAGER, 2 * 4, 2 * 5, 2),  # adding the bias: read and write once more; backward sums it: read, write
    ("clamp", {}, 2 * (1 + 1 + 1 + 1), 2 * 5, 3),  # halves read and written, read and joined; backward reads x too
    ("rope", {}, 3.4, 3.4, 1),  # of packed q, k and v, v (here 15 %) is neither read nor written
    ("rope", EAGER, 14, 14, 8),  # seven passes
    ("convolution", {}, 2 + 2, 2 * 5, 1),  # read, write; read x, write y, read x and dy, write dx
    ("add", {}, 2 * (2 + 1), 2 * 3, 1),  # read two, write one
    ("dropout", {}, 2, 2, 0),  # inside the kernel of bias and residual: no launch
    ("dropout", EAGER, 2 + 2 + 1, 2 + 2 + 1, 1),  # read, write, and a mask of one byte
]


@counted("copy", "norm", "gated_activation", "activation", "clamp", "rope", "convolution", "add", "dropout")
@pytest.mark.parametrize(("kind", "fusion", "forward", "backward", "launched"), STREAMED)
def test_streaming_operators_move_their_tensors(
    kind: str, fusion: dict[str, Any], forward: float, backward: float, launched: int
) -> None:
    """Bytes over bandwidth and 1 us a kernel; the host launches as many again backward for autograd's own."""
    found = timed(operator(kind, inputs=("one", "two")), stack(fusion=fusion))
    expected = [launched + forward * E * 1e-6, launched + backward * E * 1e-6, 0.0]
    assert us(found) == pytest.approx(expected, rel=1e-12)
    assert kernels(found) == (launched, 2 * launched)


def test_an_addition_reads_every_input() -> None:
    """Three inputs: 2 x (3 + 1) bytes; a single input, or a stack that adds in another kernel: nothing."""
    three = timed(operator("add", inputs=("one", "two", "three")))
    assert us(three)[:2] == pytest.approx([1 + 8 * E * 1e-6, 1 + 6 * E * 1e-6], rel=1e-12)
    for alone in (timed(operator("add", inputs=("one",))), timed(operator("add"), stack(fusion={"residual": True}))):
        assert us(alone) == [0.0, 0.0, 0.0]


def test_eight_bit_inputs_of_a_gate_are_cast_there_and_back() -> None:
    """Two inputs an output, each read in 2 bytes and written in 1: 6 more each way, in a kernel of their own."""
    found = timed(operator("gated_activation"), stack(memory={"gate_inputs": "fp8"}))
    assert us(found)[:2] == pytest.approx([2 + (6 + 6) * E * 1e-6, 2 + (10 + 6) * E * 1e-6], rel=1e-12)
    again = timed(operator("gated_activation"), stack(memory={"gate": "inputs"}))
    assert us(again)[:2] == pytest.approx([1 + 6 * E * 1e-6, 1 + (10 + 2) * E * 1e-6], rel=1e-12)


MATRIX = Weight("weight", term("hidden", "ffn"))
PRODUCT = operator("matmul", columns=term("ffn"), contraction=HIDDEN, weights=(MATRIX,))
FLOP = 2 * 1024 * 2048 * 1024
"""Of a product of 1,024 tokens, 1,024 inputs and 2,048 outputs: 2 m n k = 2^32."""


@counted("matmul")
def test_a_product_and_its_two_gradients() -> None:
    """2 m n k FLOP each; the weight's gradient a quarter longer where it adds into fp32 (IDEAL says how much)."""
    found = timed(PRODUCT)
    assert us(found) == pytest.approx([1 + FLOP * 1e-6, 1 + FLOP * 1e-6, 1 + 1.25 * FLOP * 1e-6], rel=1e-12)
    assert kernels(found) == (1, 2)
    apart = timed(PRODUCT, stack(numerics={"gradient_accumulation_fusion": False}))
    assert us(apart)[2] == pytest.approx(1 + FLOP * 1e-6, rel=1e-12)
    frozen = timed(replace(PRODUCT, weights=(replace(MATRIX, trainable=False),)))
    assert us(frozen)[2] == 0.0
    assert kernels(frozen) == (1, 1)


def test_a_product_in_eight_bits() -> None:
    """At twice the rate; the gradient (m n elements) is read in 2 bytes and written in 1 by a kernel of its own."""
    found = timed(PRODUCT, precision="fp8")
    cast = 1 + 3 * 1024 * 2048 * 1e-6
    assert us(found) == pytest.approx([1 + FLOP / 2e6, 1 + FLOP / 2e6 + cast, 1 + 1.25 * FLOP / 2e6], rel=1e-12)
    # operation by operation: both operands of each product, 5 bytes and two kernels each
    both = timed(PRODUCT, stack(numerics={"tensor_cast": TensorCast(kernels=2, element_bytes=5)}), "fp8")
    x, w, y = 1024 * 1024, 1024 * 2048, 1024 * 2048
    casts = [4 + 5e-6 * each for each in (x + w, y + w, y + x)]
    plain = (1 + FLOP / 2e6, 1 + FLOP / 2e6, 1 + 1.25 * FLOP / 2e6)
    assert us(both) == pytest.approx([a + b for a, b in zip(plain, casts, strict=True)], rel=1e-12)
    assert kernels(both) == (4 + 1, 4 + 4 + 2)


def test_scales_by_row_cast_both_operands_of_each_product() -> None:
    """Rows are read once (2 + 1 bytes), columns twice (2 + 2 + 1) in two kernels; x forward, y and w, then y and x."""
    found = timed(PRODUCT, precision="fp8_rowwise")
    x, w, y = 1024 * 1024, 1024 * 2048, 1024 * 2048
    casts = [2 + 3e-6 * (x + w), 3 + 3e-6 * y + 5e-6 * w, 4 + 5e-6 * (y + x)]
    plain = (1 + FLOP / 2e6, 1 + FLOP / 2e6, 1 + 1.25 * FLOP / 2e6)
    assert us(found) == pytest.approx([a + b for a, b in zip(plain, casts, strict=True)], rel=1e-12)
    assert kernels(found) == (2 + 1, 3 + 4 + 2)


def test_a_fused_product_casts_its_input_for_each_of_its_outputs() -> None:
    """Operation by operation, gate and up are two products: 2 x 2 x 2 kernels, and the input is cast twice."""
    both = replace(PRODUCT, columns=term("ffn", times=2), weights=(Weight("weight", term("hidden", "ffn", times=2)),))
    found = timed(both, stack(numerics={"tensor_cast": TensorCast(kernels=2, element_bytes=5)}), "fp8")
    x, w, y = 2 * 1024 * 1024, 1024 * 4096, 1024 * 4096
    casts = [8 + 5e-6 * each for each in (x + w, y + w, y + x)]
    plain = (1 + 2 * FLOP / 2e6, 1 + 2 * FLOP / 2e6, 1 + 1.25 * 2 * FLOP / 2e6)
    assert us(found) == pytest.approx([a + b for a, b in zip(plain, casts, strict=True)], rel=1e-12)
    assert kernels(found) == (8 + 1, 8 + 8 + 2)


def test_scales_in_tensor_cores_are_laid_out_before_each_product() -> None:
    """Casts read 2 bytes and write 33/32 twice at 0.75 of a copy's speed; two kernels lay out each product's scales."""
    found, cast = timed(PRODUCT, precision="mxfp8", device=BLACKWELL), (2 + 2 * 33 / 32) / 0.75
    product, x, y = 1 + FLOP / 2e6 + 2, 1024 * 1024, 1024 * 2048
    assert us(found) == pytest.approx(
        [product + 1 + cast * x * 1e-6, product + 1 + cast * y * 1e-6, 1 + 1.25 * FLOP / 2e6 + 2], rel=1e-12
    )
    assert kernels(found) == (1 + 3, 1 + 2 * 3)
    frozen = timed(replace(PRODUCT, weights=(replace(MATRIX, trainable=False),)), None, "mxfp8", BLACKWELL)
    assert kernels(frozen) == (1 + 3, 1 + 3)


def test_frozen_weights_in_few_bits() -> None:
    """Packed in half a byte they are widened to 2 before each product; in 8 bits turned (1 + 1) for one gradient."""
    packed, eight = (
        replace(PRODUCT, weights=(replace(MATRIX, trainable=False, stored_bytes=width),)) for width in (0.5, 1.0)
    )
    weights = 1024 * 2048
    widened = timed(packed)
    assert us(widened) == pytest.approx([2 + (FLOP + 2.5 * weights) * 1e-6] * 2 + [0.0], rel=1e-12)
    cast_and_turn = 1 + 3 * 1024 * 2048 * 1e-6 + 1 + 2 * weights * 1e-6
    same, wide = (replace(PRODUCT, weights=(replace(MATRIX, trainable=False, stored_bytes=w),)) for w in (None, 4.0))
    assert us(timed(wide, precision="fp32")) == us(timed(same, precision="fp32"))  # stored as it is read
    turned = timed(eight, precision="fp8")
    assert us(turned) == pytest.approx([1 + FLOP / 2e6, 1 + FLOP / 2e6 + cast_and_turn, 0.0], rel=1e-12)
    assert kernels(turned) == (1, 2)


def test_sums_of_weight_gradients() -> None:
    """12 bytes a weight in two kernels, of 6 each: one widens, one adds; fp32 gradients are not widened."""
    of = stack(numerics={"sum_bytes": 12.0, "gradient_accumulation_fusion": False})
    found = timed(PRODUCT, of)
    one = 1 + 6 * 1024 * 2048 * 1e-6
    assert us(found)[2] == pytest.approx(1 + FLOP * 1e-6 + 2 * one, rel=1e-12)
    assert kernels(found) == (1, 4)
    wide = timed(PRODUCT, of, "fp32")
    assert us(wide)[2] == pytest.approx(1 + FLOP * 1e-6 + one, rel=1e-12)


GROUPED = operator(
    "grouped_matmul", "expert_up", rows=ROUTED, columns=term("ffn"), contraction=HIDDEN,
    weights=(Weight("experts", term("experts", "hidden", "ffn"), "expert"),),
)  # fmt: skip
"""2,048 rows, 512 for each of four experts: 2 x 2048 x 2048 x 1024 = 2^33 FLOP."""


@counted("grouped_matmul")
def test_products_of_experts() -> None:
    """2 m n k FLOP of all rows, times what experts cost beyond their kernels; one launch, or one an expert."""
    found = timed(GROUPED, stack(experts={"overhead": 2.0}))
    flop = 2 * 2048 * 2048 * 1024
    assert us(found) == pytest.approx([2 * (1 + flop * 1e-6)] * 2 + [2 * (1 + 1.25 * flop * 1e-6)], rel=1e-12)
    assert kernels(found) == (1, 2)
    assert kernels(timed(GROUPED, stack(fusion=EAGER))) == (4, 8)


def test_products_of_experts_in_eight_bits() -> None:
    """Rows that arrive are read in 2 bytes and written twice in 1, in rows and columns, before the product."""
    found = timed(GROUPED, stack(experts={"overhead": 1.0}), "fp8")
    flop = 2 * 2048 * 2048 * 1024
    inputs, gradients = 4 * 2048 * 1024, 4 * 2048 * 2048
    assert us(found) == pytest.approx(
        [2 + flop / 2e6 + inputs * 1e-6, 2 + flop / 2e6 + gradients * 1e-6, 1 + 1.25 * flop / 2e6], rel=1e-12
    )
    assert kernels(found) == (2, 3)


def down(*more: Weight) -> Operator:
    """The experts' second product, of as many inputs as the first has outputs."""
    weights = (replace(GROUPED.weights[0], name="down"), *more)
    return replace(GROUPED, name="expert_down", columns=HIDDEN, contraction=term("ffn"), weights=weights)


def test_products_of_experts_with_scales_of_blocks() -> None:
    """Rows are cast for one product, columns apart for the weight's; weights are turned: bytes by :class:`BlockCasts`.

    Read 2 and write 33/32, at 0.6 of a copy's speed; columns of inputs are read and written in 33/32, those of
    gradients read in 2; a weight is read and written in 33/32. Weight gradients take 1.54 times as long as other
    products.
    """
    of = stack(numerics={"casts_apart": True}, experts={"overhead": 1.0})
    flop, narrow, x, y = 2 * 2048 * 2048 * 1024, 33 / 32, 2048 * 1024, 2048 * 2048
    rows, inputs, weights = (2 + narrow) / 0.6, 2 * narrow / 0.6, 2 * narrow * 4 * 1024 * 2048
    found = timed(GROUPED, of, "fp8_blockwise")
    product, own = 1 + flop / 2e6, 1.54 * (1 + 1.25 * flop / 2e6) + 2
    assert us(found) == pytest.approx(
        [
            product + 1 + rows * x * 1e-6,
            product + 1 + (rows * y + weights) * 1e-6,
            own + (inputs * x + rows * y) * 1e-6,
        ],
        rel=1e-12,
    )
    assert kernels(found) == (1 + 1, 1 + 2)
    # tokens arrive cast, and so do gradients of what comes back: one cast less each, and both columns come from rows
    sent = of.model_copy(update={"experts": of.experts.model_copy(update={"sends_cast": True})})
    up, last = timed(GROUPED, sent, "fp8_blockwise"), timed(down(), sent, "fp8_blockwise")
    assert us(up) == pytest.approx([product, *us(found)[1:]], rel=1e-12)
    assert us(last) == pytest.approx(
        [product + 1 + rows * y * 1e-6, product + weights * 1e-6, own + inputs * (y + x) * 1e-6], rel=1e-12
    )
    assert us(timed(down(), sent, "fp8"))[0] == pytest.approx(product + 1 + 4 * y * 1e-6, rel=1e-12)
    one_by_one = timed(GROUPED, stack(fusion=EAGER, experts={"overhead": 1.0}), "mxfp8", BLACKWELL)
    assert kernels(one_by_one) == (4 + 4 + 2, 4 + 2 * (4 + 2))


def test_frozen_experts() -> None:
    """Widened from half a byte before both products; in 8 bits turned for one of them; no gradient of their own."""
    packed, eight = (
        replace(GROUPED, weights=(replace(GROUPED.weights[0], trainable=False, stored_bytes=width),))
        for width in (0.5, 1.0)
    )
    flop, weights, of = 2 * 2048 * 2048 * 1024, 4 * 1024 * 2048, stack(experts={"overhead": 1.0})
    assert us(timed(packed, of)) == pytest.approx([2 + (flop + 2.5 * weights) * 1e-6] * 2 + [0.0], rel=1e-12)
    assert kernels(timed(packed, of)) == (1, 1)
    plain = timed(replace(GROUPED, weights=(replace(GROUPED.weights[0], trainable=False),)), of, "fp8")
    turned = timed(eight, of, "fp8")
    more = [b - a for a, b in zip(us(plain), us(turned), strict=True)]
    assert more == pytest.approx([0.0, 1 + 2 * weights * 1e-6, 0.0], rel=1e-9)


def test_biases_of_experts() -> None:
    """28 bytes an element forward and 40 backward, in two kernels an expert and two more, and in four and two."""
    found = timed(down(Weight("bias", term("experts", "hidden"), "expert")), stack(experts={"overhead": 1.0}))
    flop, elements = 2 * 2048 * 2048 * 1024, 2048 * 1024
    assert us(found)[:2] == pytest.approx(
        [1 + 10 + (flop + 28 * elements) * 1e-6, 1 + 18 + (flop + 40 * elements) * 1e-6], rel=1e-12
    )
    assert kernels(found) == (1 + 10, 2 + 18)


@counted("router")
@pytest.mark.parametrize(("fusion", "forward", "backward", "launched"), [({}, 4, 3, 4), (EAGER, 12, 8, 14)])
def test_routers_score_in_fp32(fusion: dict[str, Any], forward: int, backward: int, launched: int) -> None:
    """A product of 1,024 tokens with 256 experts, 2^29 FLOP, and passes over the fp32 logits, 4 bytes each."""
    weights = (Weight("router", term("hidden", "num_experts")),)
    op = operator("router", columns=term("num_experts"), contraction=HIDDEN, weights=weights)
    found, logits = timed(op, stack(fusion=fusion)), 1024 * 256
    flop = 2 * 1024 * 256 * 1024
    assert us(found) == pytest.approx(
        [
            1 + flop * 1e-6 + launched + forward * 4 * logits * 1e-6,
            1 + flop * 1e-6 + launched + backward * 4 * logits * 1e-6,
            1 + 1.25 * flop * 1e-6,
        ],
        rel=1e-12,
    )
    assert kernels(found) == (1 + launched, 2 + launched)


@counted("dispatch", "combine")
@pytest.mark.parametrize(
    ("fusion", "experts", "passes", "launched"), [({}, 2, 2, 2), (EAGER, 2, 4, 5), (EAGER, 1, 2, 5)]
)
def test_routed_tokens_are_copied(fusion: dict[str, Any], experts: int, passes: int, launched: int) -> None:
    """Read and written, twice with several experts a rank: 2 bytes of 2 copies of E features; 3 ns for each row."""
    of = stack(fusion=fusion, experts={"overhead": 2.0, "row_s": 3e-9})
    expected = 2 * (launched + passes * 2 * 2 * E * 1e-6) + 3e-3 * 2 * 512 * 2
    for kind, rows in (("dispatch", ROUTED), ("combine", TOKENS)):
        found = timed(operator(kind, rows=rows), of, experts=experts)
        assert us(found) == pytest.approx([expected, expected, 0.0], rel=1e-12)
        assert kernels(found) == (launched, launched)


def test_tokens_that_leave_in_eight_bits_are_cast_first() -> None:
    """Cast once a token: (2 + 2 x 33/32) / 0.6 bytes; then copied in 33/32. They come back, and go back, in 16 bits."""
    of = stack(experts={"overhead": 1.0, "row_s": 0.0, "sends_cast": True})
    sent = 3 + (2 * 33 / 32 * 2 * E + (2 + 2 * 33 / 32) / 0.6 * E) * 1e-6
    came = 2 + 2 * 2 * 2 * E * 1e-6
    dispatched, combined = (
        timed(operator(kind, rows=rows), of, "fp8_blockwise")
        for kind, rows in (("dispatch", ROUTED), ("combine", TOKENS))
    )
    assert us(dispatched) == pytest.approx([sent, came, 0.0], rel=1e-12)
    assert us(combined) == pytest.approx([came, sent, 0.0], rel=1e-12)
    assert kernels(dispatched) == kernels(combined) == (3, 3)


ATTEND = operator("attention", columns=term("heads", "head_dim"), attention=AttentionPattern())


@counted("attention")
def test_attention_counts_the_pairs_that_the_mask_leaves() -> None:
    """4 b s a d = 2^22 FLOP a key, of which a query sees 256; at half of peak, backward 2.5 times that at a quarter."""
    found, flop = timed(ATTEND), 4 * 2 * 512 * 16 * 64 * 256
    assert flop == 2**30
    assert us(found) == pytest.approx([1 + flop / 0.5e6, 1 + 2.5 * flop / 0.25e6, 0.0], rel=1e-12)
    assert kernels(found) == (1, 3)


def test_attention_that_wants_queries_keys_and_values_by_themselves() -> None:
    """16 + 2 x 4 heads of 64 features of 1,024 tokens, read and written: three kernels forward, one backward."""
    packed, apart = timed(ATTEND), timed(ATTEND, stack(fusion={"packed_attention": False}))
    copied = 2 * 2 * 1024 * (16 + 2 * 4) * 64 * 1e-6
    assert [b - a for a, b in zip(us(packed), us(apart), strict=True)] == pytest.approx([3 + copied, 1 + copied, 0.0])
    assert kernels(apart) == (4, 4)


def test_attention_with_its_scores_in_memory() -> None:
    """Products compute masked scores too: 2 x 2 s^2 d a head; passes over the scores: 8 bytes, backward 9.

    Softmax reads the half that the mask leaves (1 byte a score), writes all (2); dropout reads and writes all (2 + 2)
    and a mask of 1. Backward reads two such halves.
    """
    found = timed(ATTEND, stack(fusion={"attention": "unfused"}))
    flop, scores = 2 * 2 * 512 * 512 * 64 * 32, 32 * 512 * 512
    assert us(found) == pytest.approx(
        [2 + (flop + 8 * scores) * 1e-6, 4 + (2 * flop + 9 * scores) * 1e-6, 0.0], rel=1e-12
    )
    assert kernels(found) == (5, 8)
    # documents of 128 leave 64 keys, but kernels compute all: (3 + 64/512) x 2 + 1 bytes
    packed = replace(ATTEND, attention=AttentionPattern(document=128))
    short = timed(packed, stack(fusion={"attention": "unfused"}))
    assert us(short)[0] == pytest.approx(2 + (flop + 7.25 * scores) * 1e-6, rel=1e-12)


def test_a_slice_of_a_sequence_sees_what_stands_before_it() -> None:
    """Queries 512..1023 see 512 + 256 keys on average; gradients of 512 earlier keys and values are added: 3 passes."""
    found = timed(ATTEND, context=1024, before=512)
    flop, earlier = 4 * 2 * 512 * 16 * 64 * 768, 2 * 512 * 4 * (64 + 64)
    expected = [1 + flop / 0.5e6, 1 + 2.5 * flop / 0.25e6 + 1 + 3 * 2 * earlier * 1e-6, 0.0]
    assert us(found) == pytest.approx(expected, rel=1e-12)


@counted("scan", "gate")
def test_a_scan_by_the_table_of_its_paper() -> None:
    """H = 4, P = 64, N = 128, G = 2, Q = 256: HPN = 2^15, HPQ/2 = 2^15, GQN = 2^16 multiply-adds a token.

    Forward 2 + 1 + 1 of them and backward 5 + 3 + 3, two FLOP each. Between kernels, in bytes a token: HP = GN = 256
    elements of 2, HPN/Q = 128 states of 4 and of 2, GQ = 512 scores of 4, and 6 H steps and decays of 4.
    """
    found = timed(operator("scan"))
    flop = [2 * (2 * 2**15 + 2**15 + 2**16), 2 * (5 * 2**15 + 3 * 2**15 + 3 * 2**16)]
    moved = [
        2 * (3 * 256 + 4 * 256) + (2 * 4 + 2 * 2) * 128 + 4 * 2 * 512 + 4 * 6 * 4,
        2 * (11 * 256 + 12 * 256) + (2 * 4 + 8 * 2) * 128 + 4 * 6 * 512 + 4 * 6 * 4,
    ]
    assert (flop, moved) == ([327_680, 917_504], [9_312, 27_232])
    expected = [5 + 1024 * (327_680 / 0.5 + 9_312) * 1e-6, 13 + 1024 * (917_504 / 0.25 + 27_232) * 1e-6]
    assert us(found) == pytest.approx([*expected, 0.0], rel=1e-12)
    assert kernels(found) == (5, 13)
    gate = timed(operator("gate"))
    # forward in the scan's last kernel: gate read, output written; backward three tensors read, two written
    assert us(gate) == pytest.approx([4 * E * 1e-6, 1 + 10 * E * 1e-6, 0.0], rel=1e-12)
    assert kernels(gate) == (0, 1)


@counted("embedding")
def test_embeddings_gather_and_scatter() -> None:
    """Forward: rows read and written, 2 + 2 bytes; backward: gradient read, row read, summed and written: 8."""
    table = Weight("table", term("vocab", "hidden"), "embedding")
    found = timed(operator("embedding", weights=(table,)))
    assert us(found) == pytest.approx([1 + 4 * E * 1e-6, 0.0, 1 + 8 * E * 1e-6], rel=1e-12)
    assert kernels(found) == (1, 2)
    frozen = timed(operator("embedding", weights=(replace(table, trainable=False),)))
    assert us(frozen) == pytest.approx([1 + 4 * E * 1e-6, 0.0, 0.0], rel=1e-12)
    assert kernels(frozen) == (1, 0)


@counted("loss")
def test_losses_pass_over_the_logits() -> None:
    """Fused: read (2), backward read and written (4). Else in fp32: 2 and four passes of 4, backward 2 and three."""
    op, logits = operator("loss", columns=term("vocab")), 1024 * 4096
    fused, eager = timed(op), timed(op, stack(fusion=EAGER))
    assert us(fused) == pytest.approx([1 + 2 * logits * 1e-6, 1 + 4 * logits * 1e-6, 0.0], rel=1e-12)
    assert us(eager) == pytest.approx([6 + 18 * logits * 1e-6, 6 + 14 * logits * 1e-6, 0.0], rel=1e-12)
    assert (kernels(fused), kernels(eager)) == ((1, 1), (6, 6))


def test_an_eager_loss_over_a_sharded_vocabulary_runs_each_operation() -> None:
    """Widened, maximum, difference, exponentials, sum and quotient: 6 + 4 + 8 + 8 + 4 + 8; backward 8 + 6."""
    op, logits = operator("loss", columns=term("vocab")), 1024 * 4096
    found = timed(op, stack(fusion={**EAGER, "sharded_loss": True}))
    assert us(found) == pytest.approx([14 + 38 * logits * 1e-6, 14 + 14 * logits * 1e-6, 0.0], rel=1e-12)


def test_measured_passes_replace_those_that_are_counted() -> None:
    """Of the output in 2 bytes, of a loss's logits in 4; those of an embedding go to its weights."""
    of = stack(passes=dict.fromkeys(("norm", "loss", "embedding"), (3.0, 7.0)))
    table = Weight("table", term("vocab", "hidden"), "embedding")
    # backward kernels of a norm and of an embedding are two launches
    assert us(timed(operator("norm"), of)) == pytest.approx([1 + 6 * E * 1e-6, 2 + 14 * E * 1e-6, 0.0], rel=1e-12)
    assert us(timed(operator("loss"), of)) == pytest.approx([1 + 12 * E * 1e-6, 1 + 28 * E * 1e-6, 0.0], rel=1e-12)
    looked_up = timed(operator("embedding", weights=(table,)), of)
    assert us(looked_up) == pytest.approx([1 + 6 * E * 1e-6, 0.0, 2 + 14 * E * 1e-6], rel=1e-12)


@counted("mix")
def test_a_mix_reads_what_it_says() -> None:
    """4 h read and h written: 5 passes; backward reads both and writes 4 h: 9."""
    read = operator("mix", contraction=term("hidden", times=4))
    assert us(timed(read)) == pytest.approx([1 + 5 * 2 * E * 1e-6, 1 + 9 * 2 * E * 1e-6, 0.0], rel=1e-12)
    assert kernels(timed(read)) == (1, 1)


def test_every_rule_has_a_number() -> None:
    """A kind that is added brings its own, here or in the tests of its kernels."""
    assert set(_RULES) == COUNTED | {*DIRECTIONS, "indexer", "index_loss"}
