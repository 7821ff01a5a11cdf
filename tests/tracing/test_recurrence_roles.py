"""State-space layers, linear attention and short convolutions among drafts."""

from simpar.architectures.graph import evaluate
from simpar.tracing.raw_operators import DraftWeight, RecurrenceDraft
from simpar.tracing.recurrence_roles import UNREAD
from simpar.tracing.roles import find_roles
from tests.tracing.drafts import TOKENS, draft

STATE = (("linear_heads", 4), ("linear_key_heads", 2), ("linear_key_dim", 8), ("linear_value_dim", 8), ("chunk", 64))
KERNEL = (DraftWeight("w", "conv.weight", 64 * 4, "matrix"),)


def delta(*inputs, kind="gated_delta"):
    """A pass over the sequence that reads values."""
    return RecurrenceDraft("pass", kind, TOKENS, 32, inputs, ("pass",), (), dims=STATE)


def layer(columns=96):
    """A norm, products of one tensor, a convolution, decays, the pass, a gated norm, a product back."""
    decay = (DraftWeight("d", "decay", 4, "vector"), DraftWeight("b", "step_bias", 4, "vector"))
    return [
        draft("norm", "norm", 32, "x"),
        draft("qkvz", "matmul", columns, "norm", contraction=32),
        draft("ba", "matmul", 8, "norm", contraction=32),
        draft("cat", "copy", 64, "qkvz"),
        draft("conv", "convolution", 64, "cat", pieces=KERNEL),
        draft("g", "activation", 4, "ba", pieces=decay),
        delta("conv", "g"),
        draft("gated", "norm", 8, "pass", "qkvz"),
        draft("out", "matmul", 32, "gated", contraction=32),
        draft("sum", "add", 32, "x", "out"),
    ]


def test_a_layer_of_linear_attention():
    """One product in front, one behind; decays belong to the pass; heads are divided."""
    roles = find_roles(layer(), "")
    names = [roles.names.get(each.name) for each in roles.drafts]
    assert names == [
        "attention_norm", "in_proj", "conv", "linear_attention", "output_norm", "output_gate", "out_proj",
        "attention_residual",
    ]  # fmt: skip
    by_name = {roles.names[each.name]: each for each in roles.drafts}
    assert [piece.parameter for piece in by_name["linear_attention"].pieces] == ["decay", "step_bias"]
    assert evaluate(roles.columns["qkvz"], roles.dims) == 96 + 8
    assert roles.dims["conv"] == 4
    assert roles.refusal == ""


def test_other_products_have_no_tensor_parallelism():
    """Their columns are no multiple of heads, or nothing leads to a product."""
    assert find_roles(layer(columns=100), "").refusal == UNREAD
    ended = find_roles(layer()[:-3], "")
    assert ended.refusal == UNREAD
    assert ended.dims["linear_heads"] == 4


def test_a_short_convolution():
    """Between two gates: every channel is divided."""
    drafts = [
        draft("in", "matmul", 192, "x", contraction=32),
        draft("before", "activation", 1, "in"),
        draft("conv", "convolution", 64, "before", pieces=KERNEL),
        draft("after", "activation", 1, "in", "conv"),
        draft("out", "matmul", 32, "after", contraction=64),
    ]
    roles = find_roles(drafts, "")
    assert [roles.names[each.name] for each in drafts] == ["in_proj", "conv_gate", "conv", "gate", "out_proj"]
    assert [evaluate(roles.columns[name], roles.dims) for name in ("in", "before", "after")] == [192, 64, 64]
    assert evaluate(roles.contractions["out"], roles.dims) == 64


def test_a_layer_of_lightning_attention():
    """Activated queries, keys and values, the pass, a norm of all heads, a gate; without the norm it is not read."""
    drafts = [
        draft("norm", "norm", 32, "x"),
        draft("qkv", "matmul", 64, "norm", contraction=32),
        draft("act", "activation", 64, "qkv"),
        delta("act", kind="lightning"),
        draft("own", "norm", 32, "pass"),
        draft("gate", "matmul", 32, "norm", contraction=32),
        draft("gated", "gated_activation", 32, "gate", "own", saves=("gate", "own")),
        draft("out", "matmul", 32, "gated", contraction=32),
    ]
    roles = find_roles(drafts, "")
    assert roles.refusal == ""
    assert [roles.names[each.name] for each in roles.drafts] == [
        "attention_norm", "in_proj", "qkv_activation", "linear_attention", "output_norm", "gate_proj", "output_gate",
        "out_proj",
    ]  # fmt: skip
    assert evaluate(roles.columns["act"], roles.dims) == 2 * 2 * 8 + 4 * 8
    assert next(each for each in roles.drafts if each.name == "gated").saves == ("pass", "gate")
    bare = [each for each in drafts if each.name != "own"]
    bare[5] = draft("gated", "gated_activation", 32, "gate", "pass")
    assert find_roles(bare, "").refusal == UNREAD
