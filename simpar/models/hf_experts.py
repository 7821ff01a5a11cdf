"""Readers of further mixtures: Granite, dots.llm1, FlexOlmo, MiniMax-M2, ERNIE 4.5 and Hunyuan."""

from __future__ import annotations

from collections.abc import Sequence

from simpar.errors import UserError
from simpar.models.config import Config, Family, windows_of
from simpar.models.graph import ModelGraph
from simpar.models.hf_mixtures import in_groups, sized, with_experts
from simpar.models.mixture import Mixture
from simpar.models.transformer import Layer, Style, build


def _granite(config: Config, name: str) -> ModelGraph:
    """Granite 3 with experts, and with or without a shared expert."""
    shape = sized(config, "intermediate_size")
    shared = config.data.get("shared_intermediate_size") if "shared" in config.text("model_type") else 0
    mixture = Mixture(
        config.size("num_local_experts", default=8), config.size("num_experts_per_tok", default=2),
        config.size("intermediate_size"), shared_ffn=config.size("shared_intermediate_size") if shared else 0,
    )  # fmt: skip
    bias = config.flag("attention_bias", default=False)
    return build(
        name, with_experts(shape, mixture), Style(tied=config.tied(), qkv_bias=bias, output_bias=bias)
    )


def _dots(config: Config, name: str) -> ModelGraph:
    """dots.llm1: DeepSeek-V3's routing behind plain attention with normed heads; late layers may have windows."""
    shape = sized(config, "moe_intermediate_size")
    width, shared = config.size("moe_intermediate_size"), config.data.get("n_shared_experts")
    mixture = Mixture(
        config.size("n_routed_experts", "num_local_experts"), config.size("num_experts_per_tok"), width,
        shared_ffn=width * config.size("n_shared_experts") if shared else 0, router_bias=True,
    )  # fmt: skip
    dense = config.size("first_k_dense_replace") if config.data.get("first_k_dense_replace") else 0
    windows = _late(config, shape.layers)
    layers = tuple(Layer(window, experts=at >= dense) for at, window in enumerate(windows))
    bias = config.flag("attention_bias", default=False)
    style = Style(tied=config.tied(), qkv_bias=bias, output_bias=bias, qk_norm="head")
    ffn = config.size("intermediate_size") if dense else 0
    full = with_experts(shape, in_groups(config, mixture), ffn=ffn)
    return build(name, full, style, layers=layers)


def _late(config: Config, count: int) -> Sequence[int | None]:
    """Windows by layer: from layer ``max_window_layers`` on, or as ``layer_types`` says."""
    from_here = config.size("max_window_layers", default=62)
    if config.data.get("sliding_window", 0) is None:
        return (None,) * count
    if config.data.get("layer_types") is not None:
        return windows_of(config.having({"sliding_window": 4096}, unless_given=True), count, default=True)
    window = config.size("sliding_window", default=4096)
    return tuple(window if at >= from_here else None for at in range(count))


def _flex_olmo(config: Config, name: str) -> ModelGraph:
    """OLMo 2 with experts, of which a token chooses most."""
    shape = sized(config, "intermediate_size")
    mixture = Mixture(
        config.size("num_experts", "num_local_experts", default=7), config.size("num_experts_per_tok", default=5),
        config.size("intermediate_size"),
    )  # fmt: skip
    bias = config.flag("attention_bias", default=False)
    style = Style(
        tied=config.tied(), qk_norm="full", qkv_bias=bias, output_bias=bias, extra={"post_norm_only": True}
    )
    return build(name, with_experts(shape, mixture), style)


def _minimax_m2(config: Config, name: str) -> ModelGraph:
    shape = sized(config, "intermediate_size", head_dim=128, kv_heads=8)
    mixture = Mixture(
        config.size("num_local_experts", "num_experts", default=256), config.size("num_experts_per_tok", default=8),
        config.size("intermediate_size"), router_bias=True,
    )  # fmt: skip
    return build(name, with_experts(shape, mixture), Style(tied=config.tied(), qk_norm="full"))


def _ernie(config: Config, name: str) -> ModelGraph:
    """Experts in every n-th layer from a first to a last one, beside two shared experts."""
    shape = sized(config, "moe_intermediate_size", kv_heads=4)
    width, shared = (
        config.size("moe_intermediate_size", default=1536),
        config.data.get("moe_num_shared_experts", 2),
    )
    mixture = Mixture(
        config.size("moe_num_experts", "num_experts", default=64),
        config.size("moe_k", "num_experts_per_tok", default=6), width,
        shared_ffn=width * config.size("moe_num_shared_experts", default=2) if shared else 0, router_bias=True,
    )  # fmt: skip
    first, last = config.data.get("moe_layer_start_index", 1), config.data.get("moe_layer_end_index", -1)
    if not isinstance(first, int) or not isinstance(last, int):
        raise UserError(
            f"{config.source}: moe_layer_start_index = {first!r}, moe_layer_end_index = {last!r}: allowed: integers"
        )
    step = config.size("moe_layer_interval", default=1)
    last = shape.layers - 1 if last == -1 else last
    layers = tuple(Layer(experts=(at + 1) % step == 0 and first <= at <= last) for at in range(shape.layers))
    dense = any(not layer.experts for layer in layers)
    bias = config.flag("use_bias", default=False)
    if bias and shared:
        raise UserError(
            f"{config.source}: use_bias = true: allowed: false, shared experts have no biases here"
        )
    style = Style(tied=config.tied(default=True), qkv_bias=bias, output_bias=bias, mlp_bias=bias)
    full = with_experts(shape, mixture, ffn=config.size("intermediate_size") if dense else 0)
    return build(name, full, style, layers=layers)


def _hunyuan(config: Config, name: str) -> ModelGraph:
    """Queries and keys are normed after the rotation; a shared expert as wide as the others."""
    shape = sized(config, "intermediate_size")
    for field in ("num_experts", "moe_topk"):
        if isinstance(listed := config.data.get(field), list):
            if not listed or any(each != listed[0] for each in listed):
                raise UserError(f"{config.source}: {field} = {listed}: allowed: one number for all layers")
            config = config.having({field: listed[0]})
    width = config.size("intermediate_size")
    mixture = Mixture(
        config.size("num_experts", "num_local_experts", default=1),
        config.size("moe_topk", "num_experts_per_tok", default=1), width, shared_ffn=width,
    )  # fmt: skip
    bias = config.flag("attention_bias", default=False)
    style = Style(
        tied=config.tied(), qkv_bias=bias, output_bias=bias, qk_norm="head", extra={"qk_norm_last": True}
    )
    return build(name, with_experts(shape, mixture), style)


FURTHER_MIXTURES: dict[str, Family] = {
    **dict.fromkeys(("granitemoe", "granitemoeshared"), _granite), "dots1": _dots, "flex_olmo": _flex_olmo,
    "minimax_m2": _minimax_m2, "ernie4_5_moe": _ernie, "hunyuan_v1_moe": _hunyuan,
}  # fmt: skip
