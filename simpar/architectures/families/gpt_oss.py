"""gpt-oss: windows in every other layer, attention sinks, biases everywhere, experts that read clamped inputs."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import ATTENTION_BIAS, llama_shape, style_of, windows_of, with_experts
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.weights import LLAMA, Packing
from simpar.errors import UserError

STYLE = Style(qkv_bias=True, output_bias=True, extra={"sinks": True})
YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, head_dim=64)
    mixture = Mixture(
        config.size("num_local_experts"), config.size("num_experts_per_tok", "experts_per_token", default=4),
        config.size("intermediate_size"), bias=True, router_bias=True, clamped=True,
    )  # fmt: skip
    for field, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if config.number(field, default=value) != value:
            raise UserError(f"{name}: {field} = {config.data[field]}: allowed: {value}, as published")
    window = config.size("sliding_window", default=128)
    listed = windows_of(config, shape.layers, default=True) if config.data.get("layer_types") else ()
    windows = listed or tuple(window if layer % 2 == 0 else None for layer in range(shape.layers))
    layers = tuple(LayerVariant(each, experts=True) for each in windows)
    return build(name, with_experts(shape, mixture), style_of(config, STYLE, ATTENTION_BIAS), layers=layers)


FAMILIES = (
    ModelFamily(
        "gpt_oss",
        _read,
        Details("quick_gelu", positions=Positions(Rope(150_000.0, scaling=YARN))),
        LLAMA.changed(
            layer={"router": "mlp.router"},
            tensors={
                "attention.sinks": ("self_attn.sinks", Packing.SAME),
                "expert_up.weight": ("mlp.experts.gate_up_proj", Packing.EXPERT_ALTERNATING),
                "expert_up.bias": ("mlp.experts.gate_up_proj_bias", Packing.EXPERT_ALTERNATING),
                "expert_down.weight": ("mlp.experts.down_proj", Packing.TRANSPOSED),
                "expert_down.bias": ("mlp.experts.down_proj_bias", Packing.SAME),
            },
        ),
        {**TINY, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
        activations={"silu": "quick_gelu"},
    ),
)
