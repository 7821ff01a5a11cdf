"""Mistral and Ministral: Llama with a window in all layers, and Ministral 3 with queries scaled by their position."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import MLP_BIAS, USED_WINDOWS, Windows, llama_like, mark_unbuilt, windows_in

YARN = {
    "rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
}  # fmt: skip
LONG_SCALE = "queries scaled by their position"


def _all(config: Config, layers: int) -> Windows:
    return windows_in(config, layers, [True] * layers, default=4096)


def _read_3(config: Config, name: str) -> ModelGraph:
    graph = llama_like(head_dim=128, kv_heads=8, windows=USED_WINDOWS)(config, name)
    rope = config.mapping("rope_parameters") or config.mapping("rope_scaling")
    return mark_unbuilt(graph, LONG_SCALE) if rope is None or rope.get("llama_4_scaling_beta") else graph


FAMILIES = (
    ModelFamily(
        "mistral",
        llama_like(kv_heads=8, windows=USED_WINDOWS),
        Details(norm_eps=0.000001),
        tiny={**TINY, "sliding_window": 8},
    ),
    ModelFamily(
        "ministral",
        llama_like(kv_heads=8, windows=_all, biases=MLP_BIAS),
        Details(norm_eps=0.000001),
        tiny={**TINY, "head_dim": 8, "sliding_window": 8},
    ),
    ModelFamily(
        "ministral3",
        _read_3,
        Details(positions=Positions(Rope(1_000_000.0, scaling=YARN))),
        tiny={
            **TINY,
            "head_dim": 8,
            "rope_parameters": {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0,
                "mscale_all_dim": 0.7, "rope_theta": 1_000_000.0, "llama_4_scaling_beta": 0.0,
            },
        },
    ),
)  # fmt: skip
