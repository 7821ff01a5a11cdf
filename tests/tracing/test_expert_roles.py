"""Names and sizes of the operators of mixtures."""

from dataclasses import replace

from simpar.architectures.graph import term
from simpar.tracing.expert_roles import ROUTED, expert_weights, without_shared_gate
from simpar.tracing.raw_operators import DraftWeight
from simpar.tracing.roles import find_roles
from tests.tracing.drafts import draft

TWICE = ((2, ("batch", "seq")),)


def mixture():
    """Four experts of 24, the best two of which a token of 16 is sent to."""
    return [
        draft("router", "router", 4, "x", contraction=16),
        draft("sent", "dispatch", 16, "x", "router", rows=TWICE),
        draft("up", "grouped_matmul", 48, "sent", rows=TWICE, contraction=16),
        draft("act", "gated_activation", 24, "up", rows=TWICE),
        draft("down", "grouped_matmul", 16, "act", rows=TWICE, contraction=24),
        draft("out", "combine", 16, "down"),
    ]


def shared():
    """An expert of 32 for all tokens, scaled by a score of its own."""
    return [
        draft("s_up", "matmul", 64, "x", contraction=16),
        draft("s_act", "gated_activation", 32, "s_up"),
        draft("s_down", "matmul", 16, "s_act", contraction=32),
        draft("score", "matmul", 1, "x", contraction=16, pieces=(DraftWeight("score", "gate", 16, "matrix"),)),
        draft("scaled", "activation", 16, "score", "s_down"),
    ]


def test_roles_of_a_mixture():
    """Experts, how many of them a token has, and the width of each; rows are those that are routed."""
    roles = find_roles(mixture(), "")
    wanted = {"experts": 4, "num_experts": 4, "expert_ffn": 24, "topk": 2}
    assert {name: roles.dims[name] for name in wanted} == wanted
    assert roles.names == {
        "router": "router", "sent": "dispatch", "up": "expert_up", "act": "expert_activation", "down": "expert_down",
        "out": "combine",
    }  # fmt: skip
    assert roles.columns["up"] == term("expert_ffn", times=2)
    assert {name for name, rows in roles.rows.items() if rows == ROUTED} == {"sent", "up", "act", "down"}
    assert {roles.regions[name] for name in ("sent", "up", "act", "down")} == {"expert"}


def test_experts_that_read_a_latent():
    """The products around them are a rank's own rows; experts, their copies and the sum are as wide as the latent."""
    inner = [replace(each, inputs=tuple("narrow" if v == "x" else v for v in each.inputs)) for each in mixture()[1:]]
    router = draft("router", "router", 4, "x", contraction=32)
    down = draft("narrow", "matmul", 16, "x", contraction=32)
    roles = find_roles([router, down, *inner, draft("wide", "matmul", 32, "out", contraction=16)], "")
    assert (roles.names["narrow"], roles.names["wide"]) == ("latent_down", "latent_up")
    assert {roles.regions[name] for name in ("narrow", "wide")} == {"sequence"}
    assert roles.dims["expert_hidden"] == 16
    latent = term("expert_hidden")
    assert {name for name, size in roles.columns.items() if size == latent} == {"narrow", "sent", "down", "out"}
    assert {name for name, size in roles.contractions.items() if size == latent} == {"up", "wide"}


def test_without_a_router_nothing_is_a_mixture():
    """No name, no size."""
    roles = find_roles(mixture()[1:2], "")
    assert roles.names == {}
    assert roles.dims == {}


def test_the_score_of_a_shared_expert_is_a_weight_of_its_product():
    """Where there is a mixture: the product of one column and its pass are gone, its parameter is the product's."""
    found = without_shared_gate([*shared(), *mixture()])
    names = [each.name for each in found]
    assert "score" not in names
    assert "scaled" not in names
    up, down = (next(each for each in found if each.name == name) for name in ("s_up", "s_down"))
    assert [(piece.parameter, piece.kind) for piece in up.pieces] == [("gate", "vector")]
    assert down.outputs == ("s_down", "scaled")
    assert without_shared_gate(shared()) == shared()


def test_stacks_of_matrices():
    """One matrix an expert, and one bias where it has any."""
    up = mixture()[2]
    sizes = (term("hidden"), term("expert_ffn"))
    with_bias = draft(
        up.name, up.kind, 48, pieces=(DraftWeight("a", "w", 1, "expert"), DraftWeight("b", "b", 1, "vector"))
    )
    found = expert_weights("expert_up", with_bias, *sizes)
    assert [weight.name for weight in found] == ["expert_up.weight", "expert_up.bias"]
    assert [weight.size for weight in found] == [
        ((1, ("expert_ffn", "experts", "hidden")),), ((1, ("expert_ffn", "experts")),),
    ]  # fmt: skip
    assert expert_weights("expert_up", up, *sizes) == ()


def test_a_shared_expert_stands_behind_the_routed_ones():
    """Whichever comes first in the code, as neither reads the other."""
    plain = [
        draft("s_up", "matmul", 64, "x", contraction=16),
        draft("s_act", "gated_activation", 32, "s_up"),
        draft("s_down", "matmul", 16, "s_act", contraction=32),
    ]
    router, *experts = mixture()
    names = ["router", "sent", "up", "act", "down", "out", "s_up", "s_act", "s_down"]
    for drafts in ([*plain, router, *experts], [router, *plain, *experts], [router, *experts, *plain]):
        assert [each.name for each in find_roles(drafts, "").drafts] == names


def test_choices_that_are_no_experts():
    """A router of 6 columns in front of stacks of 4 matrices scores two that are none."""
    router, sent, up, act, down, out = mixture()
    held = DraftWeight("down", "w", 4 * 24 * 16, "expert")
    drafts = [replace(router, columns=6), sent, up, act, replace(down, pieces=(held,)), out]
    roles = find_roles(drafts, "")
    assert (roles.dims["experts"], roles.columns["router"]) == (4, ((1, ("num_experts",)), (2, ())))
