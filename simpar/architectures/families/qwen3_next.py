"""Qwen 3-Next and Qwen 3.5: three layers of gated DeltaNet for one of gated attention, dense and with experts."""

from dataclasses import replace
from functools import partial

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.qwen2 import experts_in, with_shared_expert
from simpar.architectures.graph import ModelGraph
from simpar.architectures.linear_attention import LinearShape
from simpar.architectures.reading import (
    ATTENTION_BIAS,
    ATTENTION_GATES,
    LINEAR_ATTENTION,
    all_but_every,
    linear_in,
    llama_shape,
    mark_unbuilt,
    style_of,
    with_experts,
)
from simpar.architectures.transformer import LayerVariant, Style, build

STYLE = Style(qk_norm="head", extra={"attention_gate": True})
DENSE = Details(norm_eps=0.000001, norm_offset=1.0, positions=Positions(Rope(fraction=0.25)))
NEXT = replace(DENSE, gating=Gating(normalised=True))
TINY_DENSE = {
    **TINY, "num_hidden_layers": 4, "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "full_attention_interval": 4,
}  # fmt: skip
TINY_SPARSE = {
    **TINY_DENSE, "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
    "num_experts_per_tok": 2,
}  # fmt: skip


def _linear(config: Config) -> LinearShape:
    return LinearShape(
        "gated_delta",
        heads=config.size("linear_num_value_heads", default=32),
        key_heads=config.size("linear_num_key_heads", default=16),
        key_dim=config.size("linear_key_head_dim", default=128),
        value_dim=config.size("linear_value_head_dim", default=128),
        conv=config.size("linear_conv_kernel_dim", default=4),
    )


def _read(config: Config, name: str, experts: int = 0, topk: int = 0) -> ModelGraph:
    """Dense, or with ``experts`` of which a token uses ``topk``, where the config does not say how many."""
    width = "moe_intermediate_size" if experts else "intermediate_size"
    shape = llama_shape(config, kv_heads=2 if experts else 4, head_dim=256, ffn=width)
    linear = linear_in(config, all_but_every(config, shape.layers, "full_attention_interval", default=4))
    routed = experts_in(config, shape.layers) if experts else [False] * shape.layers
    if experts:
        mixture = with_shared_expert(config, experts=experts, topk=topk)
        shape = with_experts(shape, mixture, ffn=0 if all(routed) else config.size("intermediate_size"))
    layers = [LayerVariant(linear=own, experts=wide) for own, wide in zip(linear, routed, strict=True)]
    layers += [LayerVariant(experts=bool(experts), prediction=True)] * config.optional_size("mtp_num_hidden_layers")
    style = style_of(config, STYLE, ATTENTION_BIAS)
    graph = build(name, replace(shape, linear=_linear(config)), style, layers=tuple(layers))
    return mark_unbuilt(graph, LINEAR_ATTENTION, ATTENTION_GATES)


FAMILIES = (
    ModelFamily("qwen3_next", partial(_read, experts=512, topk=10), NEXT, None, TINY_SPARSE),
    ModelFamily("qwen3_5_text", _read, DENSE, None, {**TINY_DENSE, "mtp_num_hidden_layers": 1}),
    ModelFamily("qwen3_5_moe_text", partial(_read, experts=256, topk=8), NEXT, None, TINY_SPARSE),
)
