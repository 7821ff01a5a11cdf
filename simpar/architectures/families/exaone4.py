"""EXAONE 4, dense and with experts: normed heads; where some layers have windows, the others have no positions.

Dense versions have norms behind both branches, those with experts before them; 4.5 has Qwen 2.5's vision tower.
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.qwen_vl import tower_2_5
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import (
    all_but_every,
    llama_shape,
    rotary_in_windows,
    routed_in_groups,
    sparse_behind,
    style_of,
    windows_in,
    with_experts,
)
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.weights import LLAMA, POST_NORMS, Packing


def _layers(config: Config, count: int) -> tuple[LayerVariant, ...]:
    """Windows by layer: positions rotate in layers with a window, or in all where none has one."""
    config.data.get("sliding_window_pattern")  # asked for, because layer_types may state the same
    listed = config.data.get("layer_types") is not None
    if config.data.get("sliding_window", 0) is None:
        return (LayerVariant(),) * count
    usual = [] if listed else all_but_every(config, count, "sliding_window_pattern", default=4)
    return rotary_in_windows(windows_in(config, count, usual, default=4096))


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config)
    style = style_of(config, Style(qk_norm="head", extra={"post_norm_only": True}))
    return build(name, shape, style, layers=_layers(config, shape.layers))


def _read_sparse(config: Config, name: str) -> ModelGraph:
    config = config.having({"num_shared_experts": 1, "first_k_dense_replace": 1}, unless_given=True)
    shape = llama_shape(config, ffn="moe_intermediate_size")
    named = config.having({"n_routed_experts": config.size("num_experts", default=64)})
    mixture = routed_in_groups(named, shared=config.optional_size("num_shared_experts"), router_bias=True)
    experts = sparse_behind(config, shape.layers, config.optional_size("first_k_dense_replace"))
    config.data.get("is_moe_layer")  # the same in released configs
    pairs = zip(_layers(config, shape.layers), experts, strict=True)
    layers = [replace(layer, experts=wide) for layer, wide in pairs]
    layers += [LayerVariant(experts=True, prediction=True)] * config.optional_size("num_nextn_predict_layers")
    full = with_experts(shape, mixture, ffn=0 if all(experts) else config.size("intermediate_size"))
    return build(name, full, style_of(config, Style(qk_norm="head")), layers=tuple(layers))


TINY_WINDOWS = {**TINY, "num_hidden_layers": 4, "sliding_window": 8}
FAMILIES = (
    ModelFamily("exaone4", _read, weights=POST_NORMS, tiny=TINY_WINDOWS, aliases=("exaone4_5_text",),
        classes={"exaone4_5_text": ""},
    ),
    ModelFamily(
        "exaone_moe",
        _read_sparse,
        Details(gating=Gating("sigmoid", factor=2.5, bias="chooses", pairs=True)),
        LLAMA.changed(tensors={"router.bias": ("mlp.e_score_correction_bias", Packing.SAME)}),
        {
            **TINY_WINDOWS, "num_experts": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
            "num_shared_experts": 1, "num_nextn_predict_layers": 0,
        },
    ),
    vision_family(
        "exaone4_5",
        tower_2_5,
        "exaone4",
        {
            "text_config": {**TINY_WINDOWS, "model_type": "exaone4"},
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "depth": 2, "num_heads": 4, "num_key_value_heads": 2,
                "out_hidden_size": 32, "fullatt_block_indexes": [1],
            },
        },
    ),
)  # fmt: skip
