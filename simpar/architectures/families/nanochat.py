"""nanochat: plain squared-ReLU MLPs and norms without weights, queries and keys normed behind their rotation.

Models of its own repository have value embeddings in every other layer, the last among them, which the class of
transformers does not: ``value_embeddings: true`` beside the fields says so, ``value_gate_features`` what gates read.
"""

from simpar.architectures.config import Config
from simpar.architectures.details import Caps, Details
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ATTENTION_BIAS, BARE_NORM, llama_shape, mark_unbuilt, style_of
from simpar.architectures.transformer import Style, build
from simpar.architectures.value_embeddings import with_value_embeddings

STYLE = Style(
    norm="none", gated=False, qk_norm="bare", extra={"qk_norm_last": True, "embedding_norm": True}
)  # fmt: skip
GATED = 12
"""Features that gates of value embeddings read where a config does not say it."""


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config)
    graph = mark_unbuilt(build(name, shape, style_of(config, STYLE, ATTENTION_BIAS)), BARE_NORM)
    if not config.flag("value_embeddings", default=False):
        return graph
    features = config.size("value_gate_features", default=GATED)
    layers = [at % 2 == (shape.layers - 1) % 2 for at in range(shape.layers)]
    return mark_unbuilt(with_value_embeddings(graph, layers, features), "value embeddings")


FAMILIES = (
    ModelFamily("nanochat", _read, Details("relu2", 0.000001, caps=Caps(logits=15.0)), None, {**TINY, "head_dim": 8}),
)
