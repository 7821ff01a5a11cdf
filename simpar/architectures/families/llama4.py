"""Llama 4: attention in chunks, every fourth layer without positions; experts in every n-th layer; a vision tower."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import (
    BARE_NORM,
    experts_of,
    layers_in,
    llama_shape,
    mark_unbuilt,
    style_of,
    with_experts,
)
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, check_width, patches_of, square, vit_shape
from simpar.architectures.weights import LLAMA, Packing
from simpar.errors import UserError


def _read(config: Config, name: str) -> ModelGraph:
    shape, width = llama_shape(config), config.size("intermediate_size")
    mixture = experts_of("num_local_experts", topk=1, shared_ffn=width)(config)
    layers = _layers(config, shape.layers)
    dense = not all(layer.experts for layer in layers)
    full = with_experts(shape, mixture, ffn=config.size("intermediate_size_mlp", default=16_384) if dense else 0)
    normed = config.flag("use_qk_norm", default=True)
    style = Style(qk_norm="bare", extra={"qk_norm_last": True}) if normed else Style()
    graph = build(name, full, style_of(config, style), layers=layers)
    return mark_unbuilt(graph, BARE_NORM) if normed else graph


def _layers(config: Config, count: int) -> tuple[LayerVariant, ...]:
    """Chunks, positions and experts by layer: as lists say, else every n-th. Raises UserError."""
    step, every = config.size("interleave_moe_layer_step", default=1), config.size("no_rope_layer_interval", default=4)
    usual = [at for at in range(count) if (at + 1) % step == 0]
    sparse = usual if config.data.get("moe_layers") is None else _numbers(config, "moe_layers", count)
    turns = [(at + 1) % every != 0 for at in range(count)]
    if config.data.get("no_rope_layers"):
        turns = [bool(each) for each in layers_in(config, count, "no_rope_layers", {1: 1, 0: 0}) or ()]
    chunks = layers_in(config, count, "layer_types", {"chunked_attention": True, "full_attention": False}) or turns
    if config.data.get("attention_chunk_size", 0) is None:
        chunks = [False] * count
    chunk = config.size("attention_chunk_size", default=8192)
    return tuple(
        LayerVariant(chunk if near else None, chunked=near, rotary=turned, experts=at in sparse)
        for at, (near, turned) in enumerate(zip(chunks, turns, strict=True))
    )


def _numbers(config: Config, field: str, count: int) -> list[int]:
    """Numbers of layers that a list holds. Raises UserError."""
    listed = config.data.get(field)
    if not isinstance(listed, list) or not {*map(str, listed)} <= {*map(str, range(count))}:
        raise UserError(f"{config.source}: {field} = {listed!r}: allowed: a list of layers from 0 to {count - 1}")
    return listed


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """A ViT with rotary positions; 2 x 2 patches side by side through an MLP and a product, without biases."""
    side = square(vision, "image_size", default=448) // square(vision, "patch_size", default=14)
    ratio = vision.number("pixel_shuffle_ratio", default=0.5)
    patches = patches_of(
        vision.having({"image_size": 448}, unless_given=True), around, fixed=True, side=14, bias=False,
        merge=round(1 / ratio), positions=side * side + 1, classes=1, norm="layer",
    )  # fmt: skip
    shape = vit_shape(vision, hidden=768, layers=34, heads=16, ffn=5632)
    inner, wide = vision.size("projector_input_dim", default=4096), vision.size("projector_output_dim", default=4096)
    for field in ("projector_input_dim", "vision_output_dim"):
        check_width(vision, field, wide, "projector_output_dim")
    check_width(vision, "intermediate_size", shape.hidden * patches.merged, f"what {patches.merged} patches have")
    steps = (ProjectorStep("mlp", wide, inner=inner, bias=False), ProjectorStep("linear", hidden, bias=False))
    return Vision(patches, shape, replace(VIT, rotary=True), steps, end_norm="layer")


TEXT = ModelFamily(
    "llama4_text",
    _read,
    Details(positions=Positions(Rope(500_000.0, interleaved=True)), gating=Gating("sigmoid_of_input")),
    LLAMA.changed(
        layer={
            "router": "feed_forward.router", "gate": "feed_forward.gate_proj", "up": "feed_forward.up_proj",
            "mlp_down": "feed_forward.down_proj", "shared_gate": "feed_forward.shared_expert.gate_proj",
            "shared_up": "feed_forward.shared_expert.up_proj",
            "shared_down": "feed_forward.shared_expert.down_proj",
        },
        tensors={
            "expert_up.weight": ("feed_forward.experts.gate_up_proj", Packing.EXPERT_HALVES_TRANSPOSED),
            "expert_down.weight": ("feed_forward.experts.down_proj", Packing.TRANSPOSED),
        },
    ),
    {
        **TINY, "head_dim": 8, "num_hidden_layers": 4, "num_local_experts": 4, "intermediate_size_mlp": 64,
        "interleave_moe_layer_step": 2,
    }, classes={"llama4_text": "Llama4ForCausalLM"})  # fmt: skip
FAMILIES = (
    TEXT,
    vision_family(
        "llama4",
        _tower,
        "llama4_text",
        tiny={
            "text_config": TEXT.tiny,
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                "image_size": 56, "projector_input_dim": 24, "projector_output_dim": 24, "vision_output_dim": 24,
            },
        },
    ),
)  # fmt: skip
