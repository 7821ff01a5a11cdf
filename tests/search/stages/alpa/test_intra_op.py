"""Sharding of a stage: the integer program and elimination find what trying everything finds."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.errors import Infeasible
from simpar.search.stages.alpa.choices import Weighting
from simpar.search.stages.alpa.eliminate import eliminate
from simpar.search.stages.alpa.intra_op import solve

CASES = [("attention", (4,)), ("mlp", (4,)), ("attention", (2, 2)), ("mlp", (2, 2)), ("mlp", (2, 8))]


@pytest.mark.parametrize(("name", "mesh"), CASES, ids=str)
def test_all_shardings_of_three_operators(small_graph, assignments, name, mesh):
    """The optimum over all shardings of a three-operator block, at no price and at a high price of memory."""
    graph = small_graph(name, mesh)
    for weighting in (Weighting(0.1, 4), Weighting(0.1, 4, price=1e-10)):
        best = min(graph.value(each, weighting) for each in assignments(graph))
        assert np.isfinite(best)
        for found in (eliminate(graph, [weighting])[0], solve(graph, weighting)):
            assert graph.value(found, weighting) == pytest.approx(best, rel=1e-6)


def test_a_limit_on_memory_is_kept_and_the_best_within_it_found(small_graph, assignments):
    """For limits between the leanest and the fastest sharding the program equals trying everything under the limit."""
    graph, weighting = small_graph("mlp", (4,), gather_weights=True), Weighting(0.1, 4)
    every = [(graph.value(each, weighting), graph.memory(each, weighting)) for each in assignments(graph)]
    every = [entry for entry in every if np.isfinite(entry[0])]
    least, most = min(memory for _, memory in every), min(every)[1]
    assert least < most
    for share in (0.05, 0.3, 0.6, 0.95):
        limit = least + share * (most - least)
        best = min(value for value, memory in every if memory <= limit)
        found = solve(graph, weighting, memory_limit_bytes=limit)
        assert graph.memory(found, weighting) <= limit * (1 + 1e-9)
        assert graph.value(found, weighting) == pytest.approx(best, rel=1e-6)
    with pytest.raises(Infeasible):
        solve(graph, weighting, memory_limit_bytes=0.9 * least)


def test_repeated_blocks_cost_their_number(small_graph):
    """A chain of two equal blocks costs twice one block, because its streams begin and end alike."""
    graph, weighting = small_graph("mlp", (4,)), Weighting(0.1, 4)
    found = eliminate(graph, [weighting])[0]
    metrics = graph.metrics(found)["mlp"]
    assert graph.value(found, weighting) == pytest.approx(2 * weighting.objective() @ metrics)


def test_one_sequence_on_many_devices_is_split_within_layers(small_graph):
    """With a single sequence, nothing is sharded over the batch; with many, nothing but the batch need be."""
    alone, many = (small_graph("mlp", (4,), micro_batch=size) for size in (1, 64))
    weighting = Weighting(0.0, 0)
    for graph, batch in ((alone, False), (many, True)):
        chosen = eliminate(graph, [weighting])[0]
        names = {
            role.name
            for variable, value in zip(graph.variables, chosen, strict=True)
            if variable.table is not None
            for role in variable.table.combinations[int(variable.index[value])]
        }
        assert ("batch" in names) == batch


def test_prices_trade_time_for_memory(small_graph):
    """Along rising prices of memory, bytes fall and seconds rise."""
    graph = small_graph("mlp", (2, 4), gather_weights=True)
    weightings = [Weighting(0.1, 4, price=price) for price in (0.0, 1e-13, 1e-12, 1e-11, 1e-9)]
    found = eliminate(graph, weightings)
    free = Weighting(0.1, 4)
    seconds = [graph.value(each, free) for each in found]
    memory = [graph.memory(each, free) for each in found]
    assert seconds == sorted(seconds)
    assert memory == sorted(memory, reverse=True)
    assert memory[-1] < memory[0]
