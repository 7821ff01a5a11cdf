"""Families of 2025 and 2026: parameters as transformers counts them, and what sets their layers apart."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.documents import with_documents
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike

TRAINING = simpar.Training(seq_len=512, global_batch=16)


def tiny(kind, **more):
    """The tiny model of a family, changed."""
    return read({**DECLARED[kind].tiny, "model_type": kind, **more}, kind)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("exaone_moe", {}),
        ("olmo_hybrid", {}),
        ("afmoe", {}),
        ("afmoe", {"num_dense_layers": 0, "global_attn_every_n_layers": 2, "num_shared_experts": 2}),
        ("solar_open", {}),
        ("solar_open", {"n_group": 2, "topk_group": 1, "n_shared_experts": 2, "attention_bias": False}),
        ("mistral4", {}),
        ("mimo_v2_flash", {}),
        ("longcat_flash", {"zero_expert_num": 0}),
    ],
)
def test_parameters_are_those_of_transformers(kind, changes):
    """To the parameter; transformers also allocates weights for experts that do nothing, which none are here."""
    made_by = "AutoModelForImageTextToText" if kind == "mistral4" else "AutoModelForCausalLM"
    counted_alike(kind, {**DECLARED[kind].tiny, **changes}, made_by)


RELEASED = {  # billions of parameters, and of those of a token, as reports and model cards say
    "trinity-nano": (6.1, 1.0), "trinity-mini": (26.1, 3.5), "trinity-large": (398.6, 13.4),
    "solar-open-100b": (102.7, 12.1),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_released_models_have_about_the_published_parameters(name):
    """6 and 1, 26 and 3, 398 and 13 [arXiv 2602.17004]; 102 and 12 (Solar Open); active ones with both tables."""
    graph = load_model(name)
    assert (round(graph.num_parameters() / 1e9, 1), round(graph.num_active_parameters() / 1e9, 1)) == RELEASED[name]
    assert graph.details.unread == ()


def test_afmoe_rotates_in_windows_alone_and_gates_its_attention():
    """The first layers are dense; a bias of attention would be one of the gate, which has none."""
    graph = tiny("afmoe")
    assert graph.layers == ("layer_window_8", "layer_moe_window_8", "layer_moe_window_8", "layer_moe_nope")
    assert "attention_gate" in [op.name for op in graph.blocks["layer_moe_nope"].operators]
    assert "rope" not in [op.name for op in graph.blocks["layer_moe_nope"].operators]
    with pytest.raises(UserError, match="attention_bias = true: allowed: false"):
        tiny("afmoe", attention_bias=True)


def test_fields_that_glm_5_leaves_out_are_those_of_its_class():
    """An indexer of 32 heads, where DeepSeek V3.2 has 64."""
    tiny_glm = {key: size for key, size in DECLARED["glm_moe_dsa"].tiny.items() if key != "index_n_heads"}
    sizes = [tiny("glm_moe_dsa", index_n_heads=heads).num_parameters() for heads in (32, 64)]
    assert sizes[0] == read({**tiny_glm, "model_type": "glm_moe_dsa"}, "glm").num_parameters() < sizes[1]


def test_olmo_hybrid_norms_before_linear_attention_and_behind_the_other():
    """Three layers of four are linear; positions may be left out of the fourth."""
    graph = tiny("olmo_hybrid")
    linear, full = graph.blocks[graph.layers[0]], graph.blocks[graph.layers[3]]
    assert graph.layers[:3] == (linear.name,) * 3
    assert linear.operators[0].name == "attention_norm"
    assert full.operators[0].name == "qkv"
    kinds = {op.kind for op in tiny("olmo_hybrid", rope_parameters={"rope_theta": None}).blocks["layer_nope"].operators}
    assert "rope" not in kinds


def test_a_layer_of_longcat_has_two_attentions_and_one_mixture():
    """Experts read what the first MLP reads, and join at the end; the router scores the zero experts as well."""
    (block,) = tiny("longcat_flash").blocks.values()
    assert sum(op.attention is not None for op in block.operators) == 2
    assert [op.inputs[0] for op in block.operators if op.kind == "router"] == ["mlp_norm"]
    assert block.operators[-1].inputs == ("second_mlp_residual", "combine")
    made = [op.name for op in block.operators]
    assert len(set(made)) == len(made)
    assert all(name in made[:at] or name == "input" for at, op in enumerate(block.operators) for name in op.inputs)


def test_choices_that_do_nothing_are_said():
    """Of 3 choices among 8 experts and 4 that do nothing, 2 are experts."""
    graph = tiny("longcat_flash")
    assert graph.dims["topk"] == 2
    assert graph.assumed == ("2 of 3 choices of a token are experts, the others pass it on (zero_expert_num = 4)",)
    assert tiny("longcat_flash", zero_expert_num=0).assumed == ()


def test_mimo_has_narrow_values_and_more_keys_in_windows():
    """Scores cost as keys and values are wide; sinks are in layers with a window only."""
    graph = tiny("mimo_v2_flash")
    seq, heads, keys, values, window = 64, 4, 12, 8, 8
    wide = 2 * heads * (keys + values) * seq
    assert attention_flop_per_token(graph, seq) == wide + 2 * wide * window / seq
    assert {name: graph.blocks[name].operator("attention").weights != () for name in graph.layers} == {
        "layer": False, "layer_moe_window_8": True,
    }  # fmt: skip


def test_windows_of_step_have_more_heads():
    """Six heads in the place of four, within documents as well, and token slices pass through unlike layers."""
    graph = tiny("step3p5")
    seq, head_dim, window = 64, 8, 8
    assert attention_flop_per_token(graph, seq) == 4 * head_dim * (2 * 4 * seq + 2 * 6 * window)
    training = simpar.Training(seq_len=512, global_batch=16, documents={"mean": 64})
    packed = with_documents(graph, training)
    assert all(packed.blocks[name].operator("attention").attention.document for name in packed.layers)
    assert simpar.simulate(graph, "dgx-h100", {"pp": 2, "slices": [256, 256]}, TRAINING).fits


def test_released_fields_of_step_say_the_same():
    """A text of numbers, and a section, in the place of lists and numbers."""
    plain = tiny("step3p5", n_routed_experts=None, moe_num_experts=8, num_nextn_predict_layers=1)
    other = {"num_sliding_attention_heads": None, "attention_other_setting": {"num_attention_heads": 6}}
    graph = tiny("step3p5", moe_layers_enum="3", **other)
    assert graph.num_parameters() == plain.num_parameters() == tiny("step3p5").num_parameters()
    assert plain.auxiliary == ("prediction_moe",)
    with pytest.raises(UserError, match="num_sliding_attention_heads = 5: allowed: multiples of 2"):
        tiny("step3p5", num_sliding_attention_heads=5)


def test_heads_of_step_3_share_a_key_and_a_value():
    """Products of 32 x 24 and 24 x 64 for queries, 32 x 32 for key and value, 64 x 32 for outputs; 3 experts of 16."""
    graph = tiny("step3_text")
    attention = 32 * 24 + 24 + 24 * 64 + 32 * 32 + 64 * 32
    dense, sparse = 3 * 32 * 48, (8 + 1) * 3 * 32 * 16 + 32 * 8
    assert graph.num_parameters() == 4 * (attention + 2 * 32) + 2 * (dense + sparse) + 2 * 96 * 32 + 32
    assert attention_flop_per_token(graph, 64) == 4 * 4 * (4 * 16) * 64
    rows = {op.name: op.region for op in graph.blocks["layer"].operators if op.kind == "matmul"}
    assert {name for name, region in rows.items() if region == "sequence"} == {"q_down", "kv"}
    one, four = (simpar.simulate(graph, "dgx-h100", {"tp": tp, "ep": tp}, TRAINING) for tp in (1, 4))
    assert four.memory.static_memory_bytes < one.memory.static_memory_bytes
    with pytest.raises(UserError, match="num_attention_groups = 2: allowed: 1"):
        tiny("step3_text", num_attention_groups=2)


def test_released_fields_of_mimo_say_the_same():
    """Lists of 0 and 1 in the place of words."""
    flags = {"layer_types": None, "hybrid_layer_pattern": [0, 1, 1], "moe_layer_freq": [0, 1, 1]}
    assert tiny("mimo_v2_flash", **flags).layers == tiny("mimo_v2_flash").layers
    with pytest.raises(UserError, match=r"layer_types = .*: allowed: one for each of 3 layers"):
        tiny("mimo_v2_flash", layer_types=["full_attention"])


def test_experts_of_exaone_start_behind_its_dense_layers():
    """Where no list says it, behind the first one; a list must be as long as the model."""
    assert [("moe" in name) for name in tiny("exaone_moe").layers] == [False, True, True, True]
    with pytest.raises(UserError, match=r"mlp_layer_types = .*: allowed: one of dense, sparse for each of 4 layers"):
        tiny("exaone_moe", mlp_layer_types=["dense"])


@pytest.mark.parametrize("kind", ["longcat_flash", "mimo_v2_flash", "bailing_moe_v2", "step3p5"])
def test_mixtures_allow_the_usual_plans(kind):
    """Expert, tensor and pipeline parallelism do the same work."""
    plans = ({"ep": 4}, {"tp": 2, "sequence_parallel": True, "ep": 2}, {"pp": 2, "zero": 1})
    results = [simpar.simulate(tiny(kind), "dgx-h100", plan, TRAINING) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1


def test_ling_1t_chooses_experts_in_groups():
    """Eight groups, of which a token chooses four."""
    dims = load_model("ling-1t").dims
    assert (dims["expert_groups"], dims["chosen_groups"], dims["topk"]) == (8, 4, 8)


@pytest.mark.parametrize(
    ("config", "billions", "predicting"),
    [
        (
            {"model_type": "mimo", "vocab_size": 151680, "hidden_size": 4096, "intermediate_size": 11008,
             "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
             "attention_bias": True, "num_nextn_predict_layers": 1},
            7.62, 0.21,
        ),
        (
            {"model_type": "minicpm", "vocab_size": 73448, "hidden_size": 4096, "intermediate_size": 16384,
             "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 2, "scale_emb": 12,
             "scale_depth": 1.4, "dim_model_base": 256, "mup_denominator": 32},
            8.19, 0,
        ),
    ],
    ids=["MiMo-7B", "MiniCPM4-8B"],
)  # fmt: skip
def test_decoders_with_code_of_their_own(config, billions, predicting):
    """Published sizes are 7.83 B with the layer that predicts a further token, and 8.19 B; every field is read."""
    graph = read(config, "theirs")
    assert graph.num_parameters() / 1e9 == pytest.approx(billions, abs=0.005)
    further = sum(graph.blocks[name].parameters(graph.dims) for name in graph.layers if name in graph.auxiliary)
    assert further / 1e9 == pytest.approx(predicting, abs=0.005)
    assert graph.details.unread == ()
    assert graph.details.unbuilt


RING = {
    "model_type": "bailing_moe_linear", "vocab_size": 157_184, "hidden_size": 2048, "intermediate_size": 5120,
    "moe_intermediate_size": 512, "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8, "num_shared_experts": 1, "n_group": 8,
    "topk_group": 4, "first_k_dense_replace": 1, "layer_group_size": 5, "group_norm_size": 4, "use_qk_norm": True,
    "use_qkv_bias": False, "use_bias": False, "moe_router_enable_expert_bias": True, "partial_rotary_factor": 0.5,
}  # fmt: skip


def test_ring_has_lightning_attention_in_all_layers_but_every_fifth():
    """Ring-mini-linear-2.0: 16.4 billion; a linear layer has five products of all heads, its norms, no smaller keys.

    queries, keys, values, gate and output: 5 x 2048^2; norms of two heads and of all features: 2 x 128 + 2048.
    """
    graph = read(RING, "ring")
    assert graph.num_parameters() / 1e9 == pytest.approx(16.4, rel=0.01)
    assert [("linear" in name) for name in graph.layers] == [True, True, True, True, False] * 4
    usual = read({**RING, "layer_group_size": 1}, "ring")
    more = 5 * 2048**2 + 2 * 128 + 2048 - (2048 * (2048 + 2 * 512) + 2048**2 + 2 * 128)
    assert graph.num_parameters() - usual.num_parameters() == 16 * more
    assert graph.details.unread == ()
    assert usual.num_parameters() == read({**RING, "model_type": "bailing_moe_v2"}, "ling").num_parameters()


@pytest.mark.parametrize("other", [{"use_bias": True}, {"use_qk_norm": False}, {"linear_silu": True}])
def test_other_kinds_of_lightning_attention_are_refused(other):
    """Released models have none of them."""
    with pytest.raises(UserError, match="allowed beside lightning attention: use_qk_norm, no biases, no linear_silu"):
        read({**RING, **other}, "ring")
