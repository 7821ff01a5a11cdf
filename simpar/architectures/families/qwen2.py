"""Qwen 2 and 2.5, dense and with experts: Llama with biases of queries, keys and values."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import UNUSED_WINDOWS, llama_like, llama_shape, style_of, windows_of, with_experts
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.weights import LLAMA, Packing

BIASED = Style(qkv_bias=True)


def sparse(config: Config, name: str, style: Style, mixture: Mixture, **defaults: int) -> ModelGraph:
    """Qwen's decoder with experts in every ``decoder_sparse_step``-th layer, except those listed as dense."""
    shape = llama_shape(config, ffn="moe_intermediate_size", **defaults)
    experts = experts_in(config, shape.layers)
    ffn = 0 if all(experts) else config.size("intermediate_size")
    windows = windows_of(config, shape.layers, default=False) or (None,) * shape.layers
    layers = tuple(LayerVariant(window, experts=each) for window, each in zip(windows, experts, strict=True))
    return build(name, with_experts(shape, mixture, ffn=ffn), style, layers=layers)


def experts_in(config: Config, count: int) -> list[bool]:
    """Which of ``count`` layers have experts: every ``decoder_sparse_step``-th, except those listed as dense."""
    step, dense = config.size("decoder_sparse_step", default=1), config.data.get("mlp_only_layers") or []
    return [(layer + 1) % step == 0 and layer not in dense for layer in range(count)]


def with_shared_expert(config: Config, *, experts: int, topk: int) -> Mixture:
    """Routed experts, whose number and choice have defaults, beside a shared one with a gate."""
    return Mixture(
        config.size("num_experts", "num_local_experts", default=experts),
        config.size("num_experts_per_tok", default=topk),
        config.size("moe_intermediate_size"),
        shared_ffn=config.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def _read_sparse(config: Config, name: str) -> ModelGraph:
    mixture = with_shared_expert(config, experts=60, topk=4)
    return sparse(config, name, style_of(config, BIASED, {"qkv_bias": ("qkv_bias",)}), mixture)


FAMILIES = (
    ModelFamily("qwen2", llama_like(BIASED, windows=UNUSED_WINDOWS), Details(norm_eps=0.000001), tiny=TINY),
    ModelFamily(
        "qwen2_vl_text",
        llama_like(BIASED, windows=UNUSED_WINDOWS),
        Details(positions=Positions(Rope(1_000_000.0))),
        tiny=TINY,
        aliases=("qwen2_5_vl_text",),
        classes={"qwen2_vl_text": "", "qwen2_5_vl_text": ""},
    ),
    ModelFamily(
        "qwen2_moe",
        _read_sparse,
        Details(norm_eps=0.000001, gating=Gating(normalised=False)),
        LLAMA.changed(
            layer={
                "shared_gate": "mlp.shared_expert.gate_proj",
                "shared_up": "mlp.shared_expert.up_proj",
                "shared_down": "mlp.shared_expert.down_proj",
            },
            tensors={"shared_up.score": ("mlp.shared_expert_gate.weight", Packing.SAME)},
        ),
        tiny={
            **TINY,
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
            "num_experts_per_tok": 2,
        },
    ),
)
