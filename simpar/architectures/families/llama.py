"""Llama 1 to 3."""

from simpar.architectures.details import Details
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import ATTENTION_BIAS, MLP_BIAS, llama_like

FAMILIES = (
    ModelFamily(
        "llama",
        llama_like(biases={**ATTENTION_BIAS, **MLP_BIAS}),
        Details(norm_eps=0.000001),
        tiny={**TINY, "rope_theta": 500_000.0, "rms_norm_eps": 0.001},
    ),
)
