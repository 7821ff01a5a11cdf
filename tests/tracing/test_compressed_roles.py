"""Heads that share one key, which is their value, pools of keys, and outputs that are projected in groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.architectures.graph import ONE, AttentionPattern, Selection, term
from simpar.architectures.indexer import Indexer
from simpar.tracing.compressed_roles import shared_key_mask
from simpar.tracing.raw_operators import ChoiceDraft, Core, DraftWeight, OperatorDraft, PoolDraft, makers
from simpar.tracing.roles import find_roles
from tests.tracing.drafts import TOKENS, draft

SEQ = ((1, ("seq",)),)
HEADS, DIM, RANK, GROUPS, GROUP = 4, 16, 24, 2, 8
PIECES = ((5, ("batch",)),)
STACKED = (DraftWeight("oa", "oa", HEADS * DIM * GROUP, "embedding"),)
CORE = Core(HEADS, 1, DIM, DIM, SEQ, SEQ, causal=True, window=8)


def pool(name: str, width: int, written: int) -> list[OperatorDraft]:
    """Two products, their pool over pieces of four, and the norm of its five sums."""
    reads = (f"{name}_k", f"{name}_g")
    return [
        *(draft(each, "matmul", 2 * width, "x", contraction=32) for each in reads),
        PoolDraft(
            name, "mix", TOKENS, written, reads, (name,), (), 4 * width, saves=reads, pieces_of_sequence=5
        ),
        draft(f"{name}_norm", "norm", width, name, rows=PIECES),
    ]  # fmt: skip


def layer(*, pooled: bool = False, chosen: bool = False) -> list[OperatorDraft]:
    """Attention alone, beside a pool, or beside the keys that an indexer chooses of one."""
    indexing = [
        *pool("index", 8, 2),
        draft("iq", "matmul", 32, "q_norm", contraction=RANK),
        draft("iw", "matmul", 4, "x", contraction=32),
        ChoiceDraft(
            "best", "indexer", TOKENS, 8, ("index_norm", "iq", "iw"), ("best",), (),
            saves=("index_norm", "iq", "iw"), indexer=Indexer(4, 8, 4, ratio=4),
        ),
    ]  # fmt: skip
    seen = Selection(4, 4) if chosen else Selection(ratio=4) if pooled else None
    core = replace(CORE, selection=seen, chosen="best" if chosen else "")
    further = [*(["keys_norm"] if pooled else []), *(["best"] if chosen else [])]
    return [
        draft("qa", "matmul", RANK, "x", contraction=32),
        draft("q_norm", "norm", RANK, "qa"),
        draft("qb", "matmul", HEADS * DIM, "q_norm", contraction=RANK),
        draft("q_rope", "rope", DIM, "qb", rows=((HEADS, ("batch", "seq")),)),
        draft("kv", "matmul", DIM, "x", contraction=32),
        draft("k_rope", "rope", DIM, "kv"),
        *(pool("keys", DIM, 4) if pooled else []),
        *(indexing if chosen else []),
        draft("core", "attention", HEADS * DIM, "q_rope", "k_rope", *further, core=core),
        draft("back", "rope", DIM, "core", rows=((HEADS, ("batch", "seq")),)),
        draft("oa", "mixing", GROUP, "back", contraction=32, rows=((GROUPS, ("batch", "seq")),), pieces=STACKED),
        draft("ob", "matmul", 32, "oa", contraction=GROUPS * GROUP),
    ]


def test_queries_of_a_latent_share_one_key() -> None:
    """Queries and outputs are sharded by heads and groups, the key and the latent are of a rank's rows."""
    roles = find_roles(layer(), "")
    assert roles.refusal == ""
    assert roles.names == {
        "qa": "q_down", "q_norm": "q_norm", "qb": "q_up", "q_rope": "q_rope", "kv": "kv_down", "k_rope": "k_rope",
        "core": "attention", "back": "turned_back", "oa": "o_group", "ob": "o_proj",
    }  # fmt: skip
    regions = {
        "q_down": "sequence",
        "q_up": "tensor",
        "kv_down": "sequence",
        "attention": "tensor",
        "o_group": "tensor",
    }
    assert {roles.names[name]: region for name, region in roles.regions.items()}.items() >= regions.items()
    assert (roles.dims["q_rank"], roles.dims["o_groups"], roles.dims["o_rank"]) == (RANK, GROUPS, GROUP)
    assert roles.rows["q_rope"] == TOKENS
    assert roles.columns["q_rope"] == term("heads", "head_dim")


def test_grouped_outputs_are_one_product() -> None:
    """Of as many columns as all groups have, with the FLOP of its groups: 2 x 8 x 32 for each token."""
    (group,) = (each for each in find_roles(layer(), "").drafts if each.name == "oa")
    assert (group.kind, group.rows, group.columns, group.contraction) == ("matmul", TOKENS, GROUPS * GROUP, 32)
    assert [each.kind for each in group.pieces] == ["matrix"]


@pytest.mark.parametrize("chosen", [False, True])
def test_pools_are_those_of_every_token(chosen: bool) -> None:
    """The norm of five sums counts as every token's share of them; an indexer has a pool of its own."""
    roles = find_roles(layer(pooled=True, chosen=chosen), "")
    assert roles.refusal == ""
    assert roles.names["keys"] == "compressed"
    assert {roles.names[each] for each in ("keys_k", "keys_g", "keys_norm")} == {
        "compressed_kv", "compressed_gate", "compressed_norm",
    }  # fmt: skip
    (norm,) = (each for each in roles.drafts if each.name == "keys_norm")
    assert (norm.rows, norm.columns) == (TOKENS, 4)
    if chosen:
        own = {"index": "index", "index_k": "index_kv", "index_g": "index_gate", "index_norm": "index_norm"}
        assert {name: roles.names[name] for name in own} == own
        assert [roles.names[each] for each in ("iq", "iw", "best")] == ["index_q", "index_weights", "indexer"]
    mask = shared_key_mask(AttentionPattern(window=8), _core(roles.drafts), makers(roles.drafts))
    shares = 4 + (2 if chosen else 0)
    assert mask.kv_heads == ONE
    assert mask.selection == (Selection(4, 4) if chosen else Selection(ratio=4))
    assert mask.exchanged is not None
    assert sum(size for size, names in mask.exchanged if not names) == shares


def test_other_outputs_are_left() -> None:
    """Stacked weights of another size project no groups of heads; such an attention is named as any other."""
    other = [each if each.name != "oa" else replace(each, contraction=16) for each in layer()]
    assert "o_group" not in find_roles(other, "").names.values()


def _core(drafts: list[OperatorDraft]) -> OperatorDraft:
    return next(each for each in drafts if each.core is not None)
