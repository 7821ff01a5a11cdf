"""Keys that each stand for several tokens, and attention that sees them beside those of its window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.tracing.nodes import CONSTANT, WEIGHTS, CallNode, Mask, Ref
from simpar.tracing.pools import pool_draft, pooled_attentions, pools
from tests.tracing.drafts import TOKENS, call

BATCH, SEQ, RATIO, WIDTH, HEADS = 2, 32, 8, 6, 4
PIECES = SEQ // RATIO
ROWS = {"sizes": (BATCH, SEQ, WIDTH), "shape": (((1, ("batch",)),), ((1, ("seq",)),), ((WIDTH, ()),))}
CUT = {"sizes": (BATCH, PIECES, RATIO, WIDTH)}
POOLED = {"sizes": (BATCH, PIECES, WIDTH)}


def pooling() -> dict[str, CallNode]:
    """Pieces of eight tokens, each one key of six features; four heads see them beside a window of four."""
    keys = (BATCH, HEADS, SEQ + PIECES, WIDTH)
    band = Mask(causal=True, window=4)
    calls = [
        call("x", "placeholder", sizes=(BATCH, SEQ, 16)),
        call("place", "placeholder", kind=WEIGHTS, sizes=(RATIO, WIDTH)),
        call("kv", "linear", "x", **ROWS), call("gate", "linear", "x", **ROWS),
        call("kv_cut", "view", "kv", **CUT), call("gate_cut", "view", "gate", **CUT),
        call("placed", "add", "gate_cut", "place", **CUT), call("soft", "softmax", "placed", **CUT),
        call("cast", "to", "soft", **CUT), call("weighed", "mul", "kv_cut", "cast", **CUT),
        call("pooled", "sum", "weighed", **POOLED), call("normed", "mul", "pooled", **POOLED),
        call("own", "linear", "x", **ROWS), call("both", "cat", "own", "normed", sizes=(BATCH, SEQ + PIECES, WIDTH)),
        call("keys", "expand", "both", sizes=keys), call("q", "linear", "x", sizes=(BATCH, HEADS, SEQ, WIDTH)),
        call("band", "where", kind=CONSTANT, mask=band), call("later", "new_zeros", "normed"),
        call("mask", "cat", "band", "later"),
        call("core", "scaled_dot_product_attention", "q", "keys", "keys", "mask", sizes=(BATCH, HEADS, SEQ, WIDTH)),
    ]  # fmt: skip
    return {node.name: node for node in calls}


def test_a_pool_is_found() -> None:
    """Its ratio is that of tokens to sums; the calls between the products and the sum are its own."""
    (pool,) = pools(pooling()).values()
    assert (pool.ratio, pool.pieces, [each.name for each in pool.reads]) == (RATIO, PIECES, ["kv", "gate"])
    assert pool.calls == {"kv_cut", "gate_cut", "placed", "soft", "cast", "weighed", "pooled"}


def test_the_operator_of_a_pool() -> None:
    """Of 2 x 6 elements that are read of a token, 6/8 of one are written: one, rounded up."""
    (pool,) = pools(pooling()).values()
    made = pool_draft(pool, ("kv", "gate"), ())
    assert (made.kind, made.rows, made.columns, made.contraction) == ("mix", TOKENS, 1, 2 * WIDTH)
    assert made.inputs == made.saves == ("kv", "gate")
    assert (made.outputs, made.pieces_of_sequence) == (("pooled",), PIECES)


@pytest.mark.parametrize("change", ["no softmax", "one product", "a sum for every token"])
def test_other_sums_are_no_pools(change: str) -> None:
    """Without a gate, of one product with itself, and one that keeps every token."""
    nodes = pooling()
    if change == "no softmax":
        nodes["soft"] = replace(nodes["soft"], op="relu")
    elif change == "one product":
        nodes["gate_cut"] = replace(nodes["gate_cut"], args=(Ref("kv"),))
    else:
        nodes["pooled"] = replace(nodes["pooled"], sizes=(BATCH, SEQ, WIDTH))
    assert pools(nodes) == {}


def test_an_attention_to_pooled_keys() -> None:
    """Its own keys, those of the pool behind their norm, and the window of the first part of the mask."""
    nodes = pooling()
    (seen,) = pooled_attentions(nodes, pools(nodes)).values()
    assert (seen.own.name, seen.keys, seen.pool.total.name) == ("own", "normed", "pooled")
    assert seen.mask == Mask(causal=True, window=4)
    assert seen.calls == {"keys", "both", "mask", "band", "later"}


def test_other_attentions_see_no_pools() -> None:
    """Keys of tokens alone, and further keys that no pool makes."""
    nodes = pooling()
    every = pools(nodes)
    nodes["keys"] = replace(nodes["keys"], args=(Ref("own"),))
    assert pooled_attentions(nodes, every) == {}
    nodes = pooling()
    nodes["both"] = replace(nodes["both"], args=(Ref("own"), Ref("kv")))
    assert pooled_attentions(nodes, every) == {}
