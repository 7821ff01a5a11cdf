"""Configs of further mixtures: which layers have experts, windows and shared experts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import simpar
from simpar.architectures.graph import evaluate
from simpar.architectures.hf_config import read
from simpar.errors import UserError

LLAMA = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_experts_per_tok": 2,
}  # fmt: skip
ERNIE = {**LLAMA, "model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16}
DOTS = {**LLAMA, "model_type": "dots1", "n_routed_experts": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 1}


def test_experts_stand_where_the_config_puts_them() -> None:
    """ERNIE from one layer to another, dots.llm1 behind its dense layers, with windows in late ones."""
    ernie = read({**ERNIE, "moe_layer_end_index": 2})
    assert ["moe" in name for name in ernie.layers] == [False, True, True, False]
    assert ernie.dims["shared_ffn"] == 32
    dots = read({**DOTS, "max_window_layers": 2, "sliding_window": 8})
    assert dots.layers == ("layer", "layer_moe", "layer_moe_window_8", "layer_moe_window_8")
    assert read({**DOTS, "sliding_window": None}).layers == ("layer", *("layer_moe",) * 3)


def test_layers_of_minimax() -> None:
    """As listed in either way; without a list attention comes first (transformers, configuration_minimax.py)."""
    config = {**LLAMA, "model_type": "minimax", "num_local_experts": 4}
    full, linear = "layer_moe", "layer_linear_moe"
    assert read(config).layers == (full, linear, full, linear)
    assert read({**config, "attn_type_list": [0, 0, 0, 1]}).layers == (linear, linear, linear, full)
    kinds = ["linear_attention", "full_attention"] * 2
    assert read({**config, "layer_types": kinds}).layers == (linear, full, linear, full)


def test_scores_of_routers() -> None:
    """A sigmoid with a bias that chooses, a plain softmax, and a softmax of which a bias chooses."""
    sizes = {**LLAMA, "num_experts": 4, "num_local_experts": 4, "head_dim": 8, "rotary_dim": 4}
    gatings = {
        family: read({**sizes, "model_type": family}).details.gating
        for family in ("minimax_m2", "flex_olmo", "granitemoe")
    }
    assert [(each.score, each.normalised, each.bias) for each in gatings.values()] == [
        ("sigmoid", True, "chooses"),
        ("softmax", False, "added"),
        ("softmax", True, "added"),
    ]
    assert read(ERNIE).details.gating.bias == "chooses"
    assert read({**sizes, "model_type": "minimax_m2"}).details.positions.rope.turned(8) == 4


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**ERNIE, "use_bias": True}, "use_bias = true: allowed: false"),
        ({**ERNIE, "moe_layer_start_index": "1"}, "moe_layer_start_index = '1'"),
        ({**LLAMA, "model_type": "hunyuan_v1_moe", "num_experts": [4, 8]}, "num_experts = [4, 8]: allowed: one number"),
    ],
)
def test_what_cannot_be_says_why(config: dict[str, Any], said: str) -> None:
    """One line with the field, its value and what is allowed."""
    with pytest.raises(UserError) as error:
        read(config, "config.json")
    assert str(error.value).startswith("config.json: ")
    assert said in str(error.value)


def test_norms_without_weights() -> None:
    """Llama 4 norms queries and keys behind their rotation, in layers that rotate: 16 experts do, 128 do not."""
    scout, maverick = simpar.Model("llama-4-scout"), simpar.Model("llama-4-maverick")
    rotating = [any(op.kind == "rope" for op in block.operators) for block in scout.blocks.values()]
    normed = [any(op.name == "qk_norm" for op in block.operators) for block in scout.blocks.values()]
    assert normed == rotating == [True, False]
    assert all(not op.weights for block in scout.blocks.values() for op in block.operators if op.name == "qk_norm")
    assert not any(op.name == "qk_norm" for block in maverick.blocks.values() for op in block.operators)


def test_clipped_queries_are_one_more_pass() -> None:
    """It keeps the product's output: DBRX's (48 + 2 x 8) x 128 columns of 16 bits, 16,384 B a token and layer."""
    block = simpar.Model("dbrx").blocks["layer_moe"]
    assert [op.name for op in block.operators][1:5] == ["qkv", "qkv_clip", "rope", "attention"]
    clip = block.operator("qkv_clip")
    assert (clip.inputs, clip.saves) == (("qkv",), ("qkv",))
    assert 2 * evaluate(clip.columns, simpar.Model("dbrx").dims) == 16_384
    assert "qkv_clip" not in [op.name for op in read({**LLAMA, "model_type": "olmo"}).blocks["layer"].operators]
