"""FLOP and bytes of products and attention, by hand."""

import pytest

import simpar
from simpar.report.pictured import KernelPoint

TOKENS, HIDDEN, HEAD, INNER = 1024, 4096, 128, 14336


@pytest.fixture(scope="module")
def points() -> dict[tuple[str, str], KernelPoint]:
    """One sequence of 1,024 tokens of Llama 3 8B on one H100 of eight."""
    result = simpar.simulate("llama-3-8b", "dgx-h100", {"zero": 3}, {"seq_len": TOKENS, "global_batch": 8})
    assert result.overview
    assert result.overview.roofline
    return {(point.operator, point.direction): point for point in result.overview.roofline.points}


def test_a_product_moves_its_operands_and_its_result(points: dict[tuple[str, str], KernelPoint]) -> None:
    """mlp_down: 1024 x 14336 by 14336 x 4096, in bf16."""
    point = points["mlp_down", "forward"]
    assert point.flop == 2 * TOKENS * INNER * HIDDEN
    assert point.moved_bytes == 2 * (TOKENS * INNER + INNER * HIDDEN + TOKENS * HIDDEN)
    assert point.layers == 32
    assert points["mlp_down", "input gradient"].flop == point.flop == points["mlp_down", "weight gradient"].flop


def test_attention_counts_what_its_mask_leaves(points: dict[tuple[str, str], KernelPoint]) -> None:
    """32 heads of 128, causal: 1024 / 2 keys a query; 4 FLOP a pair and feature, 2.5 times that backward."""
    forward, backward = points["attention", "forward"], points["attention", "backward"]
    assert forward.flop == 4 * TOKENS * 32 * (TOKENS / 2) * HEAD
    assert backward.flop == 2.5 * forward.flop
    assert forward.moved_bytes == 2 * 2 * TOKENS * (32 + 8) * HEAD


def test_nothing_is_faster_than_the_device(points: dict[tuple[str, str], KernelPoint]) -> None:
    """All marks lie under the roof: 989 TFLOP/s dense, 3.35 TB/s."""
    for point in points.values():
        assert point.flop / point.seconds < min(989.4e12, point.flop / point.moved_bytes * 3.352e12)


def test_what_precision_a_product_has() -> None:
    """In 8 bits the output projection and attention stay in 16."""
    result = simpar.simulate(
        "llama-3-8b", "dgx-h100", {"zero": 1, "precision": "fp8"}, {"seq_len": TOKENS, "global_batch": 8}
    )
    assert result.overview
    assert result.overview.roofline
    own = {point.operator: point.precision for point in result.overview.roofline.points}
    assert (own["mlp_down"], own["lm_head"], own["attention"]) == ("fp8", "bf16", "bf16")
    assert list(result.overview.roofline.peak_flop_per_s) == ["bf16", "fp8"]
