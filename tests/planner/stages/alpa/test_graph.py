"""Sharding of a stage: elimination finds what trying everything finds."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.planner.stages.alpa.graph import eliminate
from simpar.planner.stages.alpa.operators import Metric

CASES = [("attention", (4,)), ("mlp", (4,)), ("mlp", (2, 2))]


def weighting(price: float = 0.0, in_flight: float = 4.0) -> np.ndarray:
    """Seconds of a microbatch, of ten a step, and a price in seconds of a byte."""
    found = np.zeros(len(Metric))
    found[[Metric.PASS, Metric.EXPOSED, Metric.SYNC, Metric.UPDATE]] = 1.0, 1.0, 0.1, 0.1
    found[[Metric.STATIC, Metric.SAVED]] = price, price * in_flight
    return found


@pytest.mark.parametrize(("name", "mesh"), CASES, ids=str)
def test_all_shardings_of_three_operators(small_graph, assignments, value, name, mesh):
    """The optimum over all shardings of a three-operator block, at no price and at a high price of memory."""
    graph = small_graph(name, mesh)
    for weights in (weighting(), weighting(1e-10)):
        best = min(value(graph, each, weights) for each in assignments(graph))
        ((least, found),) = eliminate(graph, weights[None])
        assert np.isfinite(best)
        assert least == pytest.approx(best, rel=1e-9)
        assert value(graph, found, weights) == pytest.approx(best, rel=1e-9)


def test_repeated_blocks_cost_their_number(small_graph):
    """A chain of two equal blocks costs twice one block, because its streams begin and end alike."""
    graph, weights = small_graph("mlp", (4,)), weighting()[None]
    assert eliminate(graph, weights)[0][0] == pytest.approx(2 * eliminate(graph, weights, {"mlp": 1})[0][0])


def test_one_sequence_on_many_devices_is_split_within_layers(small_graph):
    """With a single sequence, nothing is sharded over the batch; with many, nothing but the batch need be."""
    alone, many = (small_graph("mlp", (4,), micro_batch=size) for size in (1, 64))
    weights = np.eye(len(Metric))[[Metric.PASS]]
    for graph, batch in ((alone, False), (many, True)):
        ((_, chosen),) = eliminate(graph, weights)
        names = {
            role.name
            for variable, choice in zip(graph.variables, chosen, strict=True)
            if variable.table is not None
            for role in variable.table.combinations[int(variable.index[choice])]
        }
        assert ("batch" in names) == batch


def test_prices_trade_time_for_memory(small_graph, value):
    """Along rising prices of memory, bytes fall and seconds rise."""
    graph = small_graph("mlp", (2, 4))
    found = eliminate(graph, np.array([weighting(price) for price in (0.0, 1e-13, 1e-12, 1e-11, 1e-9)]))
    seconds = [value(graph, each, weighting()) for _, each in found]
    memory = [value(graph, each, weighting(1.0) - weighting()) for _, each in found]
    assert seconds == sorted(seconds)
    assert memory == sorted(memory, reverse=True)
    assert memory[-1] < memory[0]
