"""Ovis 2: AIMv2's tower, whose features become probabilities of visual words that mix rows of a table [2405.20797]."""

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.transformer import Style
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import check_width, patches_of, square, vit_shape


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """A gated ViT; a product with visual words, a norm and a softmax over them, and a product with their table."""
    check_width(around, "hidden_size", hidden)
    around.data.get("vocab_size")  # the language model's, which text_config says
    vision.data.get("tokenize_function")  # a softmax, or one that its gradient goes through alike
    side = square(vision, "image_size", default=224) // square(vision, "patch_size", default=14)
    patches = patches_of(
        vision.having({"image_size": 224}, unless_given=True), around, fixed=True, side=14,
        merge=vision.size("hidden_stride", default=1), positions=side * side, norm="rms",
    )  # fmt: skip
    biased = vision.flag("qkv_bias", default=False)
    style = Style(qkv_bias=biased, output_bias=biased, mlp_bias=vision.flag("mlp_bias", default=False), rotary=False)
    words = vision.size("vocab_size", default=16_384)
    made = words - vision.size("num_visual_indicator_tokens", default=5)
    steps = (
        ProjectorStep("linear", made, bias=False), ProjectorStep("norm", made), ProjectorStep("activation", made),
        ProjectorStep("conv", hidden, bias=False, reads=words),
    )  # fmt: skip
    shape = vit_shape(vision, hidden=1024, layers=24, heads=8, ffn=2816)
    return Vision(patches, shape, style, steps, end_norm="rms")


FAMILIES = (
    vision_family(
        "ovis2", _tower, "qwen2",
        {
            "text_config": {**TINY, "model_type": "qwen2"}, "hidden_size": 32, "vocab_size": 96,
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                "image_size": 56, "vocab_size": 64, "hidden_stride": 2, "qkv_bias": True,
            },
        },
        tied=True,
    ),
)  # fmt: skip
