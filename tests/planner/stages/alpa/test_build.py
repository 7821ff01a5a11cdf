"""From blocks to the graph of choices."""

import numpy as np

import simpar
from simpar.planner.stages.alpa.build import Chain
from simpar.planner.stages.alpa.operators import Metric


def test_a_chain_is_the_whole_model():
    """Embedding, layers, head; equal layers are one kind."""
    graph = simpar.Model("tiny-llama")
    chain = Chain.of(graph)
    assert len(chain.blocks) == len(graph.layers) + 2
    assert len(chain.kinds) == len(set(graph.layers)) + 2
    assert chain.embedding == graph.embedding.name
    assert [list(chain.kinds)[number] for number in chain.kind_of_block] == [b.name for b in chain.blocks]


def test_what_ends_a_block_begins_the_next():
    """Layers that follow each other have one stream on both sides, which the head reads."""
    chain = Chain.of(simpar.Model("tiny-llama"))
    embedding, layer, head = chain.streams.values()
    assert layer[0] == layer[1] == embedding[1] == head[0]
    assert embedding[0] != layer[0] != head[1]


def test_streams_are_sliced_where_batch_and_rows_divide(small_graph):
    """Eight sequences on four ranks: whole, by batch, by sequence; one sequence is not split by batch."""
    sizes = {micro: _states(small_graph("mlp", (4,), micro_batch=micro)) for micro in (8, 1)}
    assert sizes[8] == 3
    assert sizes[1] == 2


def _states(graph):
    stream = graph.streams["mlp"][0]
    return len(graph.variables[stream])


def test_every_operator_has_a_choice_with_all_metrics(small_graph):
    """As many rows of metrics as there are, none negative."""
    graph = small_graph("attention", (2, 2))
    assert graph.unary
    for term in graph.unary:
        assert term.metrics.shape == (len(Metric), len(graph.variables[term.variable]))
        assert (term.metrics >= 0).all()
        assert np.isfinite(term.metrics).all()
