"""Pointwise calls that run as one pass."""

import pytest

from simpar.tracing.clusters import PointwiseGroup, classify
from simpar.tracing.raw_operators import DraftWeight
from tests.tracing.drafts import TOKENS, call

WEIGHT = DraftWeight("w", "norm.weight", 8, "matrix")


def cluster(*calls, pieces=(), table=False):
    """A cluster of calls in module ``m`` that read what is not among them."""
    found = PointwiseGroup("m")
    for node in calls:
        found.add(node, node.refs, pieces if node is calls[-1] else (), table)
    return found


@pytest.mark.parametrize(
    ("ops", "kind", "saves"),
    [
        ([("a", "pow", "x"), ("b", "mean", "a"), ("c", "rsqrt", "b"), ("d", "mul", "x", "c")], "norm", ("x", "stats")),
        ([("a", "silu", "x"), ("b", "mul", "a", "y")], "gated_activation", ("x", "y")),
        ([("a", "gelu", "x")], "activation", ("x",)),
        ([("a", "glu", "x")], "gated_activation", ("x",)),
        ([("a", "add", "x", "y")], "add", ()),
        ([("a", "mul", "x")], "activation", ()),
        ([("a", "mul", "x", "y")], "activation", ("x", "y")),
    ],
    ids=["norm", "gated", "activation", "glu", "residual", "scale", "product"],
)
def test_what_a_pass_is(ops, kind, saves):
    """A norm reduces and takes a root, an activation bends, a gate multiplies two streams, a sum only adds."""
    (found,) = classify(cluster(*(call(name, op, *reads) for name, op, *reads in ops)), TOKENS, 8)
    assert (found.kind, found.saves) == (kind, saves)
    assert found.outputs == tuple(name for name, *_ in ops)
    assert found.name == ops[-1][0]


def test_a_product_with_a_table_is_a_rotation():
    """Of the constants that positions make."""
    turned = cluster(call("a", "mul", "x", "cos"), call("b", "add", "a"), table=True)
    assert classify(turned, TOKENS, 8)[0].kind == "rope"


def test_weights_of_a_norm_are_vectors():
    """Whatever they were taken for as single calls; a scaled pass that has weights keeps what it reads."""
    norm = cluster(call("a", "mean", "x"), call("b", "rsqrt", "a"), call("c", "mul", "x", "b"), pieces=(WEIGHT,))
    assert classify(norm, TOKENS, 8)[0].pieces == (DraftWeight("w", "norm.weight", 8, "vector"),)
    scaled = cluster(call("a", "mul", "x"), pieces=(WEIGHT,))
    assert classify(scaled, TOKENS, 8)[0].saves == ("x",)


def test_what_joins_a_cluster():
    """A call of the same module, or of the one around, unless something is summed up in between."""
    plain = PointwiseGroup("m.act", nodes=[call("a", "silu", "x")])
    reduced = PointwiseGroup("m.norm", nodes=[call("a", "mean", "x")])
    assert plain.takes(call("b", "mul", "a", path="m.act"))
    assert plain.takes(call("b", "mul", "a", path="m"))
    assert not plain.takes(call("b", "mul", "a", path="other"))
    assert not reduced.takes(call("b", "mul", "a", path="m"))


def test_absorbed_calls_are_sources_no_more():
    """What one cluster read of the other is inside now."""
    one, two = cluster(call("a", "silu", "x")), cluster(call("b", "mul", "a", "y"))
    two.absorb(one)
    assert two.sources == ["y", "x"]
    assert [node.name for node in two.nodes] == ["b", "a"]


def test_a_limit_in_front_of_a_rotation_is_a_pass_of_its_own():
    """It keeps what it reads; the rotation keeps nothing and reads what is limited."""
    sized = {"shape": (TOKENS, ((8, ()),)), "sizes": (6, 8)}
    calls = (call("a", "clamp_", "x", **sized), call("b", "mul", "a"), call("c", "add", "b"))
    limit, turned = classify(cluster(*calls, table=True), TOKENS, 8)
    assert (limit.kind, limit.inputs, limit.saves) == ("activation", ("x",), ("x",))
    assert (turned.kind, turned.inputs, turned.saves) == ("rope", ("a",), ())


def test_limits_of_both_halves_stand_before_a_gate():
    """They are one operator as wide as both; the gate keeps what it limits. Of an ungated activation they are part."""
    gated = cluster(
        call("g", "clamp", "left"), call("u", "clamp", "right"), call("s", "sigmoid", "g"), call("h", "mul", "g", "s"),
        call("v", "add", "u"), call("y", "mul", "v", "h"),
    )  # fmt: skip
    gated.sources = ["x"]
    limit, gate = classify(gated, TOKENS, 8)
    assert (limit.kind, limit.columns, limit.inputs, limit.saves) == ("clamp", 16, ("x",), ("x",))
    assert limit.outputs == ("g", "u")
    assert (gate.kind, gate.columns, gate.inputs, gate.saves) == ("gated_activation", 8, ("g",), ("g",))
    bent = cluster(call("g", "clamp", "x"), call("s", "sigmoid", "g"), call("h", "mul", "g", "s"))
    (one,) = classify(bent, TOKENS, 8)
    assert (one.kind, one.saves) == ("activation", ("x",))
