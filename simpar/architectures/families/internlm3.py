"""InternLM 3: Llama with heads of 128 features, whose fields for biases have two names."""

from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import ATTENTION_BIAS, MLP_BIAS, llama_like

BIASES = {**ATTENTION_BIAS, "qkv_bias": ("qkv_bias", "output_bias"), **MLP_BIAS, "bias": ("mlp_bias",)}

FAMILIES = (
    ModelFamily(
        "internlm3",
        llama_like(head_dim=128, kv_heads=2, biases=BIASES),
        tiny={**TINY, "head_dim": 8, "attention_bias": True, "mlp_bias": True},
        classes={"internlm3": "LlamaForCausalLM"},
    ),
)
