"""Attention and MLPs read off the data flow."""

from dataclasses import replace

from simpar.tracing.raw_operators import Core, DraftWeight
from simpar.tracing.roles import add_sizes, find_roles
from tests.tracing.drafts import draft

SEQ = ((1, ("seq",)),)
CORE = Core(heads=4, kv_heads=2, key_dim=8, value_dim=8, queries=SEQ, keys=SEQ, causal=True)


def layer(gate=2):
    """Attention of 4 heads of 8 and 2 key-value heads over a stream of 32, then an MLP of 64."""
    return [
        draft("n1", "norm", 32, "x"),
        draft("wq", "matmul", 32, "n1", contraction=32),
        draft("wk", "matmul", 16, "n1", contraction=32),
        draft("wv", "matmul", 16, "n1", contraction=32),
        draft("core", "attention", 32, "wq", "wk", "wv", core=CORE),
        draft("wo", "matmul", 32, "core", contraction=32),
        draft("s1", "add", 32, "x", "wo"),
        draft("n2", "norm", 32, "s1"),
        draft("up", "matmul", gate * 64, "n2", contraction=32),
        draft("act", "gated_activation" if gate == 2 else "activation", 64, "up"),
        draft("down", "matmul", 32, "act", contraction=64),
        draft("s2", "add", 32, "s1", "down"),
    ]


def test_a_layer_without_names_is_recognised():
    """Projections of one stream are one product; sizes and names are those of decoders by config."""
    roles = find_roles(layer(), "")
    assert roles.refusal == ""
    assert roles.dims == {"heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 64}
    assert set(roles.names.values()) == {
        "attention_norm", "qkv", "attention", "o_proj", "attention_residual", "mlp_norm", "mlp_up", "activation",
        "mlp_down", "mlp_residual",
    }  # fmt: skip
    up = next(name for name, role in roles.names.items() if role == "mlp_up")
    assert roles.columns[up] == ((2, ("ffn",)),)


def test_an_mlp_without_a_gate_is_as_wide_as_its_activation():
    """Its product has the columns of ffn once."""
    roles = find_roles(layer(gate=1), "")
    assert roles.columns["up"] == roles.contractions["down"] == ((1, ("ffn",)),)


def test_an_attention_that_cannot_be_split_says_why():
    """Without a product behind it, or in front of it."""
    bare = [each for each in layer() if each.name != "wo"]
    bare[bare.index(next(d for d in bare if d.name == "s1"))] = draft("s1", "add", 32, "x", "core")
    assert find_roles(bare, "").refusal == "an attention without an output projection"
    plain = [draft("core", "attention", 32, "x", core=CORE), draft("wo", "matmul", 32, "core", contraction=32)]
    assert "no plain products" in find_roles(plain, "").refusal


def test_keys_of_another_tower_cross():
    """Queries of one's own, keys and values of the memory."""
    cross = [
        draft("wq", "matmul", 32, "x", contraction=32),
        draft("wkv", "matmul", 32, "memory", contraction=32),
        draft("core", "attention", 32, "wq", "wkv", "wkv", core=CORE),
        draft("wo", "matmul", 32, "core", contraction=32),
    ]
    roles = find_roles(cross, "memory")
    assert roles.names == {"wq": "cross_q", "wkv": "cross_kv", "core": "cross_attention", "wo": "cross_o_proj"}


def test_a_layer_that_shares_keys_has_a_product_of_queries_alone():
    """Keys and values of an earlier layer are divided by heads as they were made; the stream itself is none."""
    reading = [
        draft("wq", "matmul", 32, "x", contraction=32),
        draft("core", "attention", 32, "wq", "keys", "values", core=CORE),
        draft("wo", "matmul", 32, "core", contraction=32),
    ]
    roles = find_roles(reading, "", arrives="x")
    assert roles.refusal == ""
    assert roles.names == {"wq": "qkv", "core": "attention", "wo": "o_proj"}
    assert roles.columns["wq"] == ((1, ("heads", "head_dim")),)
    of_stream = [replace(reading[1], inputs=("wq", "x", "x")) if each.core else each for each in reading]
    assert "no plain products" in find_roles(of_stream, "", arrives="x").refusal


def test_one_product_for_keys_and_values():
    """It has their columns once, the norms behind it twice; a product of both beside each other has them twice."""
    same = [
        draft("wq", "matmul", 32, "x", contraction=32),
        draft("wk", "matmul", 16, "x", contraction=32),
        draft("k", "norm", 16, "wk"),
        draft("v", "norm", 16, "wk"),
        draft("core", "attention", 32, "wq", "k", "v", core=CORE),
        draft("wo", "matmul", 32, "core", contraction=32),
    ]
    roles = find_roles(same, "", arrives="x")
    assert roles.refusal == ""
    assert roles.dims == {"heads": 4, "kv_heads": 2, "head_dim": 8}
    query, key = (1, ("heads", "head_dim")), (1, ("kv_heads", "head_dim"))
    assert roles.columns["wq"] == (query, key)
    assert roles.columns["k"] == (query, (2, ("kv_heads", "head_dim")))
    beside = [replace(each, columns=32) if each.name == "wk" else each for each in same]
    assert find_roles(beside, "", arrives="x").columns["wq"] == (query, (2, ("kv_heads", "head_dim")))


def test_a_parameter_right_behind_a_norm_is_its_weight():
    """One pass, where nothing else reads the norm and its columns are the parameter's."""
    scale = DraftWeight("scale", "scale", 32, "embedding")
    plain = [
        draft("n", "norm", 32, "x", saves=("x", "stats")),
        draft("scaled", "activation", 32, "n", pieces=(scale,), saves=("n",)),
        draft("up", "matmul", 64, "scaled", contraction=32),
    ]
    norm, _ = find_roles(plain, "").drafts
    assert (norm.kind, norm.outputs, norm.saves) == ("norm", ("n", "scaled"), ("x", "stats"))
    assert norm.pieces == (replace(scale, kind="vector"),)
    read_twice = [*plain, draft("other", "matmul", 64, "n", contraction=32)]
    assert [each.kind for each in find_roles(read_twice, "").drafts] == ["norm", "activation", "matmul", "matmul"]


def test_sums_of_polynomials():
    """Like terms become one."""
    heads = ((1, ("heads", "head_dim")),)
    assert add_sizes(heads, heads, ((3, ()),)) == ((2, ("heads", "head_dim")), (3, ()))
