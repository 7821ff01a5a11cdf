"""Helium: Llama with heads of 128 features, of which neighbouring ones rotate as a pair."""

from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import MLP_BIAS, llama_like

FAMILIES = (
    ModelFamily(
        "helium",
        llama_like(head_dim=128, biases={"attention_bias": ("qkv_bias",), **MLP_BIAS}),
        Details(norm_eps=1e-8, positions=Positions(Rope(100_000.0, interleaved=True))),
        tiny={**TINY, "head_dim": 8, "attention_bias": True},
    ),
)
