"""Layers that predict further tokens: what they read, what they are compared with, and their share of the loss."""

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from simpar.architectures.hf_config import read  # noqa: E402
from simpar.runtime.loss import WEIGHT, mean_loss  # noqa: E402
from simpar.runtime.prediction import IGNORED_TARGET, layers_of, next_tokens  # noqa: E402
from tests.runtime.test_decoder import TINY, decoder  # noqa: E402

CONFIG = {
    **TINY, "model_type": "deepseek_v3", "num_key_value_heads": 4, "kv_lora_rank": 8, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "q_lora_rank": None, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "first_k_dense_replace": 1, "num_nextn_predict_layers": 2,
}  # fmt: skip


def test_targets_of_further_tokens_end_with_the_sequence():
    """Depth k looks 1 + k places ahead; beyond the last token there is nothing to predict."""
    samples = torch.arange(6).unsqueeze(0)
    assert next_tokens(samples, torch.arange(5), 0).tolist() == [[1, 2, 3, 4, 5]]
    found = next_tokens(samples, torch.tensor([0, 3, 4]), 2)
    assert found.tolist() == [[[1, 4, 5], [2, 5, IGNORED_TARGET], [3, IGNORED_TARGET, IGNORED_TARGET]]]


def test_every_layer_reads_the_state_before_it_beside_the_next_embedding():
    """The logits are those of norms, projection, layer, norm and the model's own output projection by hand."""
    graph = read(CONFIG, "tiny")
    assert layers_of(graph) == 2
    model = decoder(graph)
    samples = torch.arange(26).view(2, 13) * 7 % 96
    tokens, targets = samples[:, :12], next_tokens(samples, torch.arange(12), 2)
    logits = model(tokens, targets[:, :-1])
    state = model.layers["1"](model.layers["0"](model.embedding(tokens)))
    torch.testing.assert_close(logits[0], model.head(state))
    for depth, name in enumerate(("2", "3")):
        layer, plain = model.layers[name], deepcopy(model.layers["1"])
        own = layer.state_dict()
        plain.load_state_dict({key: own[key] for key in plain.state_dict()})
        embedded = model.embedding(targets[:, depth].clamp(min=0))
        joined = torch.cat((layer.state_norm(state), layer.embedding_norm(embedded)), dim=-1)
        state = plain(functional.linear(joined, layer.join.parts[0].weight))
        torch.testing.assert_close(logits[1 + depth], model.head.lm_head(layer.final_norm(state)))


def test_the_loss_is_the_first_and_a_weighted_mean_of_the_others():
    """Every further loss is a sum over the tokens that there are, over the length of the sequence."""
    generator = torch.Generator().manual_seed(0)
    logits = tuple(torch.randn(2, 5, 7, generator=generator, dtype=torch.float64) for _ in range(3))
    samples = torch.randint(0, 7, (2, 6), generator=generator)
    targets = next_tokens(samples, torch.arange(5), 2)
    by_hand = []
    for depth, each in enumerate(logits):
        chances = functional.log_softmax(each, dim=-1)
        there = [chances[row, at, samples[row, at + 1 + depth]] for row in range(2) for at in range(5 - depth)]
        by_hand.append(-sum(there) / 10)
    expected = by_hand[0] + WEIGHT * (by_hand[1] + by_hand[2]) / 2
    torch.testing.assert_close(mean_loss(logits, targets), expected)
    torch.testing.assert_close(mean_loss(logits[0], targets[:, 0]), by_hand[0])
