"""Hugging Face config.json to ModelGraph: one small reader per family, with the family's own defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.files import allowed, suggest
from simpar.models.config import (
    Config,
    Family,
    alternating,
    gpt_shape,
    gpt_style,
    llama_shape,
    shape_of,
    windows_of,
)
from simpar.models.families import DECLARED
from simpar.models.graph import ModelGraph
from simpar.models.hf_dense import DENSE
from simpar.models.hf_details import details
from simpar.models.hf_experts import FURTHER_MIXTURES
from simpar.models.hf_hybrids import HYBRIDS
from simpar.models.hf_mixtures import MIXTURES
from simpar.models.hf_state_space import STATE_SPACE
from simpar.models.hf_towers import towers
from simpar.models.transformer import Style, build, windowed

WRAPPERS = ("text_config", "language_config", "llm_config")
UNMODELLED = {
    **dict.fromkeys(("jamba", "mamba", "falcon_mamba"), "Mamba-1 state-space layers"),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text", "minimax", "kimi_linear"),
        "layers of linear attention",
    ),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), "keys that an indexer chooses"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "short convolutions between layers of attention"),
    **dict.fromkeys(("recurrent_gemma", "rwkv", "xlstm"), "recurrent layers"),
    "zamba2": "layers that share the weights of others", "deepseek_v4": "compressed sparse attention",
}  # fmt: skip


def read(config: Mapping[str, Any], name: str = "model") -> ModelGraph:
    """The graph of a config. Raises UserError naming file, field, value and rule."""
    if not isinstance(config, Mapping):
        raise UserError(f"{name}: a model config is a mapping with a model_type")
    with_encoders = towers(read)
    for wrapper in WRAPPERS if config.get("model_type") not in with_encoders else ():
        inner = config.get(wrapper)
        if isinstance(inner, Mapping) and "hidden_size" not in config:
            config = {"model_type": config.get("model_type"), **inner}
    kind = str(config.get("model_type") or "")
    if kind in UNMODELLED:
        raise UserError(f"{name}: model_type = {kind!r}: {UNMODELLED[kind]} are not modelled")
    families = FAMILIES | with_encoders
    if kind not in families:
        raise UserError(
            f"{name}: model_type = {kind!r} is not known{suggest(kind, families) or allowed(families)}"
        )
    fields = Config(config, name)
    graph = families[kind](fields, name)
    return replace(graph, details=details(fields, graph))


def _llama(config: Config, name: str) -> ModelGraph:
    bias = config.flag("attention_bias", default=False)
    mlp = config.flag("mlp_bias", default=False)
    style = Style(tied=config.tied(), qkv_bias=bias, output_bias=bias, mlp_bias=mlp)
    return build(name, llama_shape(config), style)


def _mistral(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=8)
    style = Style(tied=config.tied())
    return build(name, shape, style, layers=windowed(windows_of(config, shape.layers, default=True)))


def _qwen2(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config)
    style = Style(tied=config.tied(), qkv_bias=True)
    return build(name, shape, style, layers=windowed(windows_of(config, shape.layers, default=False)))


def _qwen3(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, head_dim=128)
    bias = config.flag("attention_bias", default=False)
    style = Style(
        tied=config.tied(),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
    )
    return build(name, shape, style, layers=windowed(windows_of(config, shape.layers, default=False)))


def _gemma(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, head_dim=256)
    return build(name, shape, Style(tied=config.tied(default=True)))


def _gemma2(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, head_dim=256)
    style = Style(tied=config.tied(default=True), norms=4)
    return build(name, shape, style, layers=windowed(alternating(config, shape.layers, 2)))


def _gemma3(config: Config, name: str) -> ModelGraph:
    sizes = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = config.having(sizes, unless_given=True)
    shape = llama_shape(config, head_dim=256)
    style = Style(tied=config.tied(default=True), norms=4, qk_norm="head")
    period = config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return build(name, shape, style, layers=windowed(alternating(config, shape.layers, period)))


def _phi3(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config)
    style = Style(tied=config.tied())
    return build(name, shape, style, layers=windowed(windows_of(config, shape.layers, default=True)))


def _phi(config: Config, name: str) -> ModelGraph:
    style = Style(
        norm="layer", gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, head_bias=True, parallel=True,
        norms=1, tied=config.tied(),
    )  # fmt: skip
    return build(name, llama_shape(config), style)


def _olmo2(config: Config, name: str) -> ModelGraph:
    style = Style(tied=config.tied(), qk_norm="full", extra={"post_norm_only": True})
    return build(name, llama_shape(config), style)


def _olmo(config: Config, name: str) -> ModelGraph:
    return build(name, llama_shape(config), Style(norm="none", tied=config.tied()))


def _gpt2(config: Config, name: str) -> ModelGraph:
    style = gpt_style(tied=config.tied(default=True))
    usual = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.1)
    dropout = config.having(usual, unless_given=True).rate(*usual)
    return build(name, gpt_shape(config), style, dropout=dropout > 0)


def _gpt_neox(config: Config, name: str) -> ModelGraph:
    parallel = config.flag("use_parallel_residual", default=True)
    style = gpt_style(tied=config.tied(), rotary=True, parallel=parallel)
    bias = config.flag("attention_bias", default=True)
    shape = llama_shape(config.having({"num_key_value_heads": None}))  # the family has none
    return build(name, shape, replace(style, qkv_bias=bias, output_bias=bias))


def _falcon(config: Config, name: str) -> ModelGraph:
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    new = config.flag("new_decoder_architecture", default=False)
    single = config.flag("multi_query", default=True)
    kv_heads = config.size("num_kv_heads", default=heads) if new else (1 if single else heads)
    shape = shape_of(
        config, hidden=hidden, ffn=config.size("ffn_hidden_size", default=4 * hidden),
        layers=config.size("num_hidden_layers"), heads=heads, kv_heads=kv_heads,
    )  # fmt: skip
    bias = config.flag("bias", default=False)
    parallel = config.flag("parallel_attn", default=True) or new
    norms = 2 if new and config.size("num_ln_in_parallel_attn", default=2) == 2 else (1 if parallel else 2)
    style = Style(
        norm="layer", gated=False, tied=config.tied(default=True), qkv_bias=bias,
        output_bias=bias, mlp_bias=bias, rotary=not config.flag("alibi", default=False), parallel=parallel, norms=norms,
    )  # fmt: skip
    return build(name, shape, style)


def _mpt(config: Config, name: str) -> ModelGraph:
    hidden = config.size("d_model", "hidden_size")
    learned = config.flag("learned_pos_emb", default=False) and not (config.mapping("attn_config") or {}).get(
        "alibi"
    )
    shape = shape_of(
        config, hidden=hidden, ffn=hidden * config.size("expansion_ratio", default=4),
        layers=config.size("n_layers", "num_hidden_layers"), heads=config.size("n_heads", "num_attention_heads"),
        positions=config.size("max_seq_len") if learned else 0,
    )  # fmt: skip
    plain = config.flag("no_bias", default=True)
    style = Style(
        norm="weight" if plain else "layer", gated=False, rotary=False, qkv_bias=not plain, output_bias=not plain,
        mlp_bias=not plain, tied=config.tied(default=True),
    )  # fmt: skip
    return build(name, shape, style)


def _opt(config: Config, name: str) -> ModelGraph:
    hidden = config.size("hidden_size")
    shape = shape_of(
        config, hidden=hidden, ffn=config.size("ffn_dim", default=4 * hidden), layers=config.size("num_hidden_layers"),
        heads=config.size("num_attention_heads"), positions=config.size("max_position_embeddings", default=2048) + 2,
    )  # fmt: skip
    if not config.flag("do_layer_norm_before", default=True):
        raise UserError(
            f"{name}: do_layer_norm_before = false: norms behind attention and MLP are not modelled"
        )
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        raise UserError(
            f"{name}: word_embed_proj_dim: allowed: hidden_size, {hidden}; projections are not modelled"
        )
    style = gpt_style(tied=config.tied(default=True))
    bias = config.flag("enable_bias", default=True)
    plain = not config.flag("layer_norm_elementwise_affine", default=True)
    style = replace(style, qkv_bias=bias, output_bias=bias, mlp_bias=bias, norm="none" if plain else "layer")
    return build(name, shape, style)


def _bloom(config: Config, name: str) -> ModelGraph:
    hidden = config.size("hidden_size", "n_embed")
    shape = shape_of(
        config, hidden=hidden, ffn=4 * hidden, layers=config.size("n_layer", "num_hidden_layers"),
        heads=config.size("n_head", "num_attention_heads"),
    )  # fmt: skip
    tied = config.tied(default=True)
    return build(name, shape, gpt_style(tied=tied, extra={"embedding_norm": True}))


def _starcoder2(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=2)
    style = gpt_style(tied=config.tied(default=True), rotary=True)
    bias = config.flag("use_bias", default=True)
    style = replace(style, qkv_bias=bias, output_bias=bias, mlp_bias=bias)
    return build(name, shape, style, layers=windowed(windows_of(config, shape.layers, default=True)))


FAMILIES: dict[str, Family] = {
    "llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "qwen3": _qwen3, "gemma": _gemma, "gemma2": _gemma2,
    "gemma3": _gemma3, "gemma3_text": _gemma3, "phi3": _phi3, "phi": _phi, "olmo": _olmo, "olmo2": _olmo2,
    "gpt2": _gpt2, "gpt_neox": _gpt_neox, "falcon": _falcon, "mpt": _mpt, "opt": _opt, "bloom": _bloom,
    "starcoder2": _starcoder2, **DENSE, **MIXTURES, **FURTHER_MIXTURES, **HYBRIDS,
    **STATE_SPACE, **{kind: each.read for kind, each in DECLARED.items()},
}  # fmt: skip
