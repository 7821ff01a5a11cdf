"""DBRX: a mixture whose experts are stored as one matrix, with clipped queries, keys and values."""

from simpar.architectures.config import Config
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import shape_of, style_of, with_experts
from simpar.architectures.transformer import Style, build
from simpar.architectures.weights import QKV, Packing, Weights


def _read(config: Config, name: str) -> ModelGraph:
    experts, attention = config.mapping("ffn_config") or {}, config.mapping("attn_config") or {}
    inner = Config({**attention, **experts}, config.source)
    shape = shape_of(
        config, hidden=config.size("d_model"), ffn=inner.size("ffn_hidden_size"), layers=config.size("n_layers"),
        heads=config.size("n_heads"), kv_heads=inner.size("kv_n_heads", default=1),
    )  # fmt: skip
    mixture = Mixture(inner.size("moe_num_experts"), inner.size("moe_top_k", default=1), inner.size("ffn_hidden_size"))
    return build(name, with_experts(shape, mixture), style_of(config, Style(norm="weight")))


FAMILIES = (
    ModelFamily(
        "dbrx",
        _read,
        weights=Weights(
            "transformer.blocks",
            layer={
                "attention_norm": "norm_attn_norm.norm_1", "mlp_norm": "norm_attn_norm.norm_2",
                "o_proj": "norm_attn_norm.attn.out_proj", "router": "ffn.router.layer",
            },
            ends={"token_embedding": "transformer.wte", "final_norm": "transformer.norm_f", "lm_head": "lm_head"},
            packed={QKV: ("norm_attn_norm.attn.Wqkv", Packing.QKV_ROWS)},
            tensors={
                "expert_up.weight": (("ffn.experts.mlp.w1", "ffn.experts.mlp.v1"), Packing.EXPERT_ROWS),
                "expert_down.weight": ("ffn.experts.mlp.w2", Packing.EXPERT_ROWS_TRANSPOSED),
            },
        ),
        tiny={
            "vocab_size": 96, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 0.5},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
)  # fmt: skip
