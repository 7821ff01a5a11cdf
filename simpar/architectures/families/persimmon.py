"""Persimmon: GPT's layers with rotary positions in half of a head's features, and LayerNorm of queries and keys."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import GPT_STYLE, HEAD_LAYER_NORM, llama_like, mark_unbuilt
from simpar.architectures.weights import LLAMA, QKV, Packing


def _read(config: Config, name: str) -> ModelGraph:
    style = replace(GPT_STYLE, rotary=True)
    normed = config.flag("qk_layernorm", default=True)
    if normed:
        style = replace(style, qk_norm="head", extra={"qk_norm_bias": True})
    graph = llama_like(style)(config.having({"num_key_value_heads": None}), name)  # the family has none
    return mark_unbuilt(graph, HEAD_LAYER_NORM) if normed else graph


FAMILIES = (
    ModelFamily(
        "persimmon",
        _read,
        Details("relu2", positions=Positions(Rope(fraction=0.5))),
        LLAMA.changed(
            layer={"o_proj": "self_attn.dense", "up": "mlp.dense_h_to_4h", "mlp_down": "mlp.dense_4h_to_h"},
            ends={"final_norm": "model.final_layernorm"},
            packed={QKV: ("self_attn.query_key_value", Packing.QKV_GROUPS)},
        ),
        {**{key: value for key, value in TINY.items() if key != "num_key_value_heads"}, "qk_layernorm": False},
    ),
)
