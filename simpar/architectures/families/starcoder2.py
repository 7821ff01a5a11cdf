"""StarCoder 2: GPT's layers with rotary positions, grouped queries and windows [arXiv 2402.19173]."""

from dataclasses import replace

from simpar.architectures.details import Details
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import ALL_BIASES, GPT_STYLE, USED_WINDOWS, llama_like
from simpar.architectures.weights import LLAMA

STYLE = replace(GPT_STYLE, tied=True, rotary=True)

FAMILIES = (
    ModelFamily(
        "starcoder2",
        llama_like(STYLE, kv_heads=2, windows=USED_WINDOWS, biases={"use_bias": ALL_BIASES}),
        Details("gelu_pytorch_tanh", init_std=0.018042),
        LLAMA.changed(layer={"up": "mlp.c_fc", "mlp_down": "mlp.c_proj"}),
        TINY,
    ),
)
