"""Qwen 2, 2.5 and 3 with vision: patches of two frames, 2 x 2 of which become a token, whatever an image's size.

Qwen 2.5's tower has windows and gated MLPs [arXiv 2502.13923]; Qwen 3's adds features of three of its layers behind the
first layers of the language model [arXiv 2511.21631], Qwen 3.5's does not. dots.ocr has a tower of its own before
Qwen 2.5 [arXiv 2512.02498].
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.transformer import Style
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, check_width, merger, patches_of, vit_shape

ROTARY = replace(VIT, rotary=True)
GATED = Style(qkv_bias=True, output_bias=True, mlp_bias=True)


def _tower_2(vision: Config, around: Config, hidden: int) -> Vision:
    merge = vision.size("spatial_merge_size", default=2)
    patches = patches_of(
        vision, around, side=14, frames=vision.size("temporal_patch_size", default=2), merge=merge, bias=False
    )
    width = vision.size("embed_dim", default=1280)
    check_width(vision, "hidden_size", hidden)
    ffn = int(width * vision.number("mlp_ratio", default=4))
    shape = vit_shape(vision, hidden=1280, layers=32, heads=16, ffn=ffn, width="embed_dim")
    steps = merger(width * merge**2, hidden, norm=ProjectorStep("norm", width))
    return Vision(patches, shape, ROTARY, steps)


def tower_2_5(vision: Config, around: Config, hidden: int) -> Vision:
    """Qwen 2.5's tower, with windows in most layers."""
    merge = vision.size("spatial_merge_size", default=2)
    frames = vision.size("temporal_patch_size", default=2)
    patches = patches_of(vision, around, side=14, frames=frames, merge=merge, bias=False)
    shape = vit_shape(vision, hidden=3584, layers=32, heads=16, ffn=3420)
    check_width(vision, "out_hidden_size", hidden)
    seen = (vision.size("window_size", default=112) // vision.size("patch_size", default=14)) ** 2
    listed = vision.layers("fullatt_block_indexes")
    full = (7, 15, 23, 31) if listed is None else listed
    windows = tuple(None if at in full else seen for at in range(shape.layers))
    steps = merger(shape.hidden * merge**2, hidden, norm=ProjectorStep("norm", shape.hidden, norm="rms"))
    return Vision(patches, shape, GATED, steps, windows)


def tower_3(vision: Config, around: Config, hidden: int, taps: tuple[int, ...] = ()) -> Vision:
    """Qwen 3's tower: positions are learned and rotary."""
    merge = vision.size("spatial_merge_size", default=2)
    patches = patches_of(
        vision, around, frames=vision.size("temporal_patch_size", default=2), merge=merge,
        positions=vision.size("num_position_embeddings", default=2304),
    )  # fmt: skip
    shape = vit_shape(vision, hidden=1152, layers=27, heads=16, ffn=4304)
    check_width(vision, "out_hidden_size", hidden)
    width = shape.hidden * merge**2
    steps = merger(width, hidden, norm=ProjectorStep("norm", shape.hidden))
    tapped = merger(width, hidden, norm=ProjectorStep("norm", width))
    return Vision(patches, shape, ROTARY, steps, taps=taps, tap_projector=tapped)


def tower_stacked(vision: Config, around: Config, hidden: int) -> Vision:
    """Qwen 3's tower with features of three of its layers, or of those that the config lists."""
    listed = vision.layers("deepstack_visual_indexes", vision.size("depth", default=27))
    return tower_3(vision, around, hidden, (8, 16, 24) if listed is None else listed)


def _tower_dots(vision: Config, around: Config, hidden: int) -> Vision:
    """dots.ocr's tower: gated MLPs, norms behind patches and at its end."""
    merge = vision.size("spatial_merge_size", default=2)
    frames = vision.size("temporal_patch_size", default=1)
    patches = patches_of(vision, around, side=14, frames=frames, merge=merge, norm="rms")
    shape = vit_shape(vision, hidden=1536, layers=42, heads=12, ffn=4224, width="embed_dim")
    check_width(vision, "hidden_size", hidden)
    bias = vision.flag("use_bias", default=False)
    style = Style(qkv_bias=bias, output_bias=bias, mlp_bias=bias)
    steps = merger(shape.hidden * merge**2, hidden, norm=ProjectorStep("norm", shape.hidden))
    return Vision(patches, shape, style, steps, end_norm="rms" if vision.flag("post_norm", default=True) else "")


TINY_3 = {
    "hidden_size": 32, "intermediate_size": 48, "depth": 3, "num_heads": 4, "num_position_embeddings": 16,
    "out_hidden_size": 32,
}  # fmt: skip
STACKED = {**TINY_3, "deepstack_visual_indexes": [0, 1]}
MIXED = {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
MIXERS = {
    "num_hidden_layers": 4, "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
FAMILIES = (
    vision_family(
        "qwen2_vl",
        _tower_2,
        "qwen2_vl_text",
        tiny={"text_config": TINY, "vision_config": {"embed_dim": 32, "depth": 2, "num_heads": 4, "hidden_size": 32}},
        either=True,
    ),
    vision_family(
        "qwen2_5_vl",
        tower_2_5,
        "qwen2_5_vl_text",
        tiny={
            "text_config": TINY,
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "depth": 2, "num_heads": 4, "out_hidden_size": 32,
                "fullatt_block_indexes": [1],
            },
        },
        either=True,
    ),
    vision_family(
        "dots_ocr",
        _tower_dots,
        "qwen2",
        tiny={
            **TINY,
            "vision_config": {
                "embed_dim": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4,
            },
        },
    ),
    vision_family(
        "qwen3_vl",
        tower_stacked,
        "qwen3_vl_text",
        tiny={"text_config": {**TINY, "head_dim": 8}, "vision_config": STACKED},
    ),
    vision_family(
        "qwen3_vl_moe",
        tower_stacked,
        "qwen3_vl_moe_text",
        tiny={"text_config": {**TINY, "head_dim": 8, **MIXED}, "vision_config": STACKED},
    ),
    vision_family(
        "qwen3_5", tower_3, "qwen3_5_text", {"text_config": {**TINY, **MIXERS}, "vision_config": TINY_3}
    ),
    vision_family(
        "qwen3_5_moe",
        tower_3,
        "qwen3_5_moe_text",
        {
            "text_config": {**TINY, **MIXERS, **MIXED, "shared_expert_intermediate_size": 24},
            "vision_config": TINY_3,
        },
    ),
)  # fmt: skip
