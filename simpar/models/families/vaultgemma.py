"""VaultGemma: Gemma 2 without the norms behind attention and MLP [transformers, models/vaultgemma].

Every other layer has a sliding window; scores and logits have soft caps; embeddings are multiplied by the root of the
hidden size, as in Gemma.
"""

from __future__ import annotations

from simpar.models.config import Config, alternating, llama_shape
from simpar.models.details import Caps, Details, Scales
from simpar.models.families.family import ModelFamily
from simpar.models.graph import ModelGraph
from simpar.models.transformer import Style, build, windowed


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, head_dim=256)
    bias = config.flag("attention_bias", default=False)
    style = Style(tied=config.tied(default=True), qkv_bias=bias, output_bias=bias)
    return build(name, shape, style, layers=windowed(alternating(config, shape.layers, 2)))


FAMILIES = (
    ModelFamily(
        ("vaultgemma",),
        _read,
        Details(
            "gelu_pytorch_tanh",
            0.000001,
            norm_offset=1.0,
            caps=Caps(attention=50.0, logits=30.0),
            scales=Scales(attention=256**-0.5),
        ),
        layer={"mlp_norm": "pre_feedforward_layernorm"},
        scaled_by_root=True,
        tiny={
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
)
