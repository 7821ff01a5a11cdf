"""Linear attention: parameters and FLOP in closed form, and how tensor parallelism cuts its layers."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.flops import matmul_flop_per_token
from simpar.architectures.graph import Block, is_column_parallel, is_row_parallel
from simpar.architectures.linear_attention import LinearShape, linear_attention

SIZES = {
    "gated_delta": LinearShape("gated_delta", heads=32, key_heads=16, key_dim=128, value_dim=128),
    "channel_delta": LinearShape("channel_delta", heads=32, key_heads=32, key_dim=128, value_dim=128),
    "lightning": LinearShape("lightning", heads=64, key_heads=64, key_dim=128, value_dim=128, conv=0, chunk=256),
}
HIDDEN = 2048
SHARED = {"gated_delta": 128, "channel_delta": 128 * (2 * HIDDEN + 1), "lightning": 0}
"""Parameters that every tensor-parallel rank has whole: a head's norm, products into the rank of gates."""


def _block(rule: str) -> tuple[Block, dict[str, int]]:
    sizes = SIZES[rule]
    return Block(rule, tuple(linear_attention("input", sizes))), {
        "hidden": HIDDEN,
        "batch": 1,
        "seq": 8192,
        **sizes.dims,
    }


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # q, k, v and z, b and a; a convolution of 4; decay and step bias by head; a norm by feature; the output
        ("gated_delta", HIDDEN * (4096 + 8192 + 64) + 4 * 8192 + 64 + 128 + 4096 * HIDDEN),
        # q, k, v and b; a convolution; two gates of rank 128; decay by head, step bias by feature
        (
            "channel_delta",
            HIDDEN * (3 * 4096 + 32) + 4 * 3 * 4096 + 2 * (HIDDEN * 128 + 128 * 4096) + 32 + 4096 + 128 + 4096 * HIDDEN,
        ),
        # q, k, v, the gate, a norm over all heads, the output
        ("lightning", HIDDEN * 4 * 8192 + 8192 + 8192 * HIDDEN),
    ],
)
def test_parameters_are_those_of_the_published_layer(rule: str, expected: int) -> None:
    """Counted by hand from the papers' layers."""
    block, dims = _block(rule)
    assert block.parameters(dims) == expected


@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("rule", SIZES)
def test_heads_are_shared_out(rule: str, tp: int) -> None:
    """All but a head's norm and products of low rank is divided by tp."""
    block, dims = _block(rule)
    local = {**dims, **{name: dims[name] // tp for name in ("linear_heads", "linear_key_heads")}}
    assert (block.parameters(local) - SHARED[rule]) * tp == block.parameters(dims) - SHARED[rule]
    assert is_column_parallel(block.operator("in_proj"))
    assert is_row_parallel(block.operator("out_proj"))


def test_the_state_of_a_token_counts_by_convention() -> None:
    """Eight FLOP per element of state of a delta rule: 36 of Qwen3-Next's 48 layers have 32 heads of 128 x 128."""
    graph = load_model("qwen3-next-80b-a3b")
    products = 2.0 * graph.num_matmul_parameters()
    assert matmul_flop_per_token(graph, 4096) - products == pytest.approx(36 * 8 * 32 * 128 * 128)
