"""Llama 4: attention in chunks, every fourth layer without positions; experts in every ``interleave``-th layer."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import experts_of, llama_shape, mark_unbuilt, style_of, with_experts
from simpar.architectures.transformer import LayerVariant, build
from simpar.architectures.weights import LLAMA, Packing

BARE_NORM = "norms of queries and keys without weights"


def _read(config: Config, name: str) -> ModelGraph:
    shape, width = llama_shape(config), config.size("intermediate_size")
    mixture = experts_of("num_local_experts", topk=1, shared_ffn=width)(config)
    step = config.size("interleave_moe_layer_step", default=1)
    every = config.size("no_rope_layer_interval", default=4)
    chunk = config.size("attention_chunk_size", default=8192)
    layers = [
        LayerVariant(chunk, chunked=True) if layer % every else LayerVariant(rotary=False)
        for layer in range(1, shape.layers + 1)
    ]
    full = with_experts(shape, mixture, ffn=config.size("intermediate_size_mlp") if step > 1 else 0)
    graph = build(
        name, full, style_of(config),
        layers=tuple(replace(layer, experts=number % step == 0) for number, layer in enumerate(layers, 1)),
    )  # fmt: skip
    return mark_unbuilt(graph, BARE_NORM) if config.flag("use_qk_norm", default=True) else graph


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
    },
)  # fmt: skip
FAMILIES = (TEXT, replace(TEXT, model_type="llama4", weights=None))
