"""Step 3.5 and 3.7 Flash: experts behind dense layers, more heads in layers with a window, a gate on every head.

The vision tower of 3.7 ends with two convolutions that each halve both sides of an image, and its MLPs have a ratio to
its width [transformers, models/step3p7].
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import Block, ModelGraph, Operator, Size, term
from simpar.architectures.mixture import Mixture
from simpar.architectures.products import HIDDEN, product
from simpar.architectures.reading import llama_shape, mark_unbuilt, style_of, windows_in, with_experts
from simpar.architectures.transformer import QKV, LayerVariant, Shape, Style, build
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, patches_of, square, vit_shape
from simpar.errors import UserError

HEAD_GATES = "gates on heads, of which layers have different numbers"
STYLE = Style(qk_norm="head", extra={"attention_gate": True})
GATED: Size = (*QKV, *term("heads"))
"""Columns of the packed product: queries, keys, values, and a gate per head."""
RENAMED = {
    "moe_num_experts": "n_routed_experts", "moe_top_k": "num_experts_per_tok", "share_expert_dims": "share_expert_dim",
    "num_attention_groups": "num_key_value_heads",
}  # fmt: skip
UNUSED = (
    "swiglu_limits", "swiglu_limits_shared", "query_pre_attn_scalar", "moe_router_activation", "use_moe",
    "use_moe_router_bias", "moe_router_scaling_factor", "need_fp32_gate", "use_qk_norm", "use_head_wise_attn_gate",
    "gating", "norm_expert_weight", "att_impl_type", "moe_every_n_layer", "sink", "zero_centered",
    "partial_rotary_factors", "use_rope_layers", "yarn_only_types", "rope_theta",
)  # fmt: skip
"""Fields that no size depends on, or that say the same as others."""


def _read(config: Config, name: str) -> ModelGraph:
    given = {new: config.data.get(old) for old, new in RENAMED.items() if old in config.data}
    config = config.having(given)
    shape = llama_shape(config, kv_heads=8, head_dim=128, ffn="moe_intermediate_size")
    further = config.optional_size("num_nextn_predict_layers")
    kinds = config.data.get("layer_types")
    if isinstance(kinds, list):  # released configs list the layers that predict further tokens, too
        config = config.having({"layer_types": kinds[: shape.layers]})
    windows = windows_in(config, shape.layers, [False] * shape.layers, default=512)
    experts = experts_in(config, shape.layers, dense=range(3))
    mixture = Mixture(
        config.size("n_routed_experts", default=288), config.size("num_experts_per_tok", default=8),
        config.size("moe_intermediate_size", default=1280),
        shared_ffn=config.size("share_expert_dim", default=1280), router_bias=True,
    )  # fmt: skip
    full = with_experts(shape, mixture, ffn=0 if all(experts) else config.size("intermediate_size"))
    layers = [LayerVariant(window, experts=wide) for window, wide in zip(windows, experts, strict=True)]
    layers += [LayerVariant(experts=True, prediction=True)] * further
    heads = _windowed_heads(config, shape)
    for unused in UNUSED:
        config.data.get(unused)
    style = style_of(config, STYLE, {"attention_bias": ("qkv_bias", "output_bias")})
    graph = build(name, full, style, layers=tuple(layers))
    blocks = {key: _gated(block, "window" if "window" in key else "") for key, block in graph.blocks.items()}
    dims = {**graph.dims, "window.heads": heads} if any(windows) else graph.dims
    return mark_unbuilt(replace(graph, dims=dims, blocks=blocks), HEAD_GATES)


def _windowed_heads(config: Config, shape: Shape) -> int:
    """Query heads of layers with a window. Raises UserError."""
    other: Any = config.mapping("attention_other_setting") or {}
    heads = config.size("num_sliding_attention_heads", default=int(other.get("num_attention_heads", shape.heads)))
    if heads % shape.kv_heads:
        raise UserError(
            f"{config.source}: num_sliding_attention_heads = {heads}: allowed: multiples of {shape.kv_heads}"
        )
    return heads


def experts_in(config: Config, count: int, dense: Collection[int]) -> list[bool]:
    """Which layers have experts: those that a list says, or all but the ``dense`` ones. Raises UserError."""
    kinds, listed = config.data.get("mlp_layer_types"), config.data.get("moe_layers_enum")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) < count:
            raise UserError(f"{config.source}: mlp_layer_types = {kinds!r}: allowed: one for each of {count} layers")
        return [kind == "sparse" for kind in kinds[:count]]
    if listed is None:
        return [at not in dense for at in range(count)]
    words = listed.split(",") if isinstance(listed, str) else listed if isinstance(listed, list) else [""]
    chosen = [str(each).strip() for each in words]
    if not all(each.isdecimal() for each in chosen):
        raise UserError(
            f"{config.source}: moe_layers_enum = {listed!r}: allowed: numbers of layers, a list or with commas between"
        )
    return [str(at) in chosen for at in range(count)]


def _gated(block: Block, scope: str) -> Block:
    """The block in a scope, with a gate per head in the place of one per feature."""

    def changed(op: Operator) -> Operator:
        if op.name != "qkv":
            return op
        sizes = (product(HIDDEN, GATED), QKV)  # gates have no bias
        weights = tuple(replace(old, size=size) for old, size in zip(op.weights, sizes, strict=False))
        return replace(op, columns=GATED, weights=weights)

    return replace(block, operators=tuple(map(changed, block.operators)), scope=scope)


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    side = square(vision, "image_size", default=728) // square(vision, "patch_size", default=14)
    patches = patches_of(
        vision.having({"image_size": 728}, unless_given=True), around, fixed=True, side=14, merge=4, bias=False,
        positions=side * side, norm="layer",
    )  # fmt: skip
    width = vision.size("hidden_size", default=1536)
    wide = int(width * vision.number("mlp_ratio", default=8960 / 1536))
    shape = replace(vit_shape(vision, hidden=1536, layers=47, heads=16), ffn=wide)
    steps = (
        ProjectorStep("conv", 2 * width, reads=9 * width, rows=4),
        ProjectorStep("conv", 4 * width, reads=9 * 2 * width),
        ProjectorStep("linear", hidden, bias=around.flag("projector_bias", default=False)),
    )
    return Vision(patches, shape, replace(VIT, rotary=True), steps, layer_scale=True)


SPARSE = {
    **TINY, "head_dim": 8, "num_hidden_layers": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "share_expert_dim": 16, "num_sliding_attention_heads": 6, "sliding_window": 8,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
FAMILIES = (
    ModelFamily(
        "step3p5",
        _read,
        Details(positions=Positions(Rope()), gating=Gating("sigmoid", bias="chooses")),
        None,
        SPARSE,
    ),
    vision_family(
        "step3p7",
        _tower,
        "step3p5",
        {
            "text_config": SPARSE,
            "vision_config": {
                "hidden_size": 32, "mlp_ratio": 1.5, "num_hidden_layers": 2, "num_attention_heads": 4,
                "image_size": 112,
            },
        },
    ),
)  # fmt: skip
