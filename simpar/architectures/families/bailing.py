"""Ling 1.5 and 2 (Bailing): experts behind dense layers; since 2, heads are normed and rotate in half [2510.22115].

Ring-linear 2 has lightning attention in all layers but every n-th [arXiv 2510.19338; SGLang, bailing_moe_linear].
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.linear_attention import LinearShape
from simpar.architectures.reading import (
    LINEAR_ATTENTION,
    all_but_every,
    dense_first,
    llama_shape,
    mark_unbuilt,
    routed_in_groups,
    style_of,
    with_experts,
)
from simpar.architectures.transformer import Style, build
from simpar.errors import UserError

UNUSED = (
    "norm_head", "norm_softmax", "score_function", "router_dtype", "moe_shared_expert_intermediate_size",
    "using_split_qkv_in_self_attention", "group_norm_size", "linear_backend", "linear_rope",
)  # fmt: skip
"""Fields of released configs that no size depends on, or that say the same as others."""
BIASES = {"use_qkv_bias": ("qkv_bias",), "use_bias": ("output_bias", "mlp_bias")}


def _read(config: Config, name: str, second: bool = True, linear: bool = False) -> ModelGraph:
    """``second``: the second version has normed heads and a bias that chooses experts, unless the config says not.

    ``linear``: all layers but every n-th have lightning attention.
    """
    shape = llama_shape(config, ffn="moe_intermediate_size")
    named = config.having({"n_routed_experts": config.size("num_experts")})
    mixture = routed_in_groups(
        named, shared=config.optional_size("num_shared_experts"),
        router_bias=config.flag("moe_router_enable_expert_bias", default=second),
    )  # fmt: skip
    ffn, layers = dense_first(config, shape.layers)
    normed = config.flag("use_qk_norm", default=second)
    style = style_of(config, Style(qk_norm="head" if normed else ""), BIASES)
    for unused in UNUSED:
        config.data.get(unused)
    full = with_experts(shape, mixture, ffn=ffn)
    if not linear:
        return build(name, full, style, layers=layers)
    if style.qkv_bias or style.output_bias or not normed or config.flag("linear_silu", default=False):
        raise UserError(f"{name}: allowed beside lightning attention: use_qk_norm, no biases, no linear_silu")
    far = all_but_every(config, shape.layers, "layer_group_size", default=1)
    near = [replace(layer, linear=at < shape.layers and far[at]) for at, layer in enumerate(layers)]
    sizes = LinearShape(
        "lightning", shape.heads, shape.heads, shape.head_dim, shape.head_dim, conv=0, chunk=CHUNK, rotated=True
    )
    return mark_unbuilt(build(name, replace(full, linear=sizes), style, layers=tuple(near)), LINEAR_ATTENTION)


CHUNK = 64
"""Tokens of a piece in the kernels of lightning attention of the released code."""
SPARSE = {
    **TINY, "head_dim": 8, "num_experts": 8, "num_shared_experts": 1, "moe_intermediate_size": 16,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
}  # fmt: skip
FAMILIES = (
    ModelFamily(
        "bailing_moe",
        lambda config, name: _read(config, name, second=False),
        Details(norm_eps=0.000001, positions=Positions(Rope(600_000.0))),
        None,
        {**SPARSE, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0},
    ),
    ModelFamily(
        "bailing_moe_v2",
        _read,
        Details(
            norm_eps=0.000001, positions=Positions(Rope(600_000.0, 0.5)),
            gating=Gating("sigmoid", factor=2.5, bias="chooses", pairs=True),
        ),
        None,
        SPARSE,
    ),
    ModelFamily(
        "bailing_moe_linear",
        lambda config, name: _read(config, name, linear=True),
        Details(
            norm_eps=0.000001, positions=Positions(Rope(600_000.0, 0.5)),
            gating=Gating("sigmoid", factor=2.5, bias="chooses", pairs=True),
        ),
        None,
        {**SPARSE, "num_hidden_layers": 4, "layer_group_size": 2},
        classes={"bailing_moe_linear": "BailingMoeLinearV2ForCausalLM"},
    ),
)  # fmt: skip
