"""Hybrid configs: patterns of layers, latent experts, prediction layers, and what a config may not say."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.flops import matmul_flop_per_token, model_flop_per_token
from simpar.architectures.hf_config import read
from simpar.errors import UserError

CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h", "vocab_size": 1024, "hidden_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256, "mamba_num_heads": 8, "mamba_head_dim": 32,
    "ssm_state_size": 16, "n_groups": 2, "hybrid_override_pattern": "M-M*-",
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "hybrid_override_pattern": "MEM*E", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 96,
}  # fmt: skip


def test_every_letter_is_a_layer() -> None:
    """Layers follow the pattern, those of one kind share a block, and each is a norm, its operators and a sum."""
    graph = read(CONFIG)
    assert graph.layers == ("mamba", "mlp", "mamba", "attention", "mlp")
    for block in graph.blocks.values():
        assert block.operators[0].kind == "norm"
        assert block.operators[-1].inputs[0] == "input"
    assert not any(op.kind == "rope" for block in graph.blocks.values() for op in block.operators)


def test_heads_that_a_config_does_not_size() -> None:
    """Are as wide as transformers makes them, or as first configs say by another name."""
    unsaid = {key: value for key, value in CONFIG.items() if key != "head_dim"}
    assert read(unsaid).dims["head_dim"] == 128
    assert read({**unsaid, "attention_head_dim": 64}).dims["head_dim"] == 64


def test_kinds_may_be_listed() -> None:
    """Newer configs list the kinds instead of letters."""
    listed = ["mamba", "mlp", "mamba", "attention", "mlp"]
    config = {**CONFIG, "hybrid_override_pattern": None, "layers_block_type": listed}
    assert read(config).layers == tuple(listed)
    newer = [{"mamba": "linear_attention", "attention": "full_attention"}.get(kind, kind) for kind in listed]
    assert read({**config, "layers_block_type": newer}).layers == tuple(listed)


def test_experts_read_the_latent() -> None:
    """Experts, their copies and the sum are as wide as the latent; router and shared expert read the model's width."""
    plain, latent = read({**CONFIG, **EXPERTS}), read({**CONFIG, **EXPERTS, "moe_latent_size": 32})
    assert (plain.expert_hidden, latent.expert_hidden) == (128, 32)
    narrow, wide = latent.blocks["moe"], plain.blocks["moe"]
    assert narrow.trained_experts(latent.dims) == 8 * 2 * 32 * 64
    assert wide.trained_experts(plain.dims) == 8 * 2 * 128 * 64
    others = [b.parameters(g.dims) - b.trained_experts(g.dims) for b, g in ((narrow, latent), (wide, plain))]
    assert others[0] - others[1] == 2 * 128 * 32
    assert narrow.operators[-1].inputs == ("input", "latent_up", "shared_down")


def test_a_layer_that_runs_again_has_no_weights_of_its_own() -> None:
    """Two predictions with one set of weights: the work of two layers and two heads, the parameters of one."""
    once = {**CONFIG, **EXPERTS, "num_nextn_predict_layers": 1}
    one, two = read(once), read({**once, "mtp_num_layers": 2})
    assert two.auxiliary == ("prediction", "prediction_again")
    assert two.blocks["prediction_again"].parameters(two.dims) == 0
    assert two.num_parameters() == one.num_parameters() == read({**CONFIG, **EXPERTS}).num_parameters()
    none = read({**CONFIG, **EXPERTS})
    costs = [matmul_flop_per_token(graph, 512) for graph in (none, one, two)]
    assert costs[2] - costs[1] == pytest.approx(costs[1] - costs[0])


def test_a_4_bit_recipe_keeps_products_in_more_bits() -> None:
    """Whole layers at the end, prediction layers, and some products of the others; runs in 8 bits keep predictions."""
    config = {**CONFIG, **EXPERTS, "num_layers_at_end_in_bf16": 2, "num_nextn_predict_layers": 1}
    graph = read(config)
    assert graph.layers == ("mamba", "moe", "mamba", "attention_wide", "moe_wide", "prediction")
    kept = {
        (block, name): graph.blocks[block].operator(name).computes_in("nvfp4")
        for block, name in [
            ("mamba", "in_proj"),
            ("mamba", "out_proj"),
            ("moe", "expert_up"),
            ("moe_wide", "expert_up"),
        ]
    }
    assert list(kept.values()) == ["nvfp4", "mxfp8", "nvfp4", "bf16"]
    assert graph.blocks["moe_wide"].operator("expert_up").computes_in("fp8") == "fp8"
    assert graph.blocks["prediction"].operator("expert_up").computes_in("fp8") == "bf16"
    plain = read({**CONFIG, **EXPERTS})
    assert graph.num_parameters() == plain.num_parameters()
    assert all(not op.kept_in for block in plain.blocks.values() for op in block.operators)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hybrid_override_pattern": "M-X"}, "allowed: one of M, *, -, E a layer"),
        ({"hybrid_override_pattern": ""}, "allowed: one of M, *, -, E a layer"),
        ({"num_hidden_layers": 7}, "num_hidden_layers = 7: allowed: the 5 of hybrid_override_pattern"),
        ({"n_groups": 3}, "n_groups = 3: allowed: a divisor of the 8 heads"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"mamba_num_heads": None}, "mamba_num_heads is missing"),
        ({"num_layers_at_end_in_bf16": 6}, "num_layers_at_end_in_bf16 = 6: allowed: at most the 5 layers"),
        ({**EXPERTS, "num_experts_per_tok": 9}, "num_experts_per_tok = 9: allowed: at most the 8 experts"),
        ({"num_nextn_predict_layers": 1}, "in models with experts"),
        (
            {**EXPERTS, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "M"},
            "mtp_hybrid_override_pattern = 'M': allowed: '*E'",
        ),
    ],
)
def test_what_cannot_be_says_why(change: dict[str, Any], said: str) -> None:
    """One line with the field, its value and what is allowed."""
    with pytest.raises(UserError) as error:
        read({**CONFIG, **change}, "config.json")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "tflops", "tokens_per_s", "narrower"),
    [  # printed by NVIDIA Megatron-Bridge, performance summaries 26.06 and 26.04; GB300
        ("nemotron-3-super", 817.0, 9652.0, 0),
        ("nemotron-3-nano", 845.0, 37888.0, 23 * 3 * (2 * 5376 - 2 * 4096)),
    ],
)
def test_model_flop_are_those_that_runs_print(name: str, tflops: float, tokens_per_s: float, narrower: int) -> None:
    """TFLOP/s over tokens/s is the model FLOP of a token, by Megatron-Core's formula.

    That takes the inner width of Mamba layers as twice the hidden size, ``narrower`` than which Nano's is, and leaves
    out the projection in front of prediction layers and the router.
    """
    graph = load_model(name)
    hidden, state = graph.dims["hidden"], graph.dims["state"]
    printed = tflops * 1e12 / tokens_per_s
    wider = narrower / 2 * (2 * 3 * hidden + 7 * state)
    assert model_flop_per_token(graph, 8192, "causal") + wider == pytest.approx(printed, rel=0.012)


def test_experts_of_every_scope_count_by_those_of_a_token():
    """Layers of other sizes have dims of their own, among them the experts; those of images count none."""
    graph = simpar.Model("mixtral-8x7b")
    dims = {**graph.dims, **{f"far.{name}": size for name, size in graph.dims.items()}, "far.topk": 1}
    blocks = {name: dataclasses.replace(block, scope="far") for name, block in graph.blocks.items()}
    other = dataclasses.replace(graph, dims=dims, blocks=blocks)
    expert = 3 * 4096 * 14336
    assert other.num_parameters() == graph.num_parameters()
    assert graph.num_active_parameters() - other.num_active_parameters() == 32 * expert
