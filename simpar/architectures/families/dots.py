"""dots.llm1: DeepSeek-V3's routing behind plain attention with normed heads; late layers may have windows."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import (
    ATTENTION_BIAS,
    Windows,
    llama_shape,
    routed_in_groups,
    style_of,
    windows_of,
    with_experts,
)
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.weights import LLAMA, ROUTER_BIAS


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, ffn="moe_intermediate_size")
    shared = config.optional_size("n_shared_experts")
    dense = config.optional_size("first_k_dense_replace")
    mixture = routed_in_groups(config, shared=shared, router_bias=True)
    layers = tuple(
        LayerVariant(window, experts=layer >= dense) for layer, window in enumerate(_windows(config, shape.layers))
    )
    full = with_experts(shape, mixture, ffn=config.size("intermediate_size") if dense else 0)
    return build(name, full, style_of(config, Style(qk_norm="head"), ATTENTION_BIAS), layers=layers)


def _windows(config: Config, layers: int) -> Windows:
    """From layer ``max_window_layers`` on, or as ``layer_types`` says."""
    first = config.size("max_window_layers", default=62)
    if config.data.get("sliding_window", 0) is None:
        return (None,) * layers
    if config.data.get("layer_types") is not None:
        return windows_of(config.having({"sliding_window": 4096}, unless_given=True), layers, default=True)
    window = config.size("sliding_window", default=4096)
    return tuple(window if layer >= first else None for layer in range(layers))


FAMILIES = (
    ModelFamily(
        "dots1",
        _read,
        Details(
            norm_eps=0.000001, gating=Gating("sigmoid", normalised=False, bias="chooses", pairs=True)
        ),
        LLAMA.changed(tensors=ROUTER_BIAS),
        {
            **TINY, "num_hidden_layers": 3, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
            "moe_intermediate_size": 16, "first_k_dense_replace": 1, "max_window_layers": 2, "sliding_window": 8,
        },
    ),
)  # fmt: skip
