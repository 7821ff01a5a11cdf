"""AFMoE (Trinity): gated attention, norms before and behind both branches, positions in layers with windows alone."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import (
    ATTENTION_GATES,
    all_but_every,
    llama_shape,
    mark_unbuilt,
    rotary_in_windows,
    style_of,
    windows_in,
    with_experts,
)
from simpar.architectures.transformer import Style, build
from simpar.errors import UserError

STYLE = Style(qk_norm="head", norms=4, extra={"attention_gate": True})
UNREAD = ("mup_enabled", "score_func", "route_norm", "n_group", "topk_group", "num_expert_groups", "num_limited_groups",
          "load_balance_coeff", "use_grouped_mm")  # fmt: skip
"""Scales and choices of experts, on which no size depends."""


def _read(config: Config, name: str) -> ModelGraph:
    if config.flag("attention_bias", default=False):
        raise UserError(f"{config.source}: attention_bias = true: allowed: false, gates of attention have none")
    shape = llama_shape(config, head_dim=128)
    width, count = config.size("moe_intermediate_size", default=1408), shape.layers
    mixture = Mixture(
        config.size("num_experts", default=64), config.size("num_experts_per_tok", default=6), width,
        shared_ffn=width * config.size("num_shared_experts", default=2), router_bias=True,
    )  # fmt: skip
    for field in UNREAD:
        config.data.get(field)
    usual = all_but_every(config, count, "global_attn_every_n_layers", default=4)
    windows = windows_in(config, count, usual, default=1024)
    dense = min(config.optional_size("num_dense_layers") if "num_dense_layers" in config.data else 1, count)
    layers = [replace(each, experts=at >= dense) for at, each in enumerate(rotary_in_windows(windows))]
    full = with_experts(shape, mixture, ffn=shape.ffn if dense else 0)
    return mark_unbuilt(build(name, full, style_of(config, STYLE), layers=tuple(layers)), ATTENTION_GATES)


FAMILIES = (
    ModelFamily(
        "afmoe",
        _read,
        Details(norm_eps=1e-5, gating=Gating("sigmoid", bias="chooses", pairs=True)),
        None,
        {
            **TINY, "num_hidden_layers": 4, "head_dim": 8, "sliding_window": 8, "num_experts": 8,
            "moe_intermediate_size": 16, "num_experts_per_tok": 2, "num_shared_experts": 1, "num_dense_layers": 1,
        },
    ),
)  # fmt: skip
