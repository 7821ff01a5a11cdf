"""Sizes as polynomials in batch and sequence."""

import pytest

from simpar.tracing.nodes import CallNode, Mask, Ref, TraceShape, constant_value, divide_size, length, narrowest, times
from tests.tracing.drafts import call

SHAPES = (TraceShape(batch=6, seq=40), TraceShape(batch=4, seq=24))


def test_products_of_polynomials():
    """(2 batch + 3) * (seq + 5) has four terms; nothing times nothing is 1."""
    found = times(((2, ("batch",)), (3, ())), ((1, ("seq",)), (5, ())))
    assert {names: value for value, names in found} == {("batch", "seq"): 2, ("batch",): 10, ("seq",): 3, (): 15}
    assert times() == ((1, ()),)
    assert times(((1, ("x",)), (1, ())), ((1, ("x",)), (-1, ()))) == ((1, ("x", "x")), (0, ("x",)), (-1, ()))


def test_numbers_without_names():
    """Only they are whole; division keeps the names."""
    assert constant_value(((7, ()),)) == 7
    assert constant_value(((7, ("seq",)),)) is None
    assert constant_value(((7, ()), (1, ("seq",)))) is None
    assert divide_size(((12, ("batch", "seq")), (6, ())), 3) == ((4, ("batch", "seq")), (2, ()))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (64, 64, ((64, ()),)),
        (6, 4, ((1, ("batch",)),)),
        (80, 48, ((2, ("seq",)),)),
        (240, 96, ((1, ("batch", "seq")),)),
        (1600, 576, ((1, ("seq", "seq")),)),
        (41, 25, ((1, ("seq",)), (1, ()))),
    ],
)
def test_two_lengths_tell_the_polynomial(first, second, expected):
    """A dim of two traces is the shortest polynomial that has both values."""
    assert length(first, second, SHAPES) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(10, 6, ((10, ()),)), (60, 24, ((10, ("batch",)),)), (13, 9, ((13, ()),)), (42, 12, ((7, ("batch",)),))],
    ids=["a quarter", "a quarter for each of a batch", "steps", "steps for each of a batch"],
)
def test_what_is_no_polynomial_is_a_number(first, second, expected):
    """That of the first trace's length."""
    assert length(first, second, SHAPES) == expected


def test_what_a_call_reads():
    """References at any depth, in order; elements are the product of its dims; its module is the innermost."""
    node = CallNode(
        "out", "cat", ([Ref("a"), Ref("b")], (1, Ref("c"))), (((2, ("batch",)),), ((8, ()),)), (4, 8), "data",
        (("layers", "List"), ("layers.0", "Layer")),
    )  # fmt: skip
    assert node.refs == ("a", "b", "c")
    assert node.numel == ((16, ("batch",)),)
    assert node.path == "layers.0"
    assert call("x", "add").path == ""


def test_several_masks_of_one_attention():
    """A key is seen if none hides it: the causal one and the narrowest window hold; nothing known is nothing seen."""
    assert narrowest([Mask(causal=True), None, Mask(window=8), Mask(causal=True, window=4)]) == Mask(True, 4)
    assert narrowest([Mask()]) == Mask()
    assert narrowest([None]) is None
