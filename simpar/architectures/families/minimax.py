"""MiniMax-M2: queries and keys normed as a whole, 256 experts chosen by sigmoids and biases."""

from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.mixtral import NUMBERED_EXPERTS
from simpar.architectures.reading import experts_of, llama_like
from simpar.architectures.transformer import Style
from simpar.architectures.weights import Packing

FAMILIES = (
    ModelFamily(
        "minimax_m2",
        llama_like(
            Style(qk_norm="full"),
            head_dim=128,
            kv_heads=8,
            experts=experts_of("num_local_experts", "num_experts", experts=256, topk=8, router_bias=True),
        ),
        Details(norm_eps=0.000001, positions=Positions(Rope(5_000_000.0)), gating=Gating("sigmoid", bias="chooses")),
        NUMBERED_EXPERTS.changed(tensors={"router.bias": ("block_sparse_moe.e_score_correction_bias", Packing.SAME)}),
        {**TINY, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4},
    ),
)
