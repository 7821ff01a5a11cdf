"""Arcee: Llama with a plain MLP."""

from simpar.architectures.details import Details
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import ATTENTION_BIAS, MLP_BIAS, llama_like
from simpar.architectures.transformer import Style

FAMILIES = (
    ModelFamily(
        "arcee", llama_like(Style(gated=False), biases={**ATTENTION_BIAS, **MLP_BIAS}), Details("relu2"), tiny=TINY
    ),
)
