"""Kimi Linear: three layers of Kimi Delta Attention for one of latent attention without positions.

Its experts are DeepSeek V3's [Kimi team 2025, arXiv 2510.26692]. The language model of Kimi K3 has the same type, with
attention residuals, gates of full rank on both kinds of attention, and experts that read a latent, behind which their
sum is normed [arXiv 2607.24653, section 2].
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.attention_residuals import with_attention_residuals
from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating
from simpar.architectures.families.deepseek import latent_of
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph, Operator, Weight
from simpar.architectures.linear_attention import LinearShape
from simpar.architectures.mixture import Mixture
from simpar.architectures.products import TOKENS
from simpar.architectures.reading import (
    LINEAR_ATTENTION,
    layers_in,
    linear_in,
    llama_shape,
    mark_unbuilt,
    style_of,
    with_experts,
)
from simpar.architectures.transformer import LayerVariant, build
from simpar.errors import UserError

RESIDUALS = "attention over the layers before"
NO_SIZES = (
    "activation_situ_beta", "activation_situ_linear_beta", "moe_renormalize", "moe_router_activation_func",
    "use_grouped_topk", "topk_method",
)  # fmt: skip
"""Fields that no size depends on."""


def _linear(config: Config, sizes: Config) -> LinearShape:
    heads = config.size("linear_num_heads", default=sizes.size("num_heads", default=32))
    width = config.size("linear_head_dim", default=sizes.size("head_dim", default=128))
    conv = config.size("linear_conv_kernel_dim", default=sizes.size("short_conv_kernel_size", default=4))
    sizes.data.get("gate_lower_bound")
    full_gate = sizes.flag("use_full_rank_gate", default=False)
    return LinearShape("channel_delta", heads, heads, width, width, conv=conv, full_gate=full_gate)


def _is_linear(config: Config, given: Mapping[str, Any], count: int) -> list[bool]:
    """Linear layers: as ``layer_types`` says, or a released config, which counts from 1; else all but every fourth."""
    listed = given.get("full_attn_layers")
    if listed is None or config.data.get("layer_types") is not None:
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
        latent=config.optional_size("routed_expert_hidden_size"),
        groups=config.size("num_expert_group", default=1),
        chosen_groups=config.size("topk_group", default=1),
    )
    dense = 1 if config.data.get("first_k_dense_replace") is None else config.optional_size("first_k_dense_replace")
    every = config.size("moe_layer_freq", default=1)
    usual = [at >= dense and at % every == 0 for at in range(shape.layers)]
    experts = layers_in(config, shape.layers, "mlp_layer_types", {"dense": False, "sparse": True}) or usual
    linear = _is_linear(config, given, shape.layers)
    rotary = not config.flag("mla_use_nope", default=True)
    layers = [LayerVariant(linear=own, rotary=rotary, experts=wide) for own, wide in zip(linear, experts, strict=True)]
    sizes = Config(given, f"{config.source}: linear_attn_config")
    latent = latent_of(config)
    if latent and config.flag("mla_use_output_gate", default=False):
        latent = replace(latent, gated=True)
    full = with_experts(
        shape,
        mixture,
        ffn=0 if all(each.experts for each in layers) else config.size("intermediate_size"),
        latent=latent,
    )
    graph = build(name, replace(full, linear=_linear(config, sizes)), style_of(config), layers=tuple(layers))
    if mixture.latent and config.flag("latent_moe_use_norm", default=False):
        blocks = {key: replace(block, operators=_normed(block.operators)) for key, block in graph.blocks.items()}
        graph = replace(graph, blocks=blocks)
    for field in NO_SIZES:
        config.data.get(field)
    period = config.optional_size("attn_res_block_size")
    if config.optional_size("num_nextn_predict_layers"):
        raise UserError(
            f"{config.source}: num_nextn_predict_layers = {config.data['num_nextn_predict_layers']}: allowed: 0"
        )
    if not period:
        return mark_unbuilt(graph, LINEAR_ATTENTION)
    return mark_unbuilt(with_attention_residuals(graph, period), LINEAR_ATTENTION, RESIDUALS)


def _normed(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The layer with a norm of the experts' sum before it is widened."""
    result: list[Operator] = []
    for op in operators:
        if op.name == "latent_up":
            weight, width = Weight("latent_norm.weight", op.contraction, "vector"), op.contraction
            result.append(
                Operator(
                    "latent_norm", "norm", TOKENS, width, "sequence", weights=(weight,), inputs=op.inputs,
                    saves=(*op.inputs, "stats"),
                )
            )  # fmt: skip
            op = replace(op, inputs=("latent_norm",), saves=("latent_norm",))
        result.append(op)
    return tuple(result)


TINY_LINEAR: dict[str, Any] = {
    **TINY, "num_hidden_layers": 4, "num_key_value_heads": 4, "num_experts": 8, "moe_intermediate_size": 16,
    "num_experts_per_token": 2, "num_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "linear_attn_config": {
        "head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4, "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
    },
}  # fmt: skip
FAMILIES = (
    ModelFamily(
        "kimi_linear", _read, Details(gating=Gating("sigmoid", factor=2.446, bias="chooses")), None, TINY_LINEAR
    ),
)
