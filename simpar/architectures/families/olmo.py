"""OLMo 1 to 3, OLMoE, FlexOlmo and OLMo Hybrid.

OLMo has norms without weights; since OLMo 2 norms follow attention and MLP, and queries and keys are normed as a whole
[arXiv 2501.00656, section 3]. OLMo 3 has windows in three layers of four. FlexOlmo is OLMo 2 with experts, of which a
token chooses most; OLMoE norms before its experts. OLMo Hybrid has linear attention in three layers of four.
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Caps, Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.linear_attention import LinearShape
from simpar.architectures.reading import (
    ATTENTION_BIAS,
    LINEAR_ATTENTION,
    Windows,
    all_but_every,
    experts_of,
    linear_in,
    llama_like,
    llama_shape,
    mark_unbuilt,
    style_of,
    windows_in,
)
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.weights import POST_NORMS

NORMED_AFTER = Style(qk_norm="full", extra={"post_norm_only": True})


def _read(config: Config, name: str) -> ModelGraph:
    graph = llama_like(Style(norm="none"))(config, name)
    return replace(graph, details=Details(caps=Caps(projections=config.optional("clip_qkv"))))


def _windows(config: Config, layers: int) -> Windows:
    return windows_in(config, layers, all_but_every(config, layers, default=4), default=4096)


def _read_hybrid(config: Config, name: str) -> ModelGraph:
    """Layers of linear attention have their norms before both branches, those of attention behind them."""
    shape = llama_shape(config)
    usual = all_but_every(config, shape.layers, default=4)
    linear = linear_in(config, usual if not all(usual) else [*usual[:-1], False])
    rope = config.mapping("rope_parameters")
    rotary = rope is None or rope.get("rope_theta") is not None
    layers = tuple(LayerVariant(linear=each, rotary=each or rotary) for each in linear)
    heads = config.size("linear_num_value_heads", default=shape.heads)
    key_heads = config.size("linear_num_key_heads", default=shape.heads)
    key_dim = config.size("linear_key_head_dim", default=int(0.75 * shape.hidden / key_heads))
    sizes = LinearShape(
        "gated_delta", heads, key_heads, key_dim,
        config.size("linear_value_head_dim", default=2 * key_dim), config.size("linear_conv_kernel_dim", default=4),
    )  # fmt: skip
    for unused in ("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"):
        config.data.get(unused)
    config.data.get("linear_allow_neg_eigval")
    full = replace(shape, linear=sizes)
    before, behind = (
        build(name, full, style_of(config, style, ATTENTION_BIAS), layers=layers) for style in (Style(), NORMED_AFTER)
    )
    blocks = {each.name: (before if each.linear else behind).blocks[each.name] for each in layers}
    return mark_unbuilt(replace(behind, blocks=blocks), LINEAR_ATTENTION)


FAMILIES = (
    ModelFamily("olmo", _read, tiny=TINY),
    ModelFamily("olmo2", llama_like(NORMED_AFTER), weights=POST_NORMS, tiny=TINY),
    ModelFamily(
        "olmo3",
        llama_like(NORMED_AFTER, windows=_windows, biases=ATTENTION_BIAS),
        Details(positions=Positions(Rope(500_000.0), Rope(500_000.0))),
        POST_NORMS,
        {**TINY, "num_hidden_layers": 4, "sliding_window": 8, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    ModelFamily(
        "olmoe",
        llama_like(Style(qk_norm="full"), experts=experts_of("num_experts", "num_local_experts", experts=64, topk=8)),
        Details(gating=Gating(normalised=False)),
        tiny={**TINY, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    ModelFamily(
        "flex_olmo",
        llama_like(
            NORMED_AFTER,
            biases=ATTENTION_BIAS,
            experts=experts_of("num_experts", "num_local_experts", experts=7, topk=5),
        ),
        Details(norm_eps=0.000001, positions=Positions(Rope(500_000.0)), gating=Gating(normalised=False)),
        POST_NORMS,
        {**TINY, "num_experts": 4, "num_experts_per_tok": 3},
    ),
    ModelFamily("olmo_hybrid", _read_hybrid, Details(norm_eps=0.000001), None, {**TINY, "num_hidden_layers": 4}),
)
