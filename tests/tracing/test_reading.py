"""Calls to drafts."""

from collections import Counter
from math import prod

import pytest

from simpar.errors import UserError
from simpar.tracing.capture import Capture
from simpar.tracing.nodes import DATA
from simpar.tracing.reading import read_drafts
from tests.tracing.drafts import call


def test_drafts_of_a_decoder(llama):
    """A table, two layers of attention and a gate with two norms and two sums, a norm and a product behind them."""
    kinds = Counter(draft.kind for draft in read_drafts("m", llama))
    assert kinds["embedding"] == 1
    assert kinds["attention"] == 2
    assert kinds["norm"] == 2 * 2 + 1
    assert kinds["add"] == 2 * 2
    assert kinds["rope"] == 2 * 2
    assert kinds["gated_activation"] == 2


def test_every_parameter_is_read_once(llama):
    """The pieces of all drafts are all elements of all parameters."""
    owned = Counter()
    for draft in read_drafts("m", llama):
        owned.update({piece.parameter: piece.numel for piece in draft.pieces})
    assert owned == {name: prod(sizes) for name, sizes in llama.parameters.items()}


def test_values_that_drafts_read_are_made(llama):
    """By a draft before, or they are the batch itself."""
    made = {""}
    for draft in read_drafts("m", llama):
        assert {*draft.inputs} <= made
        made |= {*draft.outputs}


def alone(*nodes):
    """A capture of some calls without parameters."""
    return Capture({node.name: node for node in nodes}, {})


def test_operators_without_a_rule_are_refused():
    """By name, with the module that calls them."""
    batch = call("x", "placeholder", kind=DATA)
    with pytest.raises(UserError, match="model = m: fft_fft in mixing: has no rule"):
        read_drafts("m", alone(batch, call("f", "fft_fft", "x", path="mixing")))
