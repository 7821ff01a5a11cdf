"""MiniMax: seven layers of lightning attention for one of attention in Text-01 and M1, attention alone in M2.

M2 norms queries and keys as a whole and chooses among 256 experts by sigmoids and biases.
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.mixtral import NUMBERED_EXPERTS
from simpar.architectures.graph import ModelGraph
from simpar.architectures.linear_attention import LinearShape
from simpar.architectures.reading import (
    LINEAR_ATTENTION,
    experts_of,
    linear_in,
    llama_like,
    llama_shape,
    mark_unbuilt,
    style_of,
    with_experts,
)
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.weights import Packing


def _read_lightning(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=8)
    mixture = experts_of("num_local_experts", experts=8, topk=2)(config)
    listed = config.data.get("attn_type_list")  # as released: 1 is attention
    usual = [kind != 1 for kind in listed] if isinstance(listed, list) else [at % 2 == 1 for at in range(shape.layers)]
    layers = tuple(LayerVariant(linear=linear, experts=True) for linear in linear_in(config, usual))
    heads, width = shape.heads, shape.head_dim
    linear = LinearShape(
        "lightning", heads, heads, width, width, conv=0, chunk=config.size("block_size", default=256)
    )  # fmt: skip
    full = replace(with_experts(shape, mixture), linear=linear)
    return mark_unbuilt(build(name, full, style_of(config), layers=layers), LINEAR_ATTENTION)


FAMILIES = (
    ModelFamily(
        "minimax",
        _read_lightning,
        weights=None,
        aliases=("minimax_text_01", "minimax_m1"),
        tiny={**TINY, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    ModelFamily(
        "minimax_m2",
        llama_like(
            Style(qk_norm="full"),
            head_dim=128,
            kv_heads=8,
            experts=experts_of("num_local_experts", "num_experts", experts=256, topk=8, router_bias=True),
        ),
        Details(norm_eps=0.000001, positions=Positions(Rope(5_000_000.0)), gating=Gating("sigmoid", bias="chooses")),
        NUMBERED_EXPERTS.changed(tensors={"router.bias": ("block_sparse_moe.e_score_correction_bias", Packing.SAME)}),
        {**TINY, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4},
        classes={"minimax_m2": "MiniMaxM2ForCausalLM"},
    ),
)
