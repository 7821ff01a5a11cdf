"""Hunyuan, dense and with experts: queries and keys are normed after the rotation; shared experts as wide as others."""

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import ATTENTION_BIAS, llama_like
from simpar.architectures.transformer import Style
from simpar.architectures.weights import LLAMA
from simpar.errors import UserError

STYLE = Style(qk_norm="head", extra={"qk_norm_last": True})
WEIGHTS = LLAMA.changed(layer={"query_norm": "self_attn.query_layernorm", "key_norm": "self_attn.key_layernorm"})


def _experts(config: Config) -> Mixture:
    for field in ("num_experts", "moe_topk"):
        if isinstance(listed := config.data.get(field), list):
            if not listed or any(each != listed[0] for each in listed):
                raise UserError(f"{config.source}: {field} = {listed}: allowed: one number for all layers")
            config = config.having({field: listed[0]})
    width = config.size("intermediate_size")
    return Mixture(
        config.size("num_experts", "num_local_experts", default=1),
        config.size("moe_topk", "num_experts_per_tok", default=1), width, shared_ffn=width,
    )  # fmt: skip


FAMILIES = (
    ModelFamily(
        "hunyuan_v1_dense",
        llama_like(STYLE, biases=ATTENTION_BIAS),
        weights=WEIGHTS,
        tiny={**TINY, "head_dim": 8},
        classes={"hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM"},
    ),
    ModelFamily(
        "hunyuan_v1_moe",
        llama_like(STYLE, biases=ATTENTION_BIAS, experts=_experts),
        weights=WEIGHTS.changed(
            layer={
                "router": "mlp.gate.wg",
                "shared_gate": "mlp.shared_mlp.gate_proj",
                "shared_up": "mlp.shared_mlp.up_proj",
                "shared_down": "mlp.shared_mlp.down_proj",
            }
        ),
        tiny={**TINY, "head_dim": 8, "num_experts": 4, "moe_topk": 2},
        classes={"hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM"},
    ),
)
