"""Colour refinement finds the coarsest equitable partition, and says so only after checking."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.program.fold import refinement
from simpar.program.fold.refinement import Incidence, Partition, by_appearance, refine, rows_by_appearance


def graph(colour, edges, labels=None):
    """An incidence graph from plain lists."""
    u, v = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    label = np.zeros(len(u), np.int64) if labels is None else np.array(labels, dtype=np.int64)
    return Incidence(np.array(colour, dtype=np.int64), u, v, label)


def refine_slowly(incidence):
    """Refinement by definition: split by the sorted (label, colour) of neighbours until nothing splits."""
    colour = list(incidence.colour.tolist())
    edges = list(zip(incidence.edge_u, incidence.edge_v, incidence.edge_label, strict=True))
    while True:
        sees = [[] for _ in colour]
        for u, v, label in edges:
            sees[u].append((int(label), colour[v]))
            sees[v].append((int(label), colour[u]))
        names = {}
        refined = [names.setdefault((c, tuple(sorted(s))), len(names)) for c, s in zip(colour, sees, strict=True)]
        if len(names) == len(set(colour)):
            return refined
        colour = refined


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_refinement_equals_its_definition(seed):
    """On random graphs the classes are those of naive refinement, numbered by first appearance."""
    draw = np.random.default_rng(seed)
    size, num_edges = int(draw.integers(1, 25)), int(draw.integers(0, 40))
    incidence = graph(
        draw.integers(0, 2, size), draw.integers(0, size, (num_edges, 2)), draw.integers(-1, 2, num_edges) * 10**12
    )
    assert refine(incidence).class_of.tolist() == refine_slowly(incidence)


def test_a_ring_is_one_class():
    """All nodes of a ring look alike; representative and size describe the class."""
    ring = graph([0] * 6, [(i, (i + 1) % 6) for i in range(6)])
    partition = refine(ring)
    assert partition.class_of.tolist() == [0] * 6
    assert partition.representative.tolist() == [0]


def test_one_odd_node_splits_a_ring_by_distance():
    """A single different node unfolds the ring into classes of equal distance to it."""
    ring = graph([1, 0, 0, 0, 0, 0], [(i, (i + 1) % 6) for i in range(6)])
    assert refine(ring).class_of.tolist() == [0, 1, 2, 3, 2, 1]


def test_labels_and_repeated_edges_count():
    """Nodes are told apart by the label of an edge and by how often it is there."""
    pairs = [(0, 3), (1, 3), (2, 3), (2, 3)]
    assert refine(graph([0, 0, 0, 1], pairs)).class_of.tolist() == [0, 0, 1, 2]
    assert refine(graph([0, 0, 0, 1], pairs, [5, 6, 5, 5])).class_of.tolist() == [0, 1, 2, 3]


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_a_node_may_stand_for_many(seed):
    """Orbits with counted neighbours have the classes of the graph in which every node is written out."""
    draw = np.random.default_rng(seed)
    size = int(draw.integers(1, 8))
    weight, colour = 2 ** draw.integers(0, 3, size), draw.integers(0, 2, size)
    node = np.repeat(np.arange(size), weight)
    first = np.cumsum(weight) - weight
    edges, labels, kept = [], [], []
    for u, v in draw.integers(0, size, (int(draw.integers(0, 14)), 2)).tolist():
        label, many = int(draw.integers(2)), max(int(weight[u]), int(weight[v]))
        kept.append((u, v, label, many // weight[u], many // weight[v]))
        for k in range(many):
            edges.append((first[u] + k % weight[u], first[v] + k % weight[v]))
            labels.append(label)
    columns = np.array(kept, dtype=np.int64).reshape(-1, 5).T
    folded = refine(Incidence(colour.astype(np.int64), *columns))
    assert folded.class_of[node].tolist() == refine(graph(colour[node], edges, labels)).class_of.tolist()


def test_labels_and_colours_do_not_stand_for_each_other():
    """A neighbour of colour b by label a is none of colour a by label b, though both products have equal factors."""
    for label, colour in permutations(range(12), 2):
        columns = [(0, 1, label, 2, 1), (2, 1, colour, 2, 1)]
        found = refine(Incidence(np.array([colour, colour, label]), *np.array(columns).T))
        assert found.class_of[0] != found.class_of[1], (label, colour)


def test_direction_does_not_matter():
    """An edge is seen from both ends alike."""
    one = refine(graph([0, 0, 0, 1], [(0, 3), (3, 1), (2, 3)]))
    assert one.class_of.tolist() == [0, 0, 0, 1]


def test_a_graph_without_edges_keeps_its_colours():
    """Classes are then the colours, and an empty graph has none."""
    assert refine(graph([7, 7, 3], [])).class_of.tolist() == [0, 0, 1]
    assert refine(graph([], [])).class_of.tolist() == []


@pytest.mark.parametrize(
    ("class_of", "message"),
    [([0, 0, 0, 1], "neighbours differ"), ([0, 0, 1, 0], "colours"), ([0, 1, 0, 2], "degrees differ")],
)
def test_a_wrong_partition_is_found_out(class_of, message):
    """If the hash ever lied, the exact check would say so."""
    path = graph([0, 0, 0, 1], [(0, 1), (1, 2), (2, 0), (2, 3), (1, 3)])
    classes = np.array(class_of)
    first = np.unique(classes, return_index=True)[1]
    if message == "neighbours differ":
        path = graph([0, 0, 0, 1], [(0, 1), (2, 3)])
    with pytest.raises(AssertionError, match=message):
        refinement._verify(path.colour, refinement._Ends.of(path), Partition(classes, first))


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 1)), max_size=12))
def test_rows_are_numbered_as_values_are(rows):
    """A row counts as the value that stands for it: whole rows are equal or not."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    of_rows, of_values = rows_by_appearance(table), by_appearance(table[:, 0] * 2 + table[:, 1])
    assert of_rows.class_of.tolist() == of_values.class_of.tolist()
    assert of_rows.representative.tolist() == of_values.representative.tolist()
