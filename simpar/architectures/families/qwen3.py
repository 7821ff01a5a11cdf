"""Qwen 3, dense and with experts: Llama with normed heads of 128 features."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.qwen2 import sparse
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import ATTENTION_BIAS, UNUSED_WINDOWS, llama_like, style_of
from simpar.architectures.transformer import Style

NORMED = Style(qk_norm="head")


def _read_sparse(config: Config, name: str) -> ModelGraph:
    mixture = Mixture(
        config.size("num_experts", "num_local_experts", default=128),
        config.size("num_experts_per_tok", default=8),
        config.size("moe_intermediate_size"),
    )
    return sparse(config, name, style_of(config, NORMED, ATTENTION_BIAS), mixture)


TINY_SPARSE = {**TINY, "head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
FAMILIES = (
    ModelFamily(
        "qwen3",
        llama_like(NORMED, head_dim=128, windows=UNUSED_WINDOWS, biases=ATTENTION_BIAS),
        Details(norm_eps=0.000001),
        tiny={**TINY, "head_dim": 8},
    ),
    ModelFamily(
        "qwen3_vl_text",
        llama_like(NORMED, head_dim=128, windows=UNUSED_WINDOWS, biases=ATTENTION_BIAS),
        Details(norm_eps=0.000001, positions=Positions(Rope(500_000.0))),
        tiny={**TINY, "head_dim": 8},
        classes={"qwen3_vl_text": ""},
    ),
    ModelFamily(
        "qwen3_moe", _read_sparse, Details(norm_eps=0.000001, gating=Gating(normalised=False)), tiny=TINY_SPARSE
    ),
    ModelFamily(
        "qwen3_vl_moe_text",
        _read_sparse,
        Details(norm_eps=0.000001, positions=Positions(Rope(500_000.0)), gating=Gating(normalised=False)),
        tiny=TINY_SPARSE,
        classes={"qwen3_vl_moe_text": ""},
    ),
)
