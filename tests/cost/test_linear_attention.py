"""Kernels of linear attention: closed forms, and laws."""

from __future__ import annotations

import pytest

from simpar.cost.kernels import KernelModel
from simpar.cost.linear_attention import DIRECTIONS, LIGHTNING, linear_attention_time_s
from simpar.hardware.device import load_device

KERNELS = KernelModel(load_device("h100-sxm-80gb"))
DIMS = {"batch": 2, "seq": 4096, "linear_heads": 32, "linear_key_dim": 128, "linear_value_dim": 128, "chunk": 64}


def test_lightning_forward_is_counted_by_hand() -> None:
    """2 x 128^2 + 64 x 256 multiply-adds and 512 elements of two bytes a token and head, in one kernel."""
    rows = 2 * 4096 * 32
    products_s = (
        rows * 2 * (2 * 128**2 + 64 * 256) / (KERNELS.rate("bf16") * KERNELS.parameters["scan_forward_efficiency"])
    )
    expected = products_s + rows * 512 * 2 / KERNELS.bandwidth + KERNELS.latency_s
    assert linear_attention_time_s(DIMS, KERNELS, LIGHTNING[0]) == pytest.approx(expected)


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_time_grows_with_the_tokens_and_not_with_their_distance(kind: str) -> None:
    """One sequence of 8,192 tokens takes as long as two of 4,096; backward takes longer than forward."""
    forward, backward = (linear_attention_time_s(DIMS, KERNELS, counts) for counts in DIRECTIONS[kind])
    joined = linear_attention_time_s({**DIMS, "batch": 1, "seq": 8192}, KERNELS, DIRECTIONS[kind][0])
    assert joined == pytest.approx(forward)
    assert 2 * forward < backward < 5 * forward


def test_a_chunk_is_no_longer_than_the_sequence() -> None:
    """Sequences of 32 tokens are one piece of 32."""
    short = {**DIMS, "seq": 32}
    assert linear_attention_time_s(short, KERNELS, LIGHTNING[1]) == linear_attention_time_s(
        {**short, "chunk": 32}, KERNELS, LIGHTNING[1]
    )
