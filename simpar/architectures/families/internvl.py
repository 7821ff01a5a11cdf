"""InternVL: InternViT, with factors on its branches, before a language model of any family [arXiv 2312.14238]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, patches_of, square, vit_shape
from simpar.errors import UserError


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """InternViT; 2 x 2 patches side by side, normed, through an MLP as wide as the language model."""
    side = square(vision, "image_size", default=448) // square(vision, "patch_size", default=14)
    places = (side * side + 1) * vision.flag("use_absolute_position_embeddings", default=True)
    if vision.flag("use_mask_token", default=False):
        raise UserError(f"{vision.source}: use_mask_token = True: allowed: false, no patch is masked in training")
    patches = patches_of(
        vision.having({"image_size": 448}, unless_given=True), around, fixed=True, side=14,
        merge=round(1 / around.number("downsample_ratio", default=0.5)), positions=places, classes=1,
    )  # fmt: skip
    shape = vit_shape(vision, hidden=1024, layers=24, heads=16, ffn=4096)
    released = vision.flag("qkv_bias", default=False), vision.flag("qk_normalization", default=False)
    normed = vision.flag("use_qk_norm", default=released[1])
    style = replace(
        VIT,
        norm="rms" if vision.text("norm_type").startswith("rms") else "layer",
        qkv_bias=vision.flag("attention_bias", default=released[0]),
        qk_norm="full" if normed else "",
    )
    steps = (ProjectorStep("norm", shape.hidden * patches.merged), ProjectorStep("mlp", hidden, inner=hidden))
    end = "" if vision.flag("use_mean_pooling", default=True) else "layer"
    return Vision(patches, shape, style, steps, layer_scale=True, end_norm=end)


FAMILIES = (
    vision_family(
        "internvl",
        _tower,
        "qwen2",
        tiny={
            "text_config": {**TINY, "model_type": "qwen2"},
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                "image_size": [56, 56], "patch_size": [14, 14],
            },
            "tie_word_embeddings": False,
        },
        aliases=("internvl_chat",),
    ),
)  # fmt: skip
