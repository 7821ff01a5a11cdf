"""LLaVA: a vision tower before a language model of any family [arXiv 2304.08485]."""

from collections.abc import Mapping
from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY, ModelFamily, Reader
from simpar.architectures.graph import ModelGraph
from simpar.architectures.towers import Vision, before_language_model
from simpar.architectures.transformer import Shape, Style
from simpar.errors import UserError

CHANNELS = 3


def _read(config: Config, name: str, read: Reader) -> ModelGraph:
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
        raise UserError(f"{config.source}: num_attention_heads = {heads} does not divide hidden_size = {hidden}")
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


FAMILIES = (
    ModelFamily(
        "llava",
        _read,
        None,
        weights=None,
        tiny={
            "vision_config": {
                "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "image_size": 28,
                "patch_size": 14,
            },
            "text_config": {"model_type": "llama", **TINY},
        },
        nested=True,
    ),
)  # fmt: skip
