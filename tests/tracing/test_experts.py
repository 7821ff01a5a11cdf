"""Mixtures in a trace: the calls between a router's product and the sum of what its experts made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.architectures.graph import Size
from simpar.tracing.experts import drafts_of, mixtures
from simpar.tracing.nodes import DATA, WEIGHTS, CallNode, Ref
from simpar.tracing.raw_operators import DraftWeight
from tests.tracing.drafts import call

EXPERTS, TOP, HIDDEN, NARROW, TOKENS = 4, 2, 16, 24, 6
ROWS: Size = ((TOP, ("batch", "seq")),)


def wide(columns: int, *, routed: bool = False) -> dict[str, object]:
    """Shape and sizes of tokens, or of what is routed."""
    rows = ROWS if routed else ((1, ("batch", "seq")),)
    return {"shape": (rows, ((columns, ()),)), "sizes": (TOKENS * (TOP if routed else 1), columns)}


def mixture(*, gate: int = 2, clamps: bool = False) -> dict[str, CallNode]:
    """Scores, the best of them, tokens sorted by expert, two grouped products, back and summed up."""
    inner = "clamped" if clamps else "up"
    calls = [
        call("x", "placeholder", kind=DATA, **wide(HIDDEN)),
        call("w_router", "placeholder", kind=WEIGHTS, sizes=(EXPERTS, HIDDEN)),
        call("w_up", "placeholder", kind=WEIGHTS, sizes=(EXPERTS, HIDDEN, gate * NARROW)),
        call("w_down", "placeholder", kind=WEIGHTS, sizes=(EXPERTS, NARROW, HIDDEN)),
        call("flat", "view", "x", **wide(HIDDEN)),
        call("scores", "linear", "flat", "w_router", **wide(EXPERTS)),
        call("order", "softmax", "scores", **wide(TOP)),
        call("picked", "index", "flat", "order", **wide(HIDDEN, routed=True)),
        call("up", "_grouped_mm", "picked", "w_up", **wide(gate * NARROW, routed=True)),
        *([call("clamped", "clamp", "up", **wide(gate * NARROW, routed=True))] if clamps else []),
        call("act", "silu", inner, **wide(NARROW, routed=True)),
        call("down", "_grouped_mm", "act", "w_down", **wide(HIDDEN, routed=True)),
        call("back", "mul", "down", "order", **wide(HIDDEN, routed=True)),
        call("out", "sum", "back", **wide(HIDDEN)),
        call("behind", "add", "out", "x", **wide(HIDDEN)),
    ]
    return {node.name: node for node in calls}


def pieces(node: CallNode) -> tuple[DraftWeight, ...]:
    """Parameters that a call reads, with all their elements."""
    sizes = {"w_router": EXPERTS * HIDDEN, "w_up": EXPERTS * HIDDEN * 2 * NARROW, "w_down": EXPERTS * NARROW * HIDDEN}
    return tuple(DraftWeight(node.name, ref, sizes[ref], "matrix") for ref in node.refs if ref in sizes)


def test_a_mixture_is_found() -> None:
    """From the router to the sum; what is before and behind is no part of it."""
    (found,) = mixtures(mixture())
    assert (found.router.name, found.source, found.up.name, found.down.name, found.end.name) == (
        "scores", "x", "up", "down", "out",
    )  # fmt: skip
    assert [node.name for node in found.between] == ["scores", "order", "picked", "up", "act", "down", "back", "out"]
    assert (found.hidden, found.narrow) == (HIDDEN, NARROW)


def test_the_router_of_experts_that_read_a_latent() -> None:
    """Scores of tokens twice as wide as what is sent; its parameters are as many as it reads."""
    nodes = mixture()
    nodes["w_router"] = replace(nodes["w_router"], sizes=(EXPERTS, 2 * HIDDEN))
    nodes = {"wide": call("wide", "linear", "x", **wide(2 * HIDDEN)), **nodes}
    nodes["scores"] = replace(nodes["scores"], args=(Ref("wide"), Ref("w_router")))
    (found,) = mixtures(nodes)
    assert (found.source, found.routed_by, found.width, found.hidden) == ("x", "wide", 2 * HIDDEN, HIDDEN)
    router, dispatch = drafts_of(found, "narrow", "tokens", pieces)[:2]
    assert (router.inputs, router.saves, router.contraction) == (("tokens",), ("tokens", "scores"), 2 * HIDDEN)
    assert (dispatch.inputs, dispatch.columns) == (("narrow", "scores"), HIDDEN)


@pytest.mark.parametrize("missing", ["picked", "down", "out", "scores"])
def test_half_a_mixture_is_none(missing: str) -> None:
    """Without a choice of tokens, a second product, a sum or a router it is something else."""
    nodes = mixture()
    nodes[missing] = replace(nodes[missing], op="gelu")
    assert list(mixtures(nodes)) == []


def test_its_operators() -> None:
    """Seven calls are six operators; every parameter has its place, expert by expert."""
    (found,) = mixtures(mixture())
    drafts = drafts_of(found, "stream", "stream", pieces)
    assert [each.kind for each in drafts] == [
        "router", "dispatch", "grouped_matmul", "gated_activation", "grouped_matmul", "combine",
    ]  # fmt: skip
    router, dispatch, up, act, down, combine = drafts
    assert (router.inputs, dispatch.inputs) == (("stream",), ("stream", "scores"))
    assert (up.contraction, up.columns, down.contraction, down.columns) == (HIDDEN, 2 * NARROW, NARROW, HIDDEN)
    assert act.columns == NARROW
    assert dispatch.rows == up.rows == ROWS
    assert combine.rows == router.rows == ((1, ("batch", "seq")),)
    assert [[(p.parameter, p.kind) for p in each.pieces] for each in (router, up, down)] == [
        [("w_router", "matrix")], [("w_up", "expert")], [("w_down", "expert")],
    ]  # fmt: skip


def test_clamps_and_plain_activations() -> None:
    """A clamp in between is a pass of its own; one activation of one width is not gated."""
    (found,) = mixtures(mixture(clamps=True))
    clamp, act = drafts_of(found, "x", "x", pieces)[3:5]
    assert (clamp.kind, act.inputs) == ("clamp", clamp.outputs)
    (plain,) = mixtures(mixture(gate=1))
    assert drafts_of(plain, "x", "x", pieces)[3].kind == "activation"


def scaled(rows: int) -> dict[str, CallNode]:
    """Stacks of matrices that multiply so many rows, scaled by scores."""
    nodes = mixture()
    nodes["order"] = replace(nodes["order"], op="topk")
    best = call("best", "getitem", "order", **wide(TOP))
    nodes["picked"] = replace(nodes["picked"], op="mul", args=(Ref("flat"), Ref("best")), sizes=(rows, HIDDEN))
    for name in ("up", "down"):
        nodes[name] = replace(nodes[name], op="bmm", args=(nodes[name].args[0], nodes[name].args[1]))
    at = list(nodes).index("picked")
    items = [*nodes.items()]
    return dict([*items[:at], ("best", best), *items[at:]])


def test_every_expert_on_every_token_is_routing() -> None:
    """Where tokens are repeated for all experts and scaled by scores of 0 but for the chosen: Llama 4's own code."""
    (found,) = mixtures(scaled(EXPERTS * TOKENS))
    assert found.chosen == TOP
    assert drafts_of(found, "x", "x", pieces)[1].rows == ROWS


def test_shared_experts_weighed_by_scores_are_no_routing() -> None:
    """Nothing is repeated for every expert: a router's scores weigh what all tokens pass (Inkling)."""
    assert list(mixtures(scaled(TOKENS))) == []


def test_weights_below_each_other_are_one_stack() -> None:
    """DBRX keeps gates and ups apart; a bias is told by its size."""
    (found,) = mixtures(mixture())

    def several(node: CallNode) -> tuple[DraftWeight, ...]:
        if node.name == "up":
            half = EXPERTS * HIDDEN * NARROW
            return (DraftWeight("w1", "w1", half, "matrix"), DraftWeight("v1", "v1", half, "matrix"))
        if node.name == "act":
            return (DraftWeight("b", "b", EXPERTS * 2 * NARROW, "matrix"),)
        return pieces(node)

    up = drafts_of(found, "x", "x", several)[2]
    assert [(each.node, each.kind) for each in up.pieces] == [("w1", "expert"), ("v1", "expert"), ("b", "vector")]
