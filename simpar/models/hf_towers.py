"""Readers of configs with encoders: alone, before a decoder that attends to them, or before a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from simpar.errors import UserError
from simpar.models.config import Config, Family, shape_of
from simpar.models.encoder import encoder
from simpar.models.graph import ModelGraph
from simpar.models.towers import Vision, before_language_model, encoder_decoder
from simpar.models.transformer import Shape, Style

CHANNELS = 3

Reader = Callable[[Mapping[str, Any], str], ModelGraph]


def _t5(config: Config, name: str) -> ModelGraph:
    layers = config.size("num_layers", default=6)
    heads = config.size("num_heads", default=8)
    shape = Shape(
        vocab=config.size("vocab_size"), hidden=config.size("d_model"), ffn=config.size("d_ff"), layers=layers,
        heads=heads, kv_heads=heads, head_dim=config.size("d_kv", default=64),
    )  # fmt: skip
    gated = config.text("feed_forward_proj", "relu").startswith("gated")
    style = Style(gated=gated, rotary=False, tied=config.tied(default=True))
    decoder_seq = config.size("decoder_seq_len") if config.data.get("decoder_seq_len") else None
    depth = config.size("num_decoder_layers", default=layers)
    return encoder_decoder(name, shape, style, decoder_layers=depth, decoder_seq=decoder_seq)


def _llava(read: Reader, config: Config, name: str) -> ModelGraph:
    inner, text = config.data.get("vision_config"), config.data.get("text_config")
    if not isinstance(inner, Mapping) or not isinstance(text, Mapping):
        raise UserError(f"{name}: model_type = 'llava': vision_config and text_config are needed")
    images = config.size("images_per_sequence", default=1)
    vision = _vision(Config(inner, f"{name}: vision_config"), images)
    return before_language_model(name, vision, read(text, f"{name}: text_config"))


def _vision(config: Config, images: int) -> Vision:
    """A ViT with CLIP's defaults; with InternViT's RMS norms and normed queries and keys if the config says so."""
    hidden, heads = config.size("hidden_size", default=1024), config.size("num_attention_heads", default=16)
    if hidden % heads:
        raise UserError(
            f"{config.source}: num_attention_heads = {heads} does not divide hidden_size = {hidden}"
        )
    side = config.size("image_size", default=336) // config.size("patch_size", default=14)
    bias = config.flag("qkv_bias", default=True)
    norms = "rms" if config.text("norm_type").startswith("rms") else "layer"
    style = Style(norm=norms, gated=False, qkv_bias=bias, output_bias=True, mlp_bias=True, rotary=False)
    if config.flag("qk_normalization", default=False):
        style = replace(style, qk_norm="full")
    shape = Shape(
        vocab=1, hidden=hidden, ffn=config.size("intermediate_size", default=4 * hidden),
        layers=config.size("num_hidden_layers", default=24), heads=heads, kv_heads=heads, head_dim=hidden // heads,
    )  # fmt: skip
    pixels = CHANNELS * config.size("patch_size", default=14) ** 2
    return Vision(shape, style, patches=side * side, patch_elements=pixels, images=images)


def _bert(config: Config, name: str) -> ModelGraph:
    shape = shape_of(
        config,
        hidden=config.size("hidden_size", default=768),
        ffn=config.size("intermediate_size", default=3072),
        layers=config.size("num_hidden_layers", default=12),
        heads=config.size("num_attention_heads", default=12),
        positions=config.size("max_position_embeddings", default=512),
    )
    types = config.size("type_vocab_size", default=2)
    rate = config.rate("hidden_dropout_prob", "attention_probs_dropout_prob")
    return encoder(name, shape, token_types=types, dropout=rate > 0)


def towers(read: Reader) -> dict[str, Family]:
    """Families with encoders; ``read`` reads the config of a language model inside another."""
    return {
        **dict.fromkeys(("bert", "roberta", "xlm-roberta"), _bert),
        **dict.fromkeys(("t5", "mt5", "umt5"), _t5),
        "llava": partial(_llava, read),
    }
