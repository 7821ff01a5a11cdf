"""Kimi Linear: three layers of Kimi Delta Attention for one of latent attention without positions.

Its experts are DeepSeek V3's [Kimi team 2025, arXiv 2510.26692].
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating
from simpar.architectures.families.deepseek import latent_of
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.linear_attention import LinearShape
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import LINEAR_ATTENTION, linear_in, llama_shape, mark_unbuilt, style_of, with_experts
from simpar.architectures.transformer import LayerVariant, build
from simpar.errors import UserError


def _linear(config: Config, sizes: Config) -> LinearShape:
    heads = config.size("linear_num_heads", default=sizes.size("num_heads", default=32))
    width = config.size("linear_head_dim", default=sizes.size("head_dim", default=128))
    conv = config.size("linear_conv_kernel_dim", default=sizes.size("short_conv_kernel_size", default=4))
    return LinearShape("channel_delta", heads, heads, width, width, conv=conv)


def _is_linear(config: Config, given: Mapping[str, Any], count: int) -> list[bool]:
    """Linear layers of a released config, which counts from 1; else all but every fourth behind the first."""
    listed = given.get("full_attn_layers")
    if listed is None:
        return list(linear_in(config, [layer % 4 != 0 or layer == 0 for layer in range(count)]))
    if not isinstance(listed, list):
        raise UserError(f"{config.source}: linear_attn_config.full_attn_layers = {listed!r}: allowed: a list of layers")
    return [layer + 1 not in listed for layer in range(count)]


def _read(config: Config, name: str) -> ModelGraph:
    given = config.mapping("linear_attn_config") or {}
    config = config.having({"head_dim": config.size("qk_rope_head_dim", default=64)})
    shape = llama_shape(config, ffn="moe_intermediate_size")
    width = config.size("moe_intermediate_size")
    mixture = Mixture(
        config.size("num_experts", "num_local_experts", default=256),
        config.size("num_experts_per_token", "num_experts_per_tok", default=8),
        width,
        shared_ffn=width * config.size("num_shared_experts", "n_shared_experts", default=1),
        router_bias=True,
    )
    dense = config.optional_size("first_k_dense_replace")
    linear = _is_linear(config, given, shape.layers)
    layers = [LayerVariant(linear=own, rotary=False, experts=at >= dense) for at, own in enumerate(linear)]
    sizes = Config(given, f"{config.source}: linear_attn_config")
    full = with_experts(shape, mixture, ffn=config.size("intermediate_size") if dense else 0, latent=latent_of(config))
    graph = build(name, replace(full, linear=_linear(config, sizes)), style_of(config), layers=tuple(layers))
    return mark_unbuilt(graph, LINEAR_ATTENTION)


FAMILIES = (
    ModelFamily(
        "kimi_linear",
        _read,
        Details(gating=Gating("sigmoid", factor=2.446, bias="chooses")),
        None,
        {
            **TINY, "num_hidden_layers": 4, "num_key_value_heads": 4, "num_experts": 8, "moe_intermediate_size": 16,
            "num_experts_per_token": 2, "num_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16,
            "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
            "linear_attn_config": {
                "head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4, "full_attn_layers": [4],
                "kda_layers": [1, 2, 3],
            },
        },
    ),
)  # fmt: skip
