"""Gemma 4: head widths by layer, keys and values of other layers, experts beside an MLP, embeddings by layer."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token, shape_dims
from simpar.architectures.graph import evaluate
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike

TINY = DECLARED["gemma4_text"].tiny


def tiny(**more):
    """A tiny text model, whose last three layers of six read the keys of others."""
    return read({**TINY, "model_type": "gemma4_text", **more}, "tiny")


@pytest.mark.filterwarnings("ignore")
def test_parameters_of_the_text_model_are_those_of_transformers():
    """With shared keys, MLPs of twice the width behind them, and embeddings by layer."""
    counted_alike("gemma4_text", dict(TINY))


@pytest.mark.parametrize(
    ("name", "billions", "table"),
    [("gemma-4-e2b", 2.3, True), ("gemma-4-26b-a4b", 25.2, False), ("gemma-4-31b", 30.7, False)],
)
def test_text_models_are_as_large_as_announced(name, billions, table):
    """Totals of the model card, without the tower; "effective" ones leave the layers' table out."""
    graph = load_model(name)
    tower = [graph.blocks[each] for each in graph.layers if each.startswith(("patches", "vision", "connector"))]
    rest = graph.num_parameters() - sum(block.parameters(graph.dims) for block in tower)
    rest -= table * 262_144 * graph.dims.get("per_layer_embeddings", 0)
    assert rest / 1e9 == pytest.approx(billions, abs=0.051)


def test_the_mixture_activates_what_is_announced():
    """3.8 B for each token, again without the tower."""
    graph = load_model("gemma-4-26b-a4b")
    tower = [graph.blocks[each] for each in graph.layers if each.startswith(("patches", "vision", "connector"))]
    active = graph.num_active_parameters() - sum(block.parameters(graph.dims) for block in tower)
    assert active / 1e9 == pytest.approx(3.8, abs=0.05)


def test_layers_that_see_all_tokens_have_heads_of_their_own():
    """Scores cost by their width, with a window and without."""
    graph = tiny()
    seq, heads = 64, 4
    narrow, wide = 2 * heads * 2 * 8 * 8, 2 * heads * 2 * 16 * seq
    assert attention_flop_per_token(graph, seq) == 4 * narrow + 2 * wide


def test_keys_that_are_values_are_projected_once():
    """One projection less in layers without a window, of the few key-value heads that these have."""
    config = {"num_global_key_value_heads": 1, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
    apart, once = tiny(**config), tiny(**config, attention_k_eq_v=True)
    assert apart.num_parameters() - once.num_parameters() == 2 * 32 * 16 * (2 * 2 - 1)


def test_shared_keys_and_embeddings_travel_past_layers():
    """Keys and values from the layer that makes them to the last reader, embeddings to the last layer but one."""
    graph = tiny()
    dims = shape_dims(graph, 16)
    narrow, wide, embedded = 16 * 2 * 2 * 8, 16 * 2 * 2 * 16, 16 * 6 * 4
    sent = [evaluate(graph.blocks[name].passes, dims) for name in graph.layers]
    assert sent == [embedded, narrow + embedded, *[narrow + wide + embedded] * 2, wide + embedded, 0]
    assert evaluate(graph.embedding.passes, dims) == embedded


def test_experts_stand_beside_the_mlp():
    """The graph has both, and every plan that a mixture allows."""
    graph = read({**DECLARED["gemma4"].tiny, "model_type": "gemma4"}, "tiny")
    kinds = {op.kind for name in graph.layers for op in graph.blocks[name].operators}
    assert {"router", "grouped_matmul", "gated_activation"} <= kinds
    training = simpar.Training(seq_len=512, global_batch=16)
    for plan in ({"ep": 4}, {"tp": 2, "sequence_parallel": True, "ep": 2}, {"pp": 2, "zero": 1}):
        assert simpar.simulate(graph, simpar.Cluster("dgx-h100"), simpar.Plan(**plan), training).fits


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tie_word_embeddings": False}, "tie_word_embeddings = false"),
        ({"attention_bias": True}, "attention_bias = true"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers = 5: allowed: layers of each kind before them"),
    ],
)
def test_what_the_family_does_not_have_is_refused(changes, words):
    """With the field and its value."""
    with pytest.raises(UserError, match=words):
        tiny(**changes)
