"""LLaVA: a tower of CLIP, SigLIP or Pixtral before a language model of any family [arXiv 2304.08485; 2410.07073].

LLaVA-NeXT and OneVision cut images into tiles, which count as images, and mark the ends of rows of patches.
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import GATED_RMS, VIT, patches_of, pixtral, siglip, square, vit_shape


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """A ViT with CLIP's defaults; with InternViT's RMS norms and normed queries and keys if the config says so."""
    bias = around.flag("multimodal_projector_bias", default=True)
    steps = (ProjectorStep("mlp", hidden, inner=hidden, bias=bias),)
    kind = vision.text("model_type")
    if kind == "pixtral":
        return Vision(*pixtral(vision, around), GATED_RMS, steps)
    if kind.startswith("siglip"):
        return Vision(*siglip(vision, around), VIT, steps, end_norm="layer")
    shape = vit_shape(vision, hidden=1024, layers=24, heads=16)
    side = square(vision, "image_size", default=336) // square(vision, "patch_size", default=14)
    patches = patches_of(
        vision.having({"image_size": 336}, unless_given=True), around, fixed=True, side=14, bias=False,
        positions=side * side + 1, classes=1, norm="layer",
    )  # fmt: skip
    style = replace(
        VIT,
        norm="rms" if vision.text("norm_type").startswith("rms") else "layer",
        qkv_bias=vision.flag("qkv_bias", default=True),
        qk_norm="full" if vision.flag("qk_normalization", default=False) else "",
    )
    return Vision(patches, shape, style, steps, end_norm=style.norm)


def _tiled(vision: Config, around: Config, hidden: int) -> Vision:
    return replace(_tower(vision, around, hidden), marks=1)


def _one_vision(vision: Config, around: Config, hidden: int) -> Vision:
    around.data.get("vision_aspect_ratio")  # how many tiles there are at most
    return _tiled(vision.having(SIGLIP, unless_given=True), around, hidden)


SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26,
    "num_attention_heads": 16, "image_size": 384, "patch_size": 14,
}  # fmt: skip
"""The tower of OneVision where a config says nothing of it."""
SMALL = {
    "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "image_size": 28, "intermediate_size": 128,
    "patch_size": 14,
}  # fmt: skip
CLIP = {"vision_config": SMALL, "text_config": TINY}
FAMILIES = (
    vision_family("llava", _tower, "llama", tiny=CLIP, either=True),
    vision_family("llava_next", _tiled, "llama", tiny=CLIP),
    vision_family(
        "llava_onevision",
        _one_vision,
        "qwen2",
        tiny={**CLIP, "vision_config": {**SMALL, "model_type": "siglip_vision_model", "vision_use_head": False}},
        either=True,
    ),
)
