"""Dropout that a launch has beside a model's own."""

import pytest

from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.dropout import FIELD, with_dropout
from simpar.architectures.hf_config import read
from simpar.errors import UserError

SHIPPED = ["gpt3-13b", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "nemotron-h-8b", "falcon-7b", "pythia-6.9b"]


def kinds(graph, kind="dropout"):
    """Names of a graph's operators of a kind, of one block each."""
    return {name: [op.name for op in block.operators if op.kind == kind]
            for name, block in {"embedding": graph.embedding, **graph.blocks}.items()}  # fmt: skip


def rates_of_attention(graph):
    """Whether attention drops weights, over all blocks."""
    return {op.attention.dropout for block in graph.blocks.values() for op in block.operators if op.attention}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_branch_drops_before_it_joins_the_residual(name):
    """As many as there are sums with the residual, and one behind the embedding."""
    graph = with_dropout(load_model(name), attention=0.1, hidden=0.1)
    drops, sums = kinds(graph), kinds(graph, "add")
    for block, names in sums.items():
        joins = [each for each in names if each.endswith("residual")]
        assert len(drops[block]) == (1 if block == "embedding" else len(joins)), block
    assert rates_of_attention(graph) <= {True}
    assert graph.details.dropout.residual == graph.details.dropout.embedding == 0.1


def test_it_is_that_of_a_config_with_rates_of_its_family():
    """GPT-2's own fields give the same graph."""
    rates = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.1)
    assert with_dropout(load_model("gpt3-13b"), attention=0.1, hidden=0.1) == read(
        {**config_of("gpt3-13b"), **rates}, "gpt3-13b"
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_taken_back_is_the_model(name):
    """Rates of 0 leave nothing behind."""
    graph = load_model(name)
    assert with_dropout(with_dropout(graph, attention=0.2, hidden=0.1), attention=0.0, hidden=0.0) == graph
    assert with_dropout(graph) is graph


def test_rates_are_taken_apart():
    """Attention's weights and hidden states have rates of their own."""
    graph = load_model("gpt3-13b")
    of_scores, of_states = with_dropout(graph, attention=0.1), with_dropout(graph, hidden=0.1)
    assert rates_of_attention(of_scores) == {True}
    assert kinds(of_scores)["layer"] == []
    assert rates_of_attention(of_states) == {False}
    assert len(kinds(of_states)["layer"]) == 2


def test_rates_in_a_config():
    """All families read the field, and refuse others in it."""
    config = config_of("llama-3-8b")
    said = read({**config, FIELD: {"attention": 0.0, "hidden": 0.1}}, "llama-3-8b")
    assert said == with_dropout(load_model("llama-3-8b"), attention=0.0, hidden=0.1)
    assert not said.details.unread
    with pytest.raises(UserError, match=r"c.json: launch_dropout: states: allowed: attention, hidden"):
        read({**config, FIELD: {"states": 0.1}}, "c.json")
    with pytest.raises(UserError, match=r"c.json: launch_dropout: hidden = 2: allowed: 0 up to below 1"):
        read({**config, FIELD: {"hidden": 2}}, "c.json")
