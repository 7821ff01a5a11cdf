"""Kernels of an indexer: closed forms by hand."""

from __future__ import annotations

import pytest

from simpar.cost import indexer
from simpar.cost.kernels import KernelModel
from simpar.hardware.device import load_device

KERNELS = KernelModel(load_device("h100-sxm-80gb"))
DIMS = {
    "batch": 1, "seq": 8192, "context": 8192, "index_heads": 64, "index_dim": 128, "heads": 128,
    "index_ratio": 1, "index_block": 1, "index_rankings": 1,
}  # fmt: skip
RATE = KERNELS.rate("bf16") * KERNELS.parameters["attention_forward_efficiency"]


def test_every_earlier_token_is_scored() -> None:
    """8,192 x 4,096 pairs, 64 x 128 multiply-adds each, and four passes of 4 bytes."""
    pairs = 8192 * 4096
    expected = 2 * pairs * 64 * 128 / RATE + 16 * pairs / KERNELS.bandwidth + 4 * KERNELS.latency_s
    assert indexer.score_time_s(DIMS, KERNELS) == pytest.approx(expected)


def test_backward_and_target_work_on_chosen_keys() -> None:
    """Three products of the indexer's heads; one of all heads at the latent's width."""
    backward = indexer.gradient_time_s(DIMS, KERNELS, 1792.0) - 2 * KERNELS.latency_s
    target = indexer.target_time_s(DIMS, KERNELS, 1792.0, 576) - 2 * KERNELS.latency_s
    assert backward == pytest.approx(6 * 8192 * 1792 * 64 * 128 / RATE)
    assert target == pytest.approx(2 * 8192 * 1792 * 128 * 576 / RATE)


def test_compressed_keys_are_fewer_and_blocks_write_their_best_score() -> None:
    """A quarter of the pairs; 4 rankings of one score in 128."""
    pairs = 8192 * 4096
    fewer = {**DIMS, "index_ratio": 4}
    expected = (2 * 64 * 128 / RATE + 16 / KERNELS.bandwidth) * pairs / 4 + 4 * KERNELS.latency_s
    assert indexer.score_time_s(fewer, KERNELS) == pytest.approx(expected)
    blocks = {**DIMS, "index_heads": 4, "index_block": 128, "index_rankings": 4}
    expected = 2 * pairs * 4 * 128 / RATE + 16 * pairs / 32 / KERNELS.bandwidth + 4 * KERNELS.latency_s
    assert indexer.score_time_s(blocks, KERNELS) == pytest.approx(expected)
