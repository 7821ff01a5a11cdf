"""Attention that no kernel stands for, as its products and its softmax."""

from simpar.tracing.raw_operators import Core
from simpar.tracing.written_out import is_softmax, written_out
from tests.tracing.drafts import TOKENS, draft

CORE = Core(4, 4, 8, 6, queries=((1, ("seq",)),), keys=((2, ("seq",)),), count=64)


def test_an_attention_becomes_two_products_and_a_softmax() -> None:
    """Of 4 heads a token has 4 rows of 64 scores: 2 x 4 x 64 x 8 FLOP a token, 2 x 4 x 64 x 6 behind the softmax."""
    norm, core = draft("n", "norm", 32, "x"), draft("a", "attention", 24, "q", "k", "v", core=CORE)
    first, scores, softmax, values = written_out([norm, core], {"a"})
    assert first is norm
    assert scores.rows == softmax.rows == values.rows == ((4, TOKENS[0][1]),)
    assert [(each.kind, each.columns, each.contraction) for each in (scores, softmax, values)] == [
        ("mixing", 64, 8),
        ("activation", 64, 0),
        ("mixing", 6, 64),
    ]
    assert (softmax.inputs, values.inputs) == (scores.outputs, (*softmax.outputs, "q", "k", "v"))
    assert values.outputs == ("a",)
    assert [is_softmax(each) for each in (scores, softmax, values)] == [False, True, False]


def test_others_stay() -> None:
    """Only those that are named."""
    core = draft("a", "attention", 24, "q", "k", "v", core=CORE)
    assert written_out([core], {"b"}) == [core]
