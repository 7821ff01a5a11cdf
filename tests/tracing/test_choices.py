"""Choices of keys in a trace: from the scores of an indexer to the mask that hides what was not chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.architectures.indexer import Indexer
from simpar.tracing.choices import choice_draft, choices, unread_choices
from simpar.tracing.nodes import CONSTANT, INDEX, CallNode, Ref
from tests.tracing.drafts import call

BATCH, SEQ, HEADS, DIM, INDEX_HEADS, INDEX_DIM, TOP = 2, 32, 4, 8, 3, 6, 5
OWN = {"path": "layer.indexer"}
BATCH_SIZE, SEQ_SIZE = ((1, ("batch",)),), ((1, ("seq",)),)
HEAD = {"sizes": (BATCH, HEADS, SEQ, DIM), "shape": (BATCH_SIZE, ((HEADS, ()),), SEQ_SIZE, ((DIM, ()),))}


def sparse(*, blocks: int = 0, rankings: int = 1) -> dict[str, CallNode]:
    """An indexer of 3 heads of 6, its choice of 5 keys (or blocks of keys), a mask of it, and the attention."""
    scored = (BATCH, rankings, SEQ, blocks or SEQ)
    calls = [
        call("x", "placeholder", sizes=(BATCH, SEQ, 64)),
        call("causal", "placeholder", kind=CONSTANT, sizes=(1, 1, SEQ, SEQ)),
        call("positions", "placeholder", kind=INDEX, sizes=(BATCH, SEQ)),
        call("queries", "linear", "x", path="layer.indexer.q", sizes=(BATCH, SEQ, INDEX_HEADS * INDEX_DIM)),
        call("keys", "layer_norm", "x", path="layer.indexer.norm", sizes=(BATCH, SEQ, INDEX_DIM)),
        call("weights", "linear", "x", path="layer.indexer.w", sizes=(BATCH, SEQ, INDEX_HEADS)),
        call("split", "view", "queries", sizes=(BATCH, SEQ, INDEX_HEADS, INDEX_DIM), **OWN),
        call("turned", "transpose", "keys", sizes=(BATCH, 1, INDEX_DIM, SEQ), **OWN),
        call("scores", "matmul", "split", "turned", sizes=(BATCH, SEQ, INDEX_HEADS, SEQ), **OWN),
        call("bent", "relu", "scores", sizes=(BATCH, SEQ, INDEX_HEADS, SEQ), **OWN),
        call("summed", "matmul", "weights", "bent", sizes=scored, **OWN),
        *(
            [
                call("cut", "view", "summed", sizes=(BATCH, rankings, SEQ, blocks, SEQ // blocks), **OWN),
                call("hidden", "amax", "cut", sizes=scored, **OWN),
            ]
            if blocks
            else [call("hidden", "add", "summed", "causal", sizes=scored, **OWN)]
        ),
        call("best", "topk", "hidden", sizes=(), **OWN),
        call("best.1", "getitem", "best", sizes=(BATCH, rankings, SEQ, TOP), floating=False, **OWN),
        call("seen", "scatter", "best.1", "positions", path="layer", sizes=(BATCH, 1, SEQ, SEQ)),
        call("mask", "masked_fill", "causal", "seen", path="layer", sizes=(BATCH, 1, SEQ, SEQ)),
        call("q", "linear", "x", path="layer.q", **HEAD),
        call("core", "scaled_dot_product_attention", "q", "q", "q", "mask", path="layer", **HEAD),
    ]
    return {node.name: node for node in calls}


def test_a_choice_is_found() -> None:
    """Its sizes, its own calls and those of the mask, and what other modules make for it."""
    found = choices(sparse())
    assert list(found) == ["core"]
    assert found["core"].indexer == Indexer(INDEX_HEADS, INDEX_DIM, TOP)
    own = {"split", "turned", "scores", "bent", "summed", "hidden", "best"}
    assert found["core"].calls == own | {"best.1", "seen", "mask"}
    assert found["core"].reads == ("queries", "keys", "weights")


def test_blocks_are_chosen_for_groups_of_heads() -> None:
    """Five blocks of eight keys, once for each of two rankings."""
    (found,) = choices(sparse(blocks=4, rankings=2)).values()
    assert found.indexer == Indexer(INDEX_HEADS, INDEX_DIM, TOP * 8, block=8, apart=True)


def test_the_operator_of_a_choice() -> None:
    """One row for every token, two elements for each place that is chosen; what it reads is kept."""
    (found,) = choices(sparse()).values()
    made = choice_draft(found, ("queries", "keys", "weights"))
    assert (made.kind, made.rows, made.columns) == ("indexer", ((1, ("batch", "seq")),), 2 * TOP)
    assert made.inputs == made.saves == ("queries", "keys", "weights")
    assert made.outputs == ("best",)


@pytest.mark.parametrize("change", ["a mask of data", "no mask", "no product"])
def test_what_is_no_choice_of_keys(change: str) -> None:
    """A mask that is made of activations, none at all, and places picked by scores of one product with weights."""
    nodes = sparse()
    if change == "a mask of data":
        nodes["mask"] = replace(nodes["mask"], args=(Ref("causal"), Ref("seen"), Ref("x")))
    elif change == "no mask":
        nodes["core"] = replace(nodes["core"], args=nodes["core"].args[:3])
    else:
        nodes["hidden"] = replace(nodes["hidden"], args=(Ref("weights"),))
    assert choices(nodes) == {}


def test_layers_that_see_one_choice() -> None:
    """The later one's calls are those of the choice, and those of its own mask."""
    nodes = sparse()
    nodes["seen2"] = call("seen2", "scatter", "best.1", path="layer2", sizes=(BATCH, 1, SEQ, SEQ))
    nodes["core2"] = call("core2", "scaled_dot_product_attention", "q", "q", "q", "seen2", path="layer2", **HEAD)
    found = choices(nodes)
    assert found["core2"].pick is found["core"].pick
    assert "seen2" in found["core2"].calls
    assert "seen2" not in found["core"].calls


def test_choices_that_are_not_understood_are_counted() -> None:
    """Scores of pools of keys are of another number than the keys; a mask without a choice is none."""
    nodes = sparse()
    assert unread_choices(nodes) == 0
    pools = {**nodes, "summed": replace(nodes["summed"], sizes=(BATCH, 1, SEQ, SEQ - 1))}
    pools["hidden"] = replace(nodes["hidden"], sizes=(BATCH, 1, SEQ, SEQ - 1))
    assert choices(pools) == {}
    assert unread_choices(pools) == 1
    pooled = {
        **nodes,
        **{name: replace(nodes[name], sizes=(*nodes[name].sizes[:-1], 8)) for name in ("scores", "hidden")},
    }
    assert (choices(pooled), unread_choices(pooled)) == ({}, 1)
    plain = {**nodes, "core": replace(nodes["core"], args=(*nodes["core"].args[:3], Ref("causal")))}
    assert unread_choices(plain) == 0
