"""Grok-1: eight experts, norms before and after both branches.

There is no class for it in transformers: names are those of its port to torch, whose gates are ``linear``.
"""

from simpar.architectures.details import Details, Gating
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import experts_of, llama_like
from simpar.architectures.transformer import Style
from simpar.architectures.weights import LLAMA

FAMILIES = (
    ModelFamily(
        "grok-1",
        llama_like(
            Style(tied=True, norms=4), head_dim=128, experts=experts_of("num_experts", experts=8, topk=2)
        ),
        Details("gelu", gating=Gating(normalised=False)),
        LLAMA.changed(
            layer={
                "attention_norm": "pre_attn_norm", "attention_post_norm": "post_attn_norm",
                "mlp_norm": "pre_moe_norm", "mlp_post_norm": "post_moe_norm", "query": "attn.q_proj",
                "key": "attn.k_proj", "value": "attn.v_proj", "o_proj": "attn.o_proj", "router": "moe_block.gate",
            },
            experts_in="moe_block.experts",
            experts=("linear", "linear_v", "linear_1"),
        ),
        {**TINY, "head_dim": 8, "num_experts": 2},
        classes={"grok-1": "Grok1ModelForCausalLM"},
    ),
)  # fmt: skip
