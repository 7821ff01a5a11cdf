"""LFM2, dense and with experts: short convolutions in most layers, attention with normed heads in some."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import llama_shape, mark_unbuilt, style_of, with_experts
from simpar.architectures.short_convolution import ShortConvolution
from simpar.architectures.transformer import LayerVariant, Shape, Style, build
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, patches_of, vit_shape
from simpar.errors import UserError

CONVOLUTIONS = "short convolutions in the place of attention"
UNUSED = ("conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_dim", "block_mlp_init_scale", "num_heads")
"""Fields of released configs beside those that say the same."""
STYLE = Style(tied=True, qk_norm="head")
ROPE = Positions(Rope(1_000_000.0))


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(
        config, kv_heads=8, ffn="block_ff_dim" if config.data.get("block_ff_dim") else "intermediate_size"
    )
    return _build(config, name, _with_width(config, shape), (False,) * shape.layers)


def _with_width(config: Config, shape: Shape) -> Shape:
    """The MLP has two thirds of the width, times a factor, rounded up to a multiple, unless the config says not to."""
    multiple = config.size("block_multiple_of", default=256)
    factor = config.number("block_ffn_dim_multiplier", default=1.0)
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return shape
    width = int(factor * int(2 * shape.ffn / 3))
    return replace(shape, ffn=-(-width // multiple) * multiple)


def _read_sparse(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=8)
    dense = config.data.get("num_dense_layers", 2)
    if not isinstance(dense, int) or not 0 <= dense <= shape.layers:
        raise UserError(f"{config.source}: num_dense_layers = {dense!r}: allowed: 0 to {shape.layers}")
    mixture = Mixture(
        config.size("num_experts", default=32), config.size("num_experts_per_tok", default=4),
        config.size("moe_intermediate_size", default=1792), router_bias=config.flag("use_expert_bias", default=True),
    )  # fmt: skip
    full = with_experts(shape, mixture, ffn=shape.ffn if dense else 0)
    return _build(config, name, full, tuple(layer >= dense for layer in range(shape.layers)))


def _build(config: Config, name: str, shape: Shape, experts: tuple[bool, ...]) -> ModelGraph:
    """Layers whose mixers ``layer_types`` or ``full_attn_idxs`` say. Raises UserError."""
    if shape.heads * shape.head_dim != shape.hidden:
        raise UserError(f"{config.source}: head_dim = {shape.head_dim}: allowed: hidden_size / num_attention_heads")
    kinds, listed = config.data.get("layer_types"), config.data.get("full_attn_idxs")
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != shape.layers):
        raise UserError(f"{config.source}: layer_types = {kinds!r}: allowed: one for each of {shape.layers} layers")
    at = range(shape.layers) if listed is None else listed
    attends = [layer in at for layer in range(shape.layers)] if kinds is None else [kind != "conv" for kind in kinds]
    tied = config.flag("tie_embedding", default=True)
    style = style_of(config.having({"tie_word_embeddings": tied}, unless_given=True), STYLE)
    layers = tuple(
        LayerVariant(convolves=not own, experts=routed) for own, routed in zip(attends, experts, strict=True)
    )
    convolution = ShortConvolution(
        config.size("conv_L_cache", default=3), bias=config.flag("conv_bias", default=False)
    )  # fmt: skip
    graph = build(name, replace(shape, convolution=convolution), style, layers=layers)
    for unused in UNUSED:
        config.data.get(unused)
    return mark_unbuilt(graph, CONVOLUTIONS)


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """SigLIP 2's tower for images of any size; 2 x 2 patches side by side, normed, through an MLP."""
    merge = around.size("downsample_factor", default=2)
    patches = patches_of(vision, around, merge=merge, positions=vision.size("num_patches", default=256))
    shape = vit_shape(vision, hidden=768, layers=12, heads=12, ffn=3072)
    bias, wide = around.flag("projector_bias", default=True), shape.hidden * patches.merged
    normed = around.flag("projector_use_layernorm", default=True)
    steps = (
        *([ProjectorStep("norm", wide)] if normed else []),
        ProjectorStep("mlp", hidden, inner=around.size("projector_hidden_size", default=2560), bias=bias),
    )
    return Vision(patches, shape, VIT, steps, end_norm="layer")


TINY_CONVOLUTIONS = {**TINY, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
FAMILIES = (
    ModelFamily("lfm2", _read, Details(positions=ROPE), None, {**TINY_CONVOLUTIONS, "block_multiple_of": 16}),
    ModelFamily(
        "lfm2_moe",
        _read_sparse,
        Details(positions=ROPE, gating=Gating("sigmoid", bias="chooses")),
        None,
        {
            **TINY_CONVOLUTIONS, "num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
    vision_family(
        "lfm2_vl",
        _tower,
        "lfm2",
        {
            "text_config": {**TINY_CONVOLUTIONS, "block_multiple_of": 16},
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_patches": 16, "vision_use_head": False,
            },
            "projector_hidden_size": 24,
        },
    ),
)  # fmt: skip
