"""An indexer in a block: its products, its norm, the choice, and the loss that it learns from."""

from simpar.architectures.graph import Selection, term
from simpar.architectures.indexer import INDEX_QUERIES, Indexer
from simpar.tracing.raw_operators import ChoiceDraft, Core
from simpar.tracing.roles import find_roles
from tests.tracing.drafts import TOKENS, draft
from tests.tracing.test_latent_roles import HEADS, PLAIN, RANK, ROTARY, VALUE, attention

SEQ = ((1, ("seq",)),)
INDEXER = Indexer(3, 6, 5)
CORE = Core(4, 2, 8, 8, SEQ, SEQ, causal=True, selection=Selection(5), chosen="best")
INDEXING = [
    draft("iq", "matmul", 18, "x", contraction=32),
    draft("ik", "matmul", 6, "x", contraction=32),
    draft("ik_norm", "norm", 6, "ik", rows=((2, ("batch", "seq")),)),
    draft("iw", "matmul", 3, "x", contraction=32),
    ChoiceDraft(
        "best", "indexer", TOKENS, 10, ("iq", "ik_norm", "iw"), ("best",), (), saves=("iq", "ik_norm", "iw"),
        indexer=INDEXER,
    ),
]  # fmt: skip
LAYER = [
    draft("wqkv", "matmul", 64, "x", contraction=32),
    *INDEXING,
    draft("core", "attention", 32, "wqkv", "best", core=CORE),
    draft("wo", "matmul", 32, "core", contraction=32),
]


def test_an_indexer_is_named():
    """By the widths of its products; all of it works on a rank's rows of the sequence."""
    roles = find_roles(LAYER, "")
    assert roles.refusal == ""
    assert roles.names == {
        "wqkv": "qkv", "iq": "index_q", "ik": "index_k", "ik_norm": "index_k_norm", "iw": "index_weights",
        "best": "indexer", "core": "attention", "core.index_loss": "index_loss", "wo": "o_proj",
    }  # fmt: skip
    assert {name: roles.dims[name] for name in INDEXER.dims} == INDEXER.dims
    assert roles.columns["iq"] == INDEX_QUERIES
    assert roles.rows["ik_norm"] == TOKENS
    assert {roles.regions[name] for name in ("iq", "ik", "ik_norm", "iw", "best")} == {"sequence"}


def test_a_loss_stands_behind_the_attention():
    """Scores of all heads for the chosen keys."""
    roles = find_roles(LAYER, "")
    (loss,) = (each for each in roles.drafts if each.kind == "index_loss")
    assert roles.drafts.index(loss) == [each.name for each in roles.drafts].index("core") + 1
    assert (loss.inputs, loss.columns, loss.contraction) == (("wqkv", "best"), 5, 8)
    assert roles.columns[loss.name] == term("index_topk")
    assert roles.contractions[loss.name] == term("head_dim")


def test_keys_that_an_earlier_layer_has_chosen():
    """No loss, and queries, keys and values of its own."""
    roles = find_roles([each for each in LAYER if each not in INDEXING], "", arrives="x")
    assert roles.refusal == ""
    assert roles.columns["wqkv"] == ((1, ("heads", "head_dim")), (2, ("kv_heads", "head_dim")))
    assert all(each.kind != "index_loss" for each in roles.drafts)


def test_heads_attend_to_chosen_latents():
    """The product of keys and values becomes one into the latent and one out of it, of the same parameters."""
    drafts = attention(compressed=True)
    at = [each.name for each in drafts].index("core")
    core = drafts[at].core
    chosen = Core(core.heads, core.kv_heads, core.key_dim, core.value_dim, SEQ, SEQ, True, chosen="best")
    seen = draft("core", "attention", HEADS * VALUE, "q_turned", "keys", "up", "best", core=chosen)
    roles = find_roles([*drafts[:at], *INDEXING, seen, *drafts[at + 1 :]], "")
    assert roles.refusal == ""
    by_role = {roles.names[each.name]: each for each in roles.drafts}
    assert "kv_up" not in by_role
    assert (by_role["q_latent"].contraction, by_role["q_latent"].columns) == (PLAIN, HEADS * RANK)
    assert (by_role["value_up"].contraction, by_role["value_up"].columns) == (RANK, HEADS * VALUE)
    assert by_role["attention"].columns == HEADS * RANK
    assert by_role["index_loss"].contraction == by_role["attention"].core.key_dim == RANK + ROTARY
    assert by_role["o_proj"].inputs == by_role["value_up"].outputs
