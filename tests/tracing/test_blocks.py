"""Segments as blocks of operators."""

from math import prod

import pytest

from simpar.architectures.graph import evaluate
from simpar.errors import UserError
from simpar.tracing.blocks import HEAD, LAYER, BlockReader, Sharing
from simpar.tracing.reading import read_drafts
from simpar.tracing.segments import DraftSegment, segments
from tests.tracing.drafts import draft


@pytest.fixture(scope="module")
def layer(llama):
    """The first layer of the decoder, and its segment."""
    chain = segments("m", read_drafts("m", llama))
    values = {value: each for segment in chain for each in segment.drafts for value in each.outputs}
    return BlockReader("m", chain[1], LAYER, Sharing(), 64, values).read(), chain[1]


def test_dims_of_a_layer(layer):
    """Width, heads, key-value heads and the gate's width; sequences are the training's."""
    traced, _ = layer
    wanted = {"hidden": 64, "heads": 8, "kv_heads": 2, "head_dim": 8}
    assert {name: traced.dims[name] for name in wanted} == wanted
    assert "seq" not in traced.dims
    assert traced.refusal == ""


def test_weights_are_those_of_the_segment(layer):
    """All pieces of its drafts and no other."""
    traced, segment = layer
    sizes = [evaluate(weight.size, traced.dims) for op in traced.operators for weight in op.weights]
    assert sum(sizes) == sum(piece.numel for each in segment.drafts for piece in each.pieces)
    assert prod(sizes) > 0


def test_a_head_needs_a_product():
    """Without logits there is nothing to train on."""
    norm = draft("norm", "norm", 8, "x")
    reader = BlockReader("m", DraftSegment("", (norm,), "norm"), HEAD, Sharing(), 8, {})
    with pytest.raises(UserError, match="model = m: ends without a product"):
        reader.read()
