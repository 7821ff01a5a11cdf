"""Jais 2: Llama with LayerNorm, a plain MLP and biases everywhere."""

from dataclasses import replace

from simpar.architectures.details import Details
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import ATTENTION_BIAS, GPT_STYLE, MLP_BIAS, llama_like

FAMILIES = (
    ModelFamily(
        "jais2",
        llama_like(replace(GPT_STYLE, rotary=True), biases={**ATTENTION_BIAS, **MLP_BIAS}),
        Details("relu2"),
        tiny=TINY,
    ),
)
