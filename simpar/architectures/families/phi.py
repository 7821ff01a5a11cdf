"""Phi-1 to Phi-3.5: attention and MLP side by side with LayerNorm in Phi-2, Llama's shape since Phi-3.

Phi-3.5-MoE has experts and LayerNorm.
"""

from dataclasses import replace

from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.mixtral import NUMBERED_EXPERTS
from simpar.architectures.reading import ATTENTION_BIAS, GPT_STYLE, USED_WINDOWS, experts_of, llama_like
from simpar.architectures.transformer import Style
from simpar.architectures.weights import GATE_UP, LLAMA, QKV, Packing

FAMILIES = (
    ModelFamily(
        "phi",
        llama_like(replace(GPT_STYLE, rotary=True, head_bias=True, parallel=True, norms=1)),
        Details("gelu_new", positions=Positions(Rope(fraction=0.5))),
        LLAMA.changed(
            layer={"o_proj": "self_attn.dense", "up": "mlp.fc1", "mlp_down": "mlp.fc2"},
            ends={"final_norm": "model.final_layernorm"},
        ),
        TINY,
    ),
    ModelFamily(
        "phi3",
        llama_like(windows=USED_WINDOWS),
        weights=LLAMA.changed(
            packed={QKV: ("self_attn.qkv_proj", Packing.QKV_ROWS), GATE_UP: ("mlp.gate_up_proj", Packing.HALVES)}
        ),
        tiny=TINY,
    ),
    ModelFamily(
        "phimoe",
        llama_like(
            Style(norm="layer"),
            biases={**ATTENTION_BIAS, "lm_head_bias": ("head_bias",)},
            experts=experts_of("num_local_experts", experts=16, topk=2),
        ),
        Details(positions=Positions(Rope(1_000_000.0)), gating=Gating("sparse_mixer")),
        NUMBERED_EXPERTS,
        {**TINY, "num_local_experts": 4, "attention_bias": True, "lm_head_bias": True},
    ),
)
