"""Nemotron-4: Llama with LayerNorm by 1 + weight and a plain MLP [arXiv 2402.16819]."""

from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import ATTENTION_BIAS, MLP_BIAS, llama_like
from simpar.architectures.transformer import Style

FAMILIES = (
    ModelFamily(
        "nemotron",
        llama_like(Style(norm="layer", gated=False), biases={**ATTENTION_BIAS, **MLP_BIAS}),
        Details("relu2", norm_offset=1.0, init_std=0.0134, positions=Positions(Rope(fraction=0.5))),
        tiny=TINY,
    ),
)
