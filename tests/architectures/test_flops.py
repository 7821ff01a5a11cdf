"""FLOP of a step by convention."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.flops import hardware_flop_per_token, model_flop_per_token


def test_llama_3_8b_matmuls() -> None:
    """6 N per token with N = 7.505e9: parameters without the embedding table, with the output projection."""
    assert load_model("llama-3-8b").num_matmul_parameters() == pytest.approx(7.5047e9, rel=1e-4)


def test_llama_3_8b_attention_by_convention() -> None:
    """At 8,192 tokens attention adds 12.9 GFLOP a token in full and 6.4 causally."""
    graph = load_model("llama-3-8b")
    matmuls = 6 * graph.num_matmul_parameters()
    assert model_flop_per_token(graph, 8192) - matmuls == pytest.approx(12 * 32 * 32 * 128 * 8192, rel=1e-12)
    assert model_flop_per_token(graph, 8192, "causal") - matmuls == pytest.approx(6.44e9, rel=1e-2)


@pytest.mark.parametrize("name", ["megatron-18b", "megatron-175b", "megatron-1t"])
def test_full_recompute_follows_the_paper(name: str) -> None:
    """96 B s L h^2 (1 + s/6h + V/16Lh) FLOP with full recompute [arXiv 2104.04473, equation 3]."""
    graph, seq = load_model(name), 2048
    hidden, vocab, layers = graph.dims["hidden"], graph.dims["vocab"], len(graph.layers)
    paper = 96 * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
    assert hardware_flop_per_token(graph, seq, "full") == pytest.approx(paper, rel=1e-6)


def test_recompute_every_second_layer_is_half_of_full() -> None:
    """every:2 repeats half of the layers' forward."""
    graph = load_model("llama-3-8b")
    base = model_flop_per_token(graph, 4096)
    full = hardware_flop_per_token(graph, 4096, "full") - base
    assert hardware_flop_per_token(graph, 4096, "every:2") - base == pytest.approx(full / 2)


def test_windows_bound_attention() -> None:
    """Gemma's local layers see at most their window."""
    graph = load_model("gemma-2-9b")
    growth = model_flop_per_token(graph, 65536) - model_flop_per_token(graph, 32768)
    width = graph.dims["heads"] * graph.dims["head_dim"]
    assert growth == pytest.approx(12 * 21 * width * 32768)
