"""Configs with Mamba-2 mixers: parameters as transformers counts them, layers by kind, and what no run computes."""

from __future__ import annotations

from typing import Any

import pytest

from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike

LLAMA = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "mamba_n_heads": 8,
    "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 8,
}  # fmt: skip
MIXED = ["linear_attention", "full_attention"] * 2
ALONE = {
    "vocab_size": 96, "hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 16, "num_hidden_layers": 2,
    "n_groups": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
COUNTED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "falcon_h1": (
        {**LLAMA, "mamba_d_ssm": 64, "mamba_rms_norm": True, "projectors_bias": True, "ssm_in_multiplier": 0.5},
        ("multipliers of branches", "a norm before the gate of a mixer"),
    ),
    "bamba": ({**LLAMA, "attn_layer_indices": [1], "mamba_proj_bias": True}, ()),
    "granitemoehybrid": ({**LLAMA, "num_local_experts": 4, "shared_intermediate_size": 24, "layer_types": MIXED}, ()),
    "mamba2": ({**ALONE, "use_bias": True, "use_conv_bias": False}, ("convolutions without a bias",)),
}


@pytest.mark.parametrize("family", sorted(COUNTED))
def test_parameters_are_those_of_transformers(family: str) -> None:
    """To the parameter, with the biases and norms that configs may ask for; what no run computes is named."""
    config, said = COUNTED[family]
    assert counted_alike(family, config).details.unbuilt == said


def test_layers_have_what_their_kind_says() -> None:
    """Attention and a mixer side by side in Falcon-H1, one of the two elsewhere; positions where asked for."""
    both = read({"model_type": "falcon_h1", **LLAMA, "mamba_d_ssm": 64})
    assert set(both.layers) == {"attention_mamba"}
    assert both.blocks["attention_mamba"].operator("attention_residual").inputs == ("input", "o_proj", "out_proj")
    bamba = read({"model_type": "bamba", **LLAMA, "attn_layer_indices": [2]})
    assert bamba.layers == ("mamba", "mamba", "attention", "mamba")
    assert bamba.details.positions.rope.fraction == 0.5
    granite = {"model_type": "granitemoehybrid", **LLAMA, "num_local_experts": 0, "layer_types": MIXED}
    kinds = [
        any(op.kind == "rope" for op in read({**granite, **more}).blocks["attention"].operators)
        for more in ({}, {"position_embedding_type": "rope"})
    ]
    assert kinds == [False, True]


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("mamba2", {**ALONE, "num_heads": 7}, "num_heads = 7: allowed: expand x hidden_size / head_dim = 8"),
        ("bamba", {**LLAMA, "mamba_n_heads": 5}, "mamba_n_heads = 5: allowed: a divisor of the 64 inner features"),
        ("bamba", {**LLAMA, "attn_layer_indices": 3}, "attn_layer_indices = 3: allowed: a list of layers"),
        ("granitemoehybrid", {**LLAMA, "layer_types": ["mamba"]}, "for each of 4 layers"),
    ],
)
def test_what_cannot_be_says_why(family: str, changes: dict[str, Any], said: str) -> None:
    """One line with the field, its value and what is allowed."""
    with pytest.raises(UserError) as error:
        read({"model_type": family, **changes}, "config.json")
    assert str(error.value).startswith("config.json: ")
    assert said in str(error.value)
