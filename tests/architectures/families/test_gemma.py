"""VaultGemma at the sizes of its configuration class in transformers, and Gemma 3 for embeddings."""

from __future__ import annotations

import pytest

from simpar.architectures.hf_config import read

USUAL = {
    "vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip


def test_its_parameters_are_those_of_gemma_2_without_two_norms():
    """Per layer 2 h (heads + kv heads) d + 3 h f of products and two norms of h, the table once."""
    graph, gemma = (read({**USUAL, "model_type": kind}, kind) for kind in ("vaultgemma", "gemma2"))
    h, f, q, kv = 2304, 9216, 8 * 256, 4 * 256
    assert graph.num_parameters() == 256_000 * h + 26 * (2 * h * (q + kv) + 3 * h * f + 2 * h) + h
    assert gemma.num_parameters() - graph.num_parameters() == 26 * 2 * h


def test_every_other_layer_sees_a_window_and_values_are_capped():
    """The first layer has a window; caps, offset of norms and the scale of embeddings are Gemma 2's."""
    graph, gemma = (read({**USUAL, "model_type": kind}, kind) for kind in ("vaultgemma", "gemma2"))
    windows = [
        next(op.attention.window for op in graph.blocks[name].operators if op.attention) for name in graph.layers
    ]
    assert windows == [4096, None] * 13
    ours, theirs = graph.details, gemma.details
    assert (ours.caps, ours.scales, ours.norm_offset) == (theirs.caps, theirs.scales, theirs.norm_offset)
    assert ours.activation == "gelu_pytorch_tanh"


def test_embeddings_see_both_ways():
    """No mask hides later tokens; a window of 512 counts the tokens on both sides (EmbeddingGemma, 303 M)."""
    sizes = {
        "model_type": "gemma3_text", "vocab_size": 262_144, "hidden_size": 768, "intermediate_size": 1152,
        "num_hidden_layers": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256,
        "sliding_window": 512, "query_pre_attn_scalar": 256,
    }  # fmt: skip
    graph = read({**sizes, "use_bidirectional_attention": True}, "embedding")
    patterns = {op.attention for name in graph.layers for op in graph.blocks[name].operators if op.attention}
    assert {pattern.causal for pattern in patterns} == {False}
    assert {pattern.mean_keys(2048) for pattern in patterns} == {512, 2048}
    assert graph.details.unread == ()
    assert graph.num_parameters() / 1e6 == pytest.approx(303, abs=0.5)
