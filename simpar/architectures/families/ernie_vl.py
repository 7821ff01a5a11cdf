"""ERNIE 4.5 with vision: in a layer, experts of text beside narrower ones of images, each for tokens of its own kind.

A token chooses among as many experts of its kind, by a router of that kind; two shared experts read all tokens [Baidu
2025, ERNIE 4.5 technical report, section 2.1; transformers, models/ernie4_5_vl_moe]. What tokens of both kinds send and
get back is one exchange here. The tower's projector takes 2 x 2 patches, of two frames or of an image twice.
"""

from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY, ModelFamily, Reader
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.products import TOKENS
from simpar.architectures.vision import VISUAL, ProjectorStep, Vision
from simpar.architectures.vision_reading import TOWERS, VIT, patches_of, vit_shape
from simpar.errors import UserError

SEEN: Size = term("batch", "visual.seq", "topk", "load")
"""Routed copies of visual tokens; those of text are the others."""
WIDTH = "vision.expert_ffn"
COUNT = "vision.experts"
PAIRS = ("moe_num_experts", "moe_layer_start_index", "moe_layer_end_index")
"""Fields of released configs with a value for text and one for images, of which the first is read."""
RELEASED = (
    "spatial_conv_size", "temporal_conv_size", "pixel_hidden_size", "im_patch_id", "sinkhorn_2gate", "moe_capacity",
    "moe_gate", "moe_use_aux_free", "moe_multimodal_dispatch_use_allgather", "modality_detach", "compression_ratio",
    "freq_allocation", "rope_3d", "images_per_sequence", "patches_per_image",
)  # fmt: skip
"""Fields of released configs that no size depends on, or that say again what a tower has."""
OF_IMAGES = ("router", "expert_up", "expert_activation", "expert_down")


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    merge = vision.size("spatial_merge_size", default=around.size("spatial_conv_size", default=2))
    frames = vision.size("temporal_merge_size", default=around.size("temporal_conv_size", default=2))
    vision.data.get("embed_dim")  # as hidden_size
    patches = patches_of(vision, around, side=14, merge=merge, bias=False)
    ffn = round(vision.size("hidden_size", default=1280) * vision.number("mlp_ratio", default=4))
    shape = vit_shape(vision, hidden=1280, layers=32, heads=16, ffn=ffn)
    wide = shape.hidden * merge**2
    steps = (
        ProjectorStep("mlp", wide, inner=wide), ProjectorStep("norm", wide),
        ProjectorStep("conv", wide, reads=frames * wide), ProjectorStep("linear", wide), ProjectorStep("norm", wide),
        ProjectorStep("linear", hidden), ProjectorStep("norm", hidden, norm="rms"),
    )  # fmt: skip
    return Vision(patches, shape, replace(VIT, rotary=True), steps, end_norm="layer")


def _read(config: Config, name: str, read_text: Reader) -> ModelGraph:
    inner = {key: value for key, value in _text(config, name).items() if key != "model_type"}
    widths = inner.get("moe_intermediate_size") or [1536, 512]
    if not isinstance(widths, list) or len(widths) != 2 or not all(isinstance(each, int) for each in widths):
        raise UserError(
            f"{name}: moe_intermediate_size = {widths!r}: allowed: two widths, of text's experts and images'"
        )
    inner |= {"moe_intermediate_size": widths[0], **_sparse_from(inner, name)}
    graph: ModelGraph = BASE.read(config.having({"text_config": inner}), name, read_text)
    if "visual.seq" not in graph.dims:
        return graph
    dims = {**graph.dims, WIDTH: widths[1], COUNT: graph.dims["experts"]}
    blocks = {key: _with_experts_of_images(block) for key, block in graph.blocks.items()}
    return replace(graph, dims=dims, blocks=blocks)


def _text(config: Config, name: str) -> dict[str, Any]:
    """The fields of the language model: a section, or those of released configs, which stand beside the tower's.

    Released ones have lists of what text's experts have and images' have. Raises UserError where they differ.
    """
    if config.mapping("text_config") is not None:
        return dict(config.mapping("text_config") or {})
    inner = {key: value for key, value in config.data.items() if key not in TOWERS}
    for field in inner:
        config.data.get(field)
    experts = inner.get("moe_num_experts")
    if isinstance(experts, list) and len({*experts}) != 1:
        raise UserError(f"{name}: moe_num_experts = {experts!r}: allowed: as many of text as of images")
    pairs = {key: inner[key][0] for key in PAIRS if isinstance(inner.get(key), list) and inner[key]}
    return {**{key: value for key, value in inner.items() if key not in RELEASED}, **pairs}


def _sparse_from(text: dict[str, object], name: str) -> dict[str, int]:
    """From which layer on there are experts, where a list says it. Raises UserError."""
    kinds = text.pop("mlp_layer_types", None)
    if kinds is None:
        return {}
    first = kinds.index("sparse") if isinstance(kinds, list) and "sparse" in kinds else -1
    if not isinstance(kinds, list) or first < 0 or set(kinds[first:]) != {"sparse"}:
        raise UserError(f"{name}: mlp_layer_types = {kinds!r}: allowed: dense layers, then sparse ones")
    return {"moe_layer_start_index": first}


def _with_experts_of_images(block: Block) -> Block:
    """The block with a second router and second products, each for the rows of its kind of token."""
    if all(op.kind != "router" for op in block.operators):
        return block
    images = {op.name: _of_images(op) for op in block.operators if op.name in OF_IMAGES}
    result: list[Operator] = []
    for op in block.operators:
        if op.name == "dispatch":
            op = replace(op, inputs=(*op.inputs, images["router"].name))
        elif op.name == "combine":
            op = replace(op, inputs=(*op.inputs, images["expert_down"].name))
        elif op.name in images:
            op = replace(op, rows=_without(op.rows))
        result.append(op)
        if op.name in images:
            result.append(images[op.name])
    return replace(block, operators=tuple(result))


def _without(rows: Size) -> Size:
    """The rows that are not those of visual tokens."""
    seen = VISUAL if rows == TOKENS else SEEN
    return (*rows, *((-times, names) for times, names in seen))


def _of_images(op: Operator) -> Operator:
    """The operator for visual tokens, with weights of its own."""
    named = {name: f"vision_{name}" for name in OF_IMAGES}
    reads, keeps = (tuple(named.get(name, name) for name in each) for each in (op.inputs, op.saves))
    weights = tuple(
        Weight(f"vision_{weight.name}", _narrow(weight.size), weight.kind, weight.trainable) for weight in op.weights
    )
    return replace(
        op, name=named[op.name], rows=VISUAL if op.rows == TOKENS else SEEN, columns=_narrow(op.columns),
        contraction=_narrow(op.contraction), inputs=reads, saves=keeps, weights=weights,
    )  # fmt: skip


def _narrow(size: Size) -> Size:
    """A size with the width and the number of experts of images."""
    other = {"expert_ffn": WIDTH, "experts": COUNT}
    return tuple((times, tuple(other.get(name, name) for name in names)) for times, names in size)


BASE = vision_family(
    "ernie4_5_vl_moe",
    _tower,
    "ernie4_5_moe",
    {
        "text_config": {
            **TINY, "num_hidden_layers": 3, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": [16, 8],
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0, "mrope_section": [1, 1, 2]},
        },
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "depth": 2, "num_heads": 4},
    },
)  # fmt: skip
FAMILIES: tuple[ModelFamily, ...] = (replace(BASE, read=_read, aliases=("ernie4_5_moe_vl",)),)
"""The second is what released configs are called."""
