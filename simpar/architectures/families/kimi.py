"""Kimi VL and K2.5: MoonViT before DeepSeek V3's kind of language model [arXiv 2504.07491]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.families.deepseek import TINY_LATENT
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.vision import Patches, ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, check_width, merger, patches_of, vit_shape

NAMES = {
    "vt_hidden_size": "hidden_size", "vt_num_hidden_layers": "num_hidden_layers", "vt_intermediate_size":
    "intermediate_size", "vt_num_attention_heads": "num_attention_heads", "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_width": "pos_emb_width", "init_pos_emb_time": "pos_emb_time",
}  # fmt: skip
"""Fields of released configs -> those of the configuration class."""


def moonvit_fields(vision: Config) -> Config:
    """The config with the names of the configuration class."""
    return vision.having({new: vision.data.get(old) for old, new in NAMES.items() if old in vision.data})


def moonvit_patches(vision: Config, around: Config, *, bias: bool = True) -> Patches:
    """Patches with learned positions, that of a frame not being learned; 2 x 2 become a token."""
    height, width = vision.size("pos_emb_height", default=64), vision.size("pos_emb_width", default=64)
    vision.data.get("pos_emb_time")
    merge = vision.data.get("merge_kernel_size") or [2, 2]
    return patches_of(vision, around, side=14, merge=int(merge[0]), positions=height * width, bias=bias)


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """MoonViT; 2 x 2 patches side by side through a norm of each and an MLP."""
    vision = moonvit_fields(vision)
    patches = moonvit_patches(vision, around)
    shape = vit_shape(vision, hidden=1152, layers=27, heads=16, ffn=4304)
    check_width(around, "projection_hidden_size", shape.hidden, "hidden_size of vision_config")
    steps = merger(shape.hidden * patches.merged, hidden, norm=ProjectorStep("norm", shape.hidden))
    return Vision(patches, shape, replace(VIT, rotary=True), steps, end_norm="layer")


FAMILIES = (
    vision_family(
        "kimi_k25",
        _tower,
        "deepseek_v3",
        tiny={
            "text_config": {**TINY_LATENT, "model_type": "deepseek_v3"},
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                "pos_emb_height": 4, "pos_emb_width": 4,
            },
            "projection_hidden_size": 32,
            "tie_word_embeddings": False,
        },
        aliases=("kimi_vl",),
    ),
)  # fmt: skip
