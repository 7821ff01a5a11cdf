"""DeepSeek MoE, V2 and V3, and Kimi K2: shared and routed experts, with latent attention since V2.

[arXiv 2401.06066; arXiv 2405.04434; arXiv 2412.19437]
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.indexer import Indexer
from simpar.architectures.latent import LatentShape
from simpar.architectures.reading import (
    ATTENTION_BIAS,
    INDEXER,
    dense_first,
    llama_shape,
    mark_unbuilt,
    routed_in_groups,
    style_of,
    with_experts,
)
from simpar.architectures.transformer import build
from simpar.architectures.weights import LLAMA, ROUTER_BIAS
from simpar.errors import UserError

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


NOTHING: Mapping[str, int] = {}
LATENT_BIAS = "biases of latent attention"
LATENT = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "first_k_dense_replace": 3,
    "n_shared_experts": 1,
}
V32 = {**LATENT, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128}
GLM_5 = {**LATENT, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256}
LITE = {**GLM_5, "q_lora_rank": 768, "first_k_dense_replace": 1}
"""Fields that a config may leave out, as the configuration classes of transformers have them."""
TINY_INDEXED = {**TINY_LATENT, "index_n_heads": 4, "index_head_dim": 8, "index_topk": 8}


def read_deepseek(
    config: Config, name: str, topk_method: str = "greedy", usual: Mapping[str, int] = NOTHING
) -> ModelGraph:
    """The graph of a config with DeepSeek's fields, of which ``usual`` are those that it may leave out."""
    config = config.having(usual, unless_given=True)
    shape = llama_shape(config, ffn="moe_intermediate_size")
    router_bias = config.text("topk_method", topk_method) == "noaux_tc"
    shared = config.optional_size("n_shared_experts")
    mixture = routed_in_groups(config, shared=shared, router_bias=router_bias)
    ffn, layers = dense_first(config, shape.layers)
    full = with_experts(shape, mixture, ffn=ffn, latent=(latent := latent_of(config)))
    graph = build(name, full, style_of(config, biases=ATTENTION_BIAS), layers=layers)
    return mark_unbuilt(graph, LATENT_BIAS) if latent and latent.bias else graph


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
        bias=config.flag("attention_bias", default=False),
    )


def _indexer(config: Config) -> Indexer:
    return Indexer(
        config.size("index_n_heads", default=64), config.size("index_head_dim", default=128),
        config.size("index_topk", default=2048),
    )  # fmt: skip


def _reuses_keys(config: Config, count: int) -> list[bool]:
    """Layers that attend to keys which an earlier one has chosen, as listed or by a period. Raises UserError."""
    kinds = config.data.get("indexer_types") or config.data.get("index_topk_pattern")
    if kinds is None:
        period, first = config.size("index_topk_freq", default=1), config.size("index_skip_topk_offset", default=2)
        return [max(layer - first + 1, 0) % period != 0 for layer in range(count)]
    listed = kinds if isinstance(kinds, list | str) else ()
    words = [{"F": "full", "S": "shared"}.get(str(kind), str(kind)) for kind in listed]
    if len(words) != count or {*words} - {"full", "shared"} or words[0] != "full":
        raise UserError(
            f"{config.source}: indexer_types = {kinds!r}: allowed: full or shared for each of the {count} layers, "
            "first: full"
        )
    return [word == "shared" for word in words]


def _read_indexed(config: Config, name: str, usual: Mapping[str, int]) -> ModelGraph:
    """A decoder with sparse latent attention and experts behind the first layers."""
    config = config.having(usual, unless_given=True)
    shape = llama_shape(config, ffn="moe_intermediate_size")
    mixture = routed_in_groups(config, shared=config.size("n_shared_experts"), router_bias=True)
    ffn, layers = dense_first(config, shape.layers)
    reuses = _reuses_keys(config, shape.layers)
    layers = (
        *(replace(each, reuses_keys=own) for each, own in zip(layers, reuses, strict=False)),
        *layers[shape.layers :],
    )
    if (latent := latent_of(config)) is None:
        raise UserError(f"{config.source}: kv_lora_rank = null: allowed: a positive integer, keys are latent")
    full = with_experts(shape, mixture, ffn=ffn, latent=replace(latent, indexer=_indexer(config)))
    return mark_unbuilt(build(name, full, style_of(config, biases=ATTENTION_BIAS), layers=layers), INDEXER)


FAMILIES = (
    ModelFamily("deepseek", read_deepseek, FIRST, tiny=TINY_FIRST),
    ModelFamily(
        "deepseek_v2", read_deepseek, V2, tiny={**TINY_LATENT, "head_dim": 4, "topk_method": "group_limited_greedy"}
    ),
    ModelFamily(
        "deepseek_v3",
        partial(read_deepseek, topk_method="noaux_tc"),
        V3,
        LLAMA.changed(tensors=ROUTER_BIAS),
        TINY_LATENT,
        aliases=("kimi_k2",),
        classes={"kimi_k2": "DeepseekV3ForCausalLM"},
    ),
    ModelFamily("deepseek_v32", partial(_read_indexed, usual=V32), V3, None, TINY_INDEXED),
    ModelFamily(
        "glm_moe_dsa",
        partial(_read_indexed, usual={**GLM_5, "index_n_heads": 32}),
        replace(V3, norm_eps=0.00001),
        None,
        {**TINY_INDEXED, "num_hidden_layers": 4, "indexer_types": ["full", "full", "shared", "full"]},
    ),
    ModelFamily(
        "glm4_moe_lite",
        partial(read_deepseek, topk_method="noaux_tc", usual=LITE),
        replace(V3, norm_eps=0.00001, gating=replace(V3.gating, factor=1.8)),
        LLAMA.changed(tensors=ROUTER_BIAS),
        {**TINY_LATENT, "n_group": 1, "topk_group": 1},
    ),
)
