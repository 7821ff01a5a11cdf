"""Placement: domains in order of appearance, shapes, and groups that make no sense."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.placement import GroupShape, count_equal, place, regular_shape, representative
from simpar.errors import UserError

from .conftest import make_toy


def test_domains_are_numbered_as_they_appear() -> None:
    """A group that starts on node 2 calls it domain 0."""
    placed = place(np.array([[17, 0, 16, 8], [0, 1, 2, 3]]), make_toy(4))
    assert placed.position.tolist() == [[0, 1, 0, 2], [0, 0, 0, 0]]
    assert placed.beside.tolist() == [[2, 1, 2, 1], [4, 4, 4, 4]]
    assert placed.local.tolist() == [[0, 0, 1, 0], [0, 1, 2, 3]]


def test_count_equal_counts_within_rows() -> None:
    """Equal entries of other groups do not count."""
    assert count_equal(np.array([[1, 1, 2], [1, 2, 2]])).tolist() == [[2, 2, 1], [1, 2, 2]]


@pytest.mark.parametrize(
    ("group", "shape"),
    [
        (np.arange(8), GroupShape(1, 8, 8, 8, 1.0, 1, 1)),
        (np.arange(0, 32, 8), GroupShape(4, 1, 1, 4, 0.0, 1, 1)),
        (np.arange(0, 32, 16), GroupShape(2, 1, 1, 2, 0.0, 1, 2)),
        (np.array([0, 2, 8, 10]), GroupShape(2, 2, 2, 4, 1 / 7, 2, 1)),
        (np.array([0, 1, 8]), GroupShape(2, 2, 1, 3, 1 / 7, 1, 1)),
    ],
)
def test_shape(group: np.ndarray, shape: GroupShape) -> None:
    """A shape says how many domains, how full, and how far apart."""
    assert place(np.asarray(group)[None, :], make_toy(4)).shape == shape


def test_representative_has_the_shape() -> None:
    """The group that stands for a regular shape has that shape."""
    toy = make_toy(4)
    for group in (np.arange(8), np.arange(0, 32, 8), np.array([0, 2, 8, 10])):
        shape = place(np.asarray(group)[None, :], toy).shape
        assert representative(shape, toy).shape == shape
    assert representative(regular_shape(2, 4), toy).ranks.tolist() == [[0, 1, 2, 3, 8, 9, 10, 11]]


def test_domains_larger_than_nodes() -> None:
    """In a rack of 18 nodes of 4, a domain has 72 devices and a node's NICs are still its own."""
    toy = make_toy(36, 4, up={"domain": 72})
    shape = place(np.arange(144)[None, :], toy).shape
    assert (shape.num_domains, shape.per_domain, shape.node_fill) == (2, 72, 1.0)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.zeros((0, 4)), "needed: groups x members"),
        (np.arange(4), "needed: groups x members"),
        (np.array([[0, 99]]), r"0\.\.99: allowed 0\.\.31"),
        (np.array([[-1, 3]]), "allowed"),
        (np.array([[3, 3]]), "names a rank twice"),
    ],
)
def test_nonsense_is_refused(groups: np.ndarray, message: str) -> None:
    """Empty groups, unknown ranks and repeated ranks are the user's error."""
    with pytest.raises(UserError, match=message):
        place(groups, make_toy(4))


def test_a_shape_that_does_not_fit_is_refused() -> None:
    """Eight nodes do not fit on four."""
    with pytest.raises(UserError, match="allowed 0"):
        representative(regular_shape(8, 8), make_toy(4))
