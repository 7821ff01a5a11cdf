"""Products of projections that are packed or apart, adapters around them, and what a whole eager layer launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.architectures.graph import Weight, term
from simpar.architectures.transformer import Shape, Style, build
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import operator_times
from simpar.layout.sharding import RankDims
from tests.cost.test_operators import DEVICE, DIMS, EAGER, HIDDEN, MATRIX, E, kernels, operator, stack, timed, us

QKV = (*term("heads", "head_dim"), *term("kv_heads", "head_dim", times=2))
"""Sixteen heads of queries, four of keys and four of values, of 64 features: 1,024 + 2 x 256 columns."""


def test_projections_of_one_input_as_products_of_their_own() -> None:
    """Three products instead of one; backward, the gradients of 1,024 inputs are added twice: read two, write one."""
    packed = operator("matmul", "qkv", columns=QKV, contraction=HIDDEN, weights=(MATRIX,))
    apart = stack(fusion={"projections": False})
    found, flop, added = timed(packed, apart), 2 * 1024 * 1024 * 1536, 1 + 2 * 3 * E * 1e-6
    assert us(found) == pytest.approx([3 + flop * 1e-6, 3 + flop * 1e-6 + 2 * added, 3 + 1.25 * flop * 1e-6], rel=1e-12)
    assert kernels(found) == (3, 3 * 2 + 2)
    assert (found.modules, timed(packed).modules) == (3, 1)
    assert kernels(timed(replace(packed, name="o_proj"), apart)) == (1, 2)
    both = timed(operator("norm", "qk_norm", weights=(MATRIX,)), stack(fusion={"projections": False, "norm": False}))
    assert (kernels(both), both.modules) == ((2 * 8, 2 * 16), 2)


def test_adapters_drop_out_and_scale_in_kernels_of_their_own() -> None:
    """Of rank 16 beside q, k and v: the input is read, written and masked three times, outputs are read and written."""
    rank, apart = 16, stack(fusion={"projections": False, "adapters": False, "adapter_dropout": True})
    columns = (*term("heads", "head_dim"), *term("kv_heads", "head_dim"), *term("kv_heads", "head_dim"))
    weight = Weight("adapter", term(times=1))
    inner = term(times=rank) * 3
    down = operator("matmul", "qkv.lora_a", columns=inner, contraction=HIDDEN, weights=(weight,))
    up = operator("matmul", "qkv.lora_b", columns=columns, contraction=term(times=rank), weights=(weight,))
    bare = stack(fusion={"projections": False})
    more = [b - a for a, b in zip(us(timed(down, bare)), us(timed(down, apart)), strict=True)]
    assert more == pytest.approx([3 + 3 * 5 * E * 1e-6, 6 + 3 * 11 * E * 1e-6, 0.0], rel=1e-9)
    assert kernels(timed(down, apart)) == (3 + 3, 3 * 2 + 2 + 6)
    plain = stack(fusion={"projections": False, "adapters": False})  # gradients of the input are added all the same
    more = [b - a for a, b in zip(us(timed(down, bare)), us(timed(down, plain)), strict=True)]
    assert more == pytest.approx([0.0, 3 + 3 * 6 * E * 1e-6, 0.0], rel=1e-9)
    assert kernels(timed(down, plain)) == (3, 3 * 2 + 2 + 3)
    outputs = 1024 * 1536
    more = [b - a for a, b in zip(us(timed(up, bare)), us(timed(up, apart)), strict=True)]
    assert more == pytest.approx([3 + 4 * outputs * 1e-6, 3 + 4 * outputs * 1e-6, 0.0], rel=1e-9)
    assert kernels(timed(up, apart)) == (3 + 3, 3 * 2 + 2 + 3)
    summed = operator("add", "qkv.lora_add", columns=QKV, inputs=("qkv", "qkv.lora_b"))
    assert kernels(timed(summed, apart)) == (3, 6)


# aten calls of transformers' LlamaDecoderLayer on torch 2.13 (sdpa, bf16): 38 forward; 71 backward, of which one is
# attention (3 kernels) and four fill and copy a slice
CALLS = (38, 71 + 2 + 4)


def test_a_layer_of_an_eager_llama_launches_what_pytorch_calls() -> None:
    """Within 6 % of the calls that PyTorch's dispatcher counts; nine modules have parameters."""
    of = stack(fusion={**EAGER, "projections": False, "attention": "flash"})
    layer = build("llama", Shape(1, 1, 1, 1, 1, 1, 1), Style()).blocks["layer"]
    found = operator_times(layer.operators, RankDims(DIMS, DIMS, DIMS), KernelModel(DEVICE, "bf16"), of)
    launched = (sum(one.forward_kernels for one in found), sum(one.backward_kernels for one in found))
    assert launched == (36, 76)
    assert launched == pytest.approx(CALLS, rel=0.06)
    assert sum(one.modules for one in found) == 9
