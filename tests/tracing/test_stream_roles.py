"""Several residual streams, which every token mixes by a matrix of its own."""

from __future__ import annotations

from dataclasses import replace

from simpar.tracing.raw_operators import DraftWeight
from simpar.tracing.roles import find_roles
from simpar.tracing.stream_roles import mixed_streams
from tests.tracing.drafts import draft

WIDE, HIDDEN, STREAMS = ((4, ("batch", "seq")),), 32, 4
SCALE = (DraftWeight("s", "scale", HIDDEN, "embedding"),)


def layer(maps=STREAMS**2):
    """Streams that are predicted, one of them changed by an MLP, all corrected, one scaled, some changed again."""
    return [
        draft("norm", "norm", HIDDEN, "x"),
        draft("router", "matmul", STREAMS, "norm", contraction=HIDDEN),
        draft("bend", "activation", STREAMS, "router"),
        draft("maps", "matmul", maps, "bend", contraction=STREAMS, saves=("bend",)),
        draft("mixing", "mixing", STREAMS, "x", "maps", contraction=STREAMS, rows=((HIDDEN, ("batch", "seq")),)),
        draft("predicted", "add", HIDDEN, "mixing", "x", rows=WIDE),
        draft("up", "matmul", 2 * 48, "predicted", contraction=HIDDEN),
        draft("act", "gated_activation", 48, "up"),
        draft("down", "matmul", HIDDEN, "act", contraction=48),
        draft("changed", "add", HIDDEN, "predicted", "down"),
        draft("norm2", "norm", HIDDEN, "changed"),
        draft("router2", "matmul", STREAMS, "norm2", contraction=HIDDEN),
        draft("bend2", "activation", STREAMS, "router2"),
        draft("innovation", "add", HIDDEN, "changed", "predicted"),
        draft("maps2", "matmul", STREAMS, "bend2", contraction=STREAMS),
        draft("scaled", "activation", HIDDEN, "maps2", "innovation", rows=WIDE, saves=("maps2", "innovation")),
        draft("corrected", "add", HIDDEN, "scaled", "predicted", rows=WIDE),
        draft("active", "activation", HIDDEN, "corrected", pieces=SCALE, saves=("corrected",)),
        draft("more", "add", HIDDEN, "corrected", "active", rows=((3, ("batch", "seq")),)),
        draft("whole", "copy", HIDDEN, "corrected", "more", rows=WIDE),
    ]


def test_mixtures_of_streams_are_passes():
    """Of a token: 4 x 32 + 16 elements are read for 4 x 32, then 4 x 32 + 32 + 4, one stream, and 4 x 32 + 32."""
    drafts, named = mixed_streams(layer())
    mixes = {each.name: each for each in drafts if each.kind == "mix"}
    assert {name: (each.rows, each.contraction) for name, each in mixes.items()} == {
        "predicted": (WIDE, (4 * 32 + 16) // 4), "corrected": (WIDE, (4 * 32 + 32 + 4) // 4),
        "active": (((1, ("batch", "seq")),), 32), "whole": (WIDE, (4 * 32 + 32) // 4),
    }  # fmt: skip
    assert mixes["predicted"].saves == ("x", "maps")
    assert mixes["corrected"].inputs == mixes["corrected"].saves == ("predicted", "changed", "maps2")
    assert mixes["whole"].inputs == ("corrected", "active")
    assert mixes["active"].inputs == ("active.active",)
    assert named == {
        "norm": "predict_norm", "router": "predict_router", "maps": "predict_maps", "predicted": "predict",
        "norm2": "correct_norm", "router2": "correct_router", "maps2": "correct_maps", "corrected": "correct",
    }  # fmt: skip
    assert {"mixing", "bend", "bend2", "innovation", "scaled", "more"}.isdisjoint(each.name for each in drafts)


def test_the_layer_keeps_its_mlp():
    """A router of two products and an activation is none; it works on a rank's rows."""
    roles = find_roles(layer(), "", arrives="x")
    assert roles.names["up"] == "mlp_up"
    assert roles.dims["ffn"] == 48
    assert roles.regions["router"] == roles.regions["maps2"] == "sequence"


def test_other_products_of_two_activations_stay():
    """Where the second is no square matrix of every token."""
    assert [each.kind for each in mixed_streams(layer(maps=8))[0]] == [each.kind for each in layer()]


def test_streams_of_one_length_are_joined_in_a_pass():
    """What scales several streams by their lengths and stacks them has no weight, and is no norm."""
    joined = draft("stack", "norm", HIDDEN, "x", "a", "b", "c", rows=WIDE, saves=("x", "stats"))
    made = [draft(name, "matmul", HIDDEN, "x", contraction=HIDDEN) for name in "abc"]
    (*_, mix), _ = mixed_streams([*made, joined])
    assert (mix.kind, mix.contraction, mix.saves) == ("mix", 32, ("a", "b", "c"))
    weighed = replace(joined, pieces=SCALE)
    assert mixed_streams([*made, weighed])[0][-1] == weighed
