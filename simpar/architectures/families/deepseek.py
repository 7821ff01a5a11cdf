"""DeepSeek MoE, V2 and V3, and Kimi K2: shared and routed experts, with latent attention since V2.

[arXiv 2401.06066; arXiv 2405.04434; arXiv 2412.19437]
"""

from dataclasses import replace
from functools import partial

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.latent import LatentShape
from simpar.architectures.reading import (
    ATTENTION_BIAS,
    dense_first,
    llama_shape,
    routed_in_groups,
    style_of,
    with_experts,
)
from simpar.architectures.transformer import build
from simpar.architectures.weights import LLAMA, ROUTER_BIAS

FIRST = Details(norm_eps=0.000001, gating=Gating(normalised=False))
V2 = replace(FIRST, positions=Positions(Rope(interleaved=True)))
V3 = replace(V2, gating=Gating("sigmoid", factor=2.5, bias="chooses", pairs=True))
TINY_FIRST = {
    **TINY, "n_routed_experts": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
TINY_LATENT = {
    **TINY_FIRST, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "num_nextn_predict_layers": 0, "n_group": 4, "topk_group": 2,
}  # fmt: skip


def _read(config: Config, name: str, topk_method: str = "greedy") -> ModelGraph:
    shape = llama_shape(config, ffn="moe_intermediate_size")
    router_bias = config.text("topk_method", topk_method) == "noaux_tc"
    shared = config.optional_size("n_shared_experts")
    mixture = routed_in_groups(config, shared=shared, router_bias=router_bias)
    ffn, layers = dense_first(config, shape.layers)
    full = with_experts(shape, mixture, ffn=ffn, latent=latent_of(config))
    return build(name, full, style_of(config, biases=ATTENTION_BIAS), layers=layers)


def latent_of(config: Config) -> LatentShape | None:
    """The sizes of latent attention; None where the config has none."""
    if config.data.get("kv_lora_rank") is None:
        return None
    return LatentShape(
        query=config.size("q_lora_rank") if config.data.get("q_lora_rank") is not None else 0,
        key_value=config.size("kv_lora_rank"),
        plain=config.size("qk_nope_head_dim"),
        rotary=config.size("qk_rope_head_dim"),
        value=config.size("v_head_dim"),
    )


FAMILIES = (
    ModelFamily("deepseek", _read, FIRST, tiny=TINY_FIRST),
    ModelFamily("deepseek_v2", _read, V2, tiny={**TINY_LATENT, "head_dim": 4, "topk_method": "group_limited_greedy"}),
    ModelFamily(
        "deepseek_v3",
        partial(_read, topk_method="noaux_tc"),
        V3,
        LLAMA.changed(tensors=ROUTER_BIAS),
        TINY_LATENT,
        aliases=("kimi_k2",),
    ),
)
