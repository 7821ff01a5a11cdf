"""MiniCPM: Llama whose embeddings, branches and logits are scaled by fields of its own [arXiv 2404.06395; 2506.07900].

Its long sequences may be trained with attention to chosen blocks; up to ``dense_len`` tokens they are not.
"""

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ATTENTION_BIAS, llama_like, mark_unbuilt

SCALED = "MiniCPM's scales of embeddings, branches and logits"
FIELDS = ("scale_emb", "scale_depth", "dim_model_base", "mup_denominator")
_decoder = llama_like(biases=ATTENTION_BIAS)


def _read(config: Config, name: str) -> ModelGraph:
    graph = _decoder(config, name)
    for field in FIELDS:
        config.data.get(field)
    return mark_unbuilt(graph, SCALED)


FAMILIES = (
    ModelFamily(
        "minicpm", _read, tiny={**TINY, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16},
        classes={"minicpm": "MiniCPMForCausalLM"},
    ),
)  # fmt: skip
