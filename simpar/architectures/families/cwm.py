"""Code World Model: Llama with windows in three layers of four, of which the first sees everything."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.reading import MLP_BIAS, Windows, llama_like, windows_in

LONGER = {
    "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def _windows(config: Config, layers: int) -> Windows:
    return windows_in(config, layers, [layer % 4 != 0 for layer in range(layers)], default=8192)


FAMILIES = (
    ModelFamily(
        "cwm",
        llama_like(head_dim=128, kv_heads=8, windows=_windows, biases=MLP_BIAS),
        Details(positions=Positions(Rope(1_000_000.0, scaling=LONGER))),
        tiny={**TINY, "head_dim": 8, "sliding_window": 8},
    ),
)
