"""Latent attention, by the widths of its products."""

import pytest

from simpar.architectures.graph import AttentionPattern, term
from simpar.tracing.latent_roles import latent_mask, latents
from simpar.tracing.raw_operators import Core
from simpar.tracing.roles import find_roles
from tests.tracing.drafts import draft

SEQ = ((1, ("seq",)),)
HEADS, PLAIN, ROTARY, VALUE, RANK, QUERY_RANK = 4, 8, 4, 6, 16, 24
CORE = Core(HEADS, HEADS, PLAIN + ROTARY, VALUE, SEQ, SEQ, causal=True)


def attention(*, compressed, rank=RANK):
    """DeepSeek's, written out: the latent with the shared key, a norm, keys and values from it."""
    wide = HEADS * (PLAIN + ROTARY)
    front = (
        [
            draft("q_down", "matmul", QUERY_RANK, "x", contraction=64),
            draft("q_norm", "norm", QUERY_RANK, "q_down"),
            draft("q", "matmul", wide, "q_norm", contraction=QUERY_RANK),
        ]
        if compressed
        else [draft("q", "matmul", wide, "x", contraction=64)]
    )
    return [
        *front,
        draft("down", "matmul", RANK + ROTARY, "x", contraction=64),
        draft("norm", "norm", rank, "down"),
        draft("up", "matmul", HEADS * (PLAIN + VALUE), "norm", contraction=rank),
        draft("q_turned", "rope", wide, "q"),
        draft("k_turned", "rope", ROTARY, "down"),
        draft("keys", "copy", wide, "up", "k_turned"),
        draft("core", "attention", HEADS * VALUE, "q_turned", "keys", "up", core=CORE),
        draft("o", "matmul", 64, "core", contraction=HEADS * VALUE),
    ]


@pytest.mark.parametrize("compressed", [False, True])
def test_latent_attention_is_found(compressed):
    """With the ranks and widths of its parts; queries may come out of a latent of their own."""
    roles = find_roles(attention(compressed=compressed), "")
    assert roles.refusal == ""
    wanted = {
        "heads": HEADS, "kv_heads": HEADS, "kv_rank": RANK, "q_rank": QUERY_RANK if compressed else 0,
        "plain_dim": PLAIN, "rotary_dim": ROTARY, "qk_dim": PLAIN + ROTARY, "value_dim": VALUE,
    }  # fmt: skip
    assert {name: roles.dims[name] for name in wanted} == wanted
    names = {"q_up", "kv_down", "kv_norm", "kv_up", "k_rotary", "rope", "value", "attention", "o_proj"}
    assert names <= set(roles.names.values())
    assert ({"q_down", "q_norm"} <= set(roles.names.values())) is compressed


def test_what_stands_between_is_three_operators():
    """A rotation of the shared key, one of all heads, a copy of the values; the rest is gone."""
    drafts, (found,) = latents(attention(compressed=False))
    assert [each.name for each in drafts] == [
        "q", "down", "norm", "up", "core.k_rotary", "core.rope", "core.value", "core", "o",
    ]  # fmt: skip
    assert next(each for each in drafts if each.name == "core").inputs == ("core.rope", "core.value")
    assert found.down.name == "down"


def test_other_widths_are_no_latent_attention():
    """Where the latent is all that its product makes, no key is shared."""
    drafts = attention(compressed=False, rank=RANK + ROTARY)
    assert latents(drafts) == (drafts, [])


def test_keys_and_values_differ_in_width():
    """And belong to one head each."""
    found = latent_mask(AttentionPattern(causal=True))
    assert (found.key_dim, found.value_dim, found.kv_heads) == (term("qk_dim"), term("value_dim"), term("heads"))
    assert found.causal
