"""Ling 1.5 and 2 (Bailing): experts behind dense layers; since 2, heads are normed and rotate in half [2510.22115]."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import dense_first, llama_shape, routed_in_groups, style_of, with_experts
from simpar.architectures.transformer import Style, build

UNUSED = (
    "norm_head", "norm_softmax", "score_function", "router_dtype", "moe_shared_expert_intermediate_size",
    "using_split_qkv_in_self_attention",
)  # fmt: skip
"""Fields of released configs that no size depends on, or that say the same as others."""
BIASES = {"use_qkv_bias": ("qkv_bias",), "use_bias": ("output_bias", "mlp_bias")}


def _read(config: Config, name: str, second: bool = True) -> ModelGraph:
    """``second``: the second version has normed heads and a bias that chooses experts, unless the config says not."""
    shape = llama_shape(config, ffn="moe_intermediate_size")
    named = config.having({"n_routed_experts": config.size("num_experts")})
    mixture = routed_in_groups(
        named, shared=config.optional_size("num_shared_experts"),
        router_bias=config.flag("moe_router_enable_expert_bias", default=second),
    )  # fmt: skip
    ffn, layers = dense_first(config, shape.layers)
    normed = config.flag("use_qk_norm", default=second)
    style = style_of(config, Style(qk_norm="head" if normed else ""), BIASES)
    for unused in (
        "norm_head",
        "norm_softmax",
        "score_function",
        "router_dtype",
        "moe_shared_expert_intermediate_size",
    ):
        config.data.get(unused)
    return build(name, with_experts(shape, mixture, ffn=ffn), style, layers=layers)


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
)  # fmt: skip
