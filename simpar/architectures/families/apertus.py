"""Apertus: a plain MLP with an activation of two learnt numbers a layer [arXiv 2509.14233, section 2.1]."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ATTENTION_BIAS, llama_like, mark_unbuilt
from simpar.architectures.transformer import Style

XIELU = "xIELU, whose shape is learnt"
LONGER = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def _read(config: Config, name: str) -> ModelGraph:
    learnt = config.text("hidden_act", "xielu") == "xielu"
    style = Style(gated=False, qk_norm="head", extra={"activation_parameters": 2} if learnt else {})
    graph = llama_like(style, biases=ATTENTION_BIAS)(config, name)
    return mark_unbuilt(graph, XIELU) if learnt else graph


FAMILIES = (
    ModelFamily(
        "apertus",
        _read,
        Details("xielu", positions=Positions(Rope(12_000_000.0, scaling=LONGER))),
        weights=None,
        tiny=TINY,
    ),
)
