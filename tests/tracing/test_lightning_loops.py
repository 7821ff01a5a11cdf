"""Lightning attention in loops: a class of transformers that loops over pieces is one pass, and is what it was."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


def test_the_pass_is_what_the_loop_computes() -> None:
    """With weights, a state that decays by its head and is read by every query gives the numbers of the loop."""
    import torch
    from transformers import MiniMaxConfig
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    from simpar.tracing.lightning_loops import LIGHTNING, whole_lightning

    torch.manual_seed(0)
    config = MiniMaxConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=2, head_dim=8, block_size=4,
        layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    layer = MiniMaxLightningAttention(config, 0).double()
    tokens = torch.randn(2, 10, 32, dtype=torch.float64)
    called = []

    def passing(op, given, like):
        query, key, value, block = given
        called.append((op, block))
        decay = torch.exp(-layer.slope_rate.double())[:, 0, 0]
        state = torch.zeros(2, 4, 8, 8, dtype=torch.float64)
        result = torch.empty_like(like)
        for at in range(query.shape[1]):
            state = state * decay[None, :, None, None] + key[:, at, :, :, None] * value[:, at, :, None, :]
            result[:, at] = torch.einsum("bhk,bhkv->bhv", query[:, at], state)
        return result

    own, _ = layer(tokens, None, None)
    with whole_lightning(layer, passing):
        whole, _ = layer(tokens, None, None)
    assert called == [(LIGHTNING, 4)]
    assert torch.allclose(own, whole, rtol=1e-4, atol=1e-6)
    assert "forward" not in vars(layer)
