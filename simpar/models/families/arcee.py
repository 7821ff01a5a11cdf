"""Arcee: Llama with a plain MLP."""

from simpar.models.details import Details
from simpar.models.families.family import TINY, ModelFamily
from simpar.models.reading import ATTENTION_BIAS, MLP_BIAS, llama_like
from simpar.models.transformer import Style

FAMILIES = (
    ModelFamily(
        "arcee",
        llama_like(Style(gated=False), biases={**ATTENTION_BIAS, **MLP_BIAS}),
        Details("relu2"),
        tiny=TINY,
    ),
)
