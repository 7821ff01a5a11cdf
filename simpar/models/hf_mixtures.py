"""Readers of mixture-of-experts families, with the fields of their configuration classes in transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.models.config import Config, Family, llama_shape, shape_of, windows_of
from simpar.models.graph import ModelGraph
from simpar.models.hf_dense import unbuilt
from simpar.models.latent import Latent
from simpar.models.mixture import Mixture
from simpar.models.transformer import Layer, Shape, Style, build

BARE_NORM = "norms of queries and keys without weights"


def with_experts(shape: Shape, mixture: Mixture, *, ffn: int = 0, **parts: Any) -> Shape:
    """The shape with experts; ``ffn`` is the width of its dense layers, 0 where it has none."""
    if mixture.topk > mixture.experts:
        raise UserError(f"experts per token = {mixture.topk}: allowed: at most the {mixture.experts} experts")
    return replace(shape, ffn=ffn, mixture=mixture, **parts)


def sized(config: Config, field: str, **defaults: int) -> Shape:
    """The attention part of a Llama-like shape; ``field`` names an FFN width that only serves its checks."""
    return llama_shape(config.having({"intermediate_size": config.size(field)}), **defaults)


def _mixtral(config: Config, name: str) -> ModelGraph:
    shape = sized(config, "intermediate_size", kv_heads=8)
    mixture = Mixture(
        config.size("num_local_experts", default=8),
        config.size("num_experts_per_tok", default=2),
        config.size("intermediate_size"),
    )
    layers = tuple(
        Layer(window, experts=True)
        for window in windows_of(config, shape.layers, default=True) or (None,) * shape.layers
    )
    return build(name, with_experts(shape, mixture), Style(tied=config.tied()), layers=layers)


def _sparse_layers(config: Config, count: int) -> tuple[bool, ...]:
    """Which layers have experts: every ``decoder_sparse_step``-th, except those listed as dense."""
    step, dense = config.size("decoder_sparse_step", default=1), config.data.get("mlp_only_layers") or []
    return tuple((i + 1) % step == 0 and i not in dense for i in range(count))


def _qwen_moe(config: Config, name: str, style: Style, mixture: Mixture, **defaults: int) -> ModelGraph:
    shape = sized(config, "moe_intermediate_size", **defaults)
    sparse = _sparse_layers(config, shape.layers)
    ffn = 0 if all(sparse) else config.size("intermediate_size")
    windows = windows_of(config, shape.layers, default=False) or (None,) * shape.layers
    layers = tuple(Layer(window, experts=experts) for window, experts in zip(windows, sparse, strict=True))
    return build(name, with_experts(shape, mixture, ffn=ffn), style, layers=layers)


def _qwen2_moe(config: Config, name: str) -> ModelGraph:
    mixture = Mixture(
        config.size("num_experts", "num_local_experts", default=60),
        config.size("num_experts_per_tok", default=4),
        config.size("moe_intermediate_size"),
        shared_ffn=config.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return _qwen_moe(
        config,
        name,
        Style(tied=config.tied(), qkv_bias=config.flag("qkv_bias", default=True)),
        mixture,
    )


def _qwen3_moe(config: Config, name: str) -> ModelGraph:
    mixture = Mixture(
        config.size("num_experts", "num_local_experts", default=128),
        config.size("num_experts_per_tok", default=8),
        config.size("moe_intermediate_size"),
    )
    bias = config.flag("attention_bias", default=False)
    style = Style(tied=config.tied(), qkv_bias=bias, output_bias=bias, qk_norm="head")
    return _qwen_moe(config, name, style, mixture, head_dim=128)


def _deepseek(config: Config, name: str) -> ModelGraph:
    """DeepSeek MoE (plain attention), V2 and V3, and Kimi K2 (latent attention)."""
    shape = sized(config, "moe_intermediate_size")
    width, shared = config.size("moe_intermediate_size"), config.data.get("n_shared_experts")
    usual = "noaux_tc" if config.text("model_type") in ("deepseek_v3", "kimi_k2") else "greedy"
    mixture = Mixture(
        config.size("n_routed_experts", "num_local_experts"),
        config.size("num_experts_per_tok"),
        width,
        shared_ffn=width * config.size("n_shared_experts") if shared else 0,
        router_bias=config.text("topk_method", usual) == "noaux_tc",
    )
    bias = config.flag("attention_bias", default=False)
    dense = _first_dense(config)
    ffn = config.size("intermediate_size") if dense else 0
    full = with_experts(shape, in_groups(config, mixture), ffn=ffn, latent=_latent(config))
    style = Style(tied=config.tied(), qkv_bias=bias, output_bias=bias)
    return build(name, full, style, layers=dense_first(config, shape.layers, dense))


def in_groups(config: Config, mixture: Mixture) -> Mixture:
    """The mixture with its groups of experts, and the number of groups from which a token chooses."""
    count = config.size("n_group", default=1)
    return replace(mixture, groups=count, chosen_groups=_chosen_groups(config))


def _chosen_groups(config: Config) -> int:
    """The number of groups of experts from which a token chooses."""
    chosen = config.size("topk_group", default=1)
    return chosen if config.size("n_group", default=1) > 1 else 1


def _latent(config: Config) -> Latent | None:
    if config.data.get("kv_lora_rank") is None:
        return None
    return Latent(
        query=config.size("q_lora_rank") if config.data.get("q_lora_rank") is not None else 0,
        key_value=config.size("kv_lora_rank"),
        plain=config.size("qk_nope_head_dim"),
        rotary=config.size("qk_rope_head_dim"),
        value=config.size("v_head_dim"),
    )


def _first_dense(config: Config) -> int:
    """The number of dense layers in front of those with experts; 0 is allowed."""
    return config.size("first_k_dense_replace") if config.data.get("first_k_dense_replace") else 0


def dense_first(config: Config, count: int, dense: int) -> tuple[Layer, ...]:
    """Dense layers, layers with experts, and layers that predict further tokens."""
    further = config.size("num_nextn_predict_layers") if config.data.get("num_nextn_predict_layers") else 0
    plain = [Layer(experts=i >= dense) for i in range(count)]
    return (*plain, *[Layer(experts=True, prediction=True)] * further)


def _glm4_moe(config: Config, name: str) -> ModelGraph:
    shape = sized(config, "moe_intermediate_size")
    width = config.size("moe_intermediate_size")
    mixture = Mixture(
        config.size("n_routed_experts", "num_local_experts"),
        config.size("num_experts_per_tok"),
        width,
        shared_ffn=width * config.size("n_shared_experts", default=1),
        router_bias=True,
    )
    dense = _first_dense(config)
    style = Style(
        tied=config.tied(),
        qkv_bias=config.flag("attention_bias", default=False),
        qk_norm="head" if config.flag("use_qk_norm", default=False) else "",
    )
    ffn = config.size("intermediate_size") if dense else 0
    full = with_experts(shape, in_groups(config, mixture), ffn=ffn)
    return build(name, full, style, layers=dense_first(config, shape.layers, dense))


def _gpt_oss(config: Config, name: str) -> ModelGraph:
    """Alternating windows, attention sinks, biases everywhere, and activations of experts that read clamped inputs."""
    shape = sized(config, "intermediate_size", head_dim=64)
    mixture = Mixture(
        config.size("num_local_experts"),
        config.size("num_experts_per_tok", "experts_per_token", default=4),
        config.size("intermediate_size"),
        bias=True,
        router_bias=True,
        clamped=True,
    )
    for field, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if config.number(field, default=value) != value:
            raise UserError(f"{name}: {field} = {config.data[field]}: allowed: {value}, as published")
    bias = config.flag("attention_bias", default=True)
    style = Style(tied=config.tied(), qkv_bias=bias, output_bias=bias, extra={"sinks": True})
    window = config.size("sliding_window", default=128)
    listed = windows_of(config, shape.layers, default=True) if config.data.get("layer_types") else ()
    windows = listed or tuple(window if i % 2 == 0 else None for i in range(shape.layers))
    layers = tuple(Layer(each, experts=True) for each in windows)
    return build(name, with_experts(shape, mixture), style, layers=layers)


def _llama4(config: Config, name: str) -> ModelGraph:
    """Chunked attention with positions, every fourth layer without; experts in every ``interleave``-th layer."""
    shape = sized(config, "intermediate_size")
    width = config.size("intermediate_size")
    mixture = Mixture(
        config.size("num_local_experts"),
        config.size("num_experts_per_tok", default=1),
        width,
        shared_ffn=width,
    )
    step, every = (
        config.size("interleave_moe_layer_step", default=1),
        config.size("no_rope_layer_interval", default=4),
    )
    chunk = config.size("attention_chunk_size", default=8192)
    layers = tuple(
        Layer(chunk, chunked=True, experts=(i + 1) % step == 0)
        if (i + 1) % every
        else Layer(rotary=False, experts=(i + 1) % step == 0)
        for i in range(shape.layers)
    )
    ffn = config.size("intermediate_size_mlp") if step > 1 else 0
    graph = build(name, with_experts(shape, mixture, ffn=ffn), Style(tied=config.tied()), layers=layers)
    return unbuilt(graph, BARE_NORM) if config.flag("use_qk_norm", default=True) else graph


def _olmoe(config: Config, name: str) -> ModelGraph:
    shape = sized(config, "intermediate_size")
    mixture = Mixture(
        config.size("num_experts", "num_local_experts", default=64),
        config.size("num_experts_per_tok", default=8),
        config.size("intermediate_size"),
    )
    return build(name, with_experts(shape, mixture), Style(tied=config.tied(), qk_norm="full"))


def _phimoe(config: Config, name: str) -> ModelGraph:
    shape = sized(config, "intermediate_size")
    mixture = Mixture(
        config.size("num_local_experts", default=16),
        config.size("num_experts_per_tok", default=2),
        config.size("intermediate_size"),
    )
    bias = config.flag("attention_bias", default=False)
    style = Style(
        norm="layer", tied=config.tied(), qkv_bias=bias, output_bias=bias,
        head_bias=config.flag("lm_head_bias", default=False),
    )  # fmt: skip
    return build(name, with_experts(shape, mixture), style)


def _dbrx(config: Config, name: str) -> ModelGraph:
    experts, attention = config.data.get("ffn_config") or {}, config.data.get("attn_config") or {}
    inner = Config({**attention, **experts}, config.source)
    hidden = config.size("d_model")
    shape = shape_of(
        config, hidden=hidden, ffn=inner.size("ffn_hidden_size"), layers=config.size("n_layers"),
        heads=config.size("n_heads"), kv_heads=inner.size("kv_n_heads", default=1),
    )  # fmt: skip
    mixture = Mixture(
        inner.size("moe_num_experts"), inner.size("moe_top_k", default=1), inner.size("ffn_hidden_size")
    )
    return build(name, with_experts(shape, mixture), Style(norm="weight", tied=config.tied()))


def _grok(config: Config, name: str) -> ModelGraph:
    """Norms before and after both halves, eight experts."""
    shape = sized(config, "intermediate_size", head_dim=128)
    mixture = Mixture(
        config.size("num_experts", default=8),
        config.size("num_experts_per_tok", default=2),
        config.size("intermediate_size"),
    )
    style = Style(tied=config.tied(default=True), norms=4)
    return build(name, with_experts(shape, mixture), style)


MIXTURES: dict[str, Family] = {
    "mixtral": _mixtral, "qwen2_moe": _qwen2_moe, "qwen3_moe": _qwen3_moe, "deepseek": _deepseek,
    "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek, "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss, "llama4": _llama4, "llama4_text": _llama4, "olmoe": _olmoe, "phimoe": _phimoe,
    "dbrx": _dbrx, "grok-1": _grok,
}  # fmt: skip
