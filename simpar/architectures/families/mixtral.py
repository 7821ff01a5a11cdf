"""Mixtral: Mistral with experts."""

from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import USED_WINDOWS, experts_of, llama_like
from simpar.architectures.weights import LLAMA

NUMBERED_EXPERTS = LLAMA.changed(
    layer={"router": "block_sparse_moe.gate"}, experts_in="block_sparse_moe.experts", experts=("w1", "w3", "w2")
)
"""Llama's names, with products of experts that have numbers."""


FAMILIES = (
    ModelFamily(
        "mixtral",
        llama_like(kv_heads=8, windows=USED_WINDOWS, experts=experts_of("num_local_experts", experts=8, topk=2)),
        Details(positions=Positions(Rope(1_000_000.0))),
        NUMBERED_EXPERTS,
        {**TINY, "num_local_experts": 4},
    ),
)
