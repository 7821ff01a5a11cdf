"""Attention that is written out as calls, and what both forms of attention read."""

from dataclasses import replace

from simpar.tracing.eager import attended, behind, eager_attention
from simpar.tracing.nodes import CONSTANT, WEIGHTS, CallNode, Mask, Ref
from tests.tracing.drafts import call

SCORES = (2, 4, 32, 32)


def written_out() -> dict[str, CallNode]:
    """softmax(q k^T / 4 + mask) v, the mask from a table of zeros in which places are filled."""
    calls = [
        call("q", "linear", "x", sizes=(2, 4, 32, 8)), call("k", "linear", "x", sizes=(2, 4, 8, 32)),
        call("band", "where", kind=CONSTANT, sizes=(1, 1, 32, 32), mask=Mask(causal=True, window=8)),
        call("zeros", "new_zeros", "k", sizes=SCORES), call("places", "topk", "x", sizes=()),
        call("filled", "scatter_", "zeros", "places", sizes=SCORES),
        call("mask", "cat", "band", "filled", sizes=SCORES),
        call("scores", "matmul", "q", "k", sizes=SCORES), call("scaled", "mul", "scores", sizes=SCORES),
        call("masked", "add", "scaled", "mask", sizes=SCORES), call("soft", "softmax", "masked", sizes=SCORES),
        call("v", "linear", "x", sizes=(2, 4, 32, 8)), call("out", "matmul", "soft", "v", sizes=(2, 4, 32, 8)),
    ]  # fmt: skip
    return {node.name: node for node in [call("x", "placeholder"), *calls]}


def test_an_attention_is_its_calls_between_two_products() -> None:
    """The nearest to the product of the values comes first; products without a softmax, or with weights, are none."""
    nodes = written_out()
    eager = eager_attention(nodes, nodes["out"])
    assert eager is not None
    assert (eager.scores.name, eager.between, eager.operands) == ("scores", ("soft", "masked", "scaled"), ("q", "k"))
    assert eager_attention(nodes, nodes["scores"]) is None
    plain = {**nodes, "soft": replace(nodes["soft"], op="relu")}
    assert eager_attention(plain, plain["out"]) is None
    fixed = {**nodes, "v": replace(nodes["v"], kind=WEIGHTS)}
    assert eager_attention(fixed, fixed["out"]) is None


def test_both_forms_read_queries_keys_and_masks() -> None:
    """Keys are counted in the layout of each."""
    nodes = written_out()
    seen = attended(nodes, nodes["out"])
    assert seen is not None
    assert (seen.query.name, seen.key.name, seen.count, seen.masks) == ("q", "k", 32, ("mask",))
    core = call("core", "scaled_dot_product_attention", "q", "v", "v", "mask")
    seen = attended(nodes, core)
    assert seen is not None
    assert (seen.query.name, seen.key.name, seen.count, seen.masks) == ("q", "v", 32, ("mask",))
    assert attended(nodes, nodes["scores"]) is None
    unmasked = replace(core, args=(*core.args[:3], None))
    assert attended(nodes, unmasked) == replace(seen, masks=())
    assert isinstance(core.args[3], Ref)


def test_what_masks_are_made_of() -> None:
    """A table of zeros reads only the size of what it is like; choices are not behind a mask."""
    nodes = written_out()
    assert {*behind(nodes, ("mask",))} == {"mask", "band", "filled", "zeros"}
