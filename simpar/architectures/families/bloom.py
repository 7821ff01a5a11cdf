"""BLOOM: GPT with ALiBi and a norm of embeddings [arXiv 2211.05100]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import GPT_STYLE, shape_of, style_of
from simpar.architectures.transformer import build
from simpar.architectures.weights import QKV_IN_GROUPS


def _read(config: Config, name: str) -> ModelGraph:
    hidden = config.size("hidden_size", "n_embed")
    shape = shape_of(
        config, hidden=hidden, ffn=4 * hidden, layers=config.size("n_layer", "num_hidden_layers"),
        heads=config.size("n_head", "num_attention_heads"),
    )  # fmt: skip
    style = replace(GPT_STYLE, tied=True, extra={"embedding_norm": True})
    return build(name, shape, style_of(config, style))


FAMILIES = (
    ModelFamily(
        "bloom",
        _read,
        Details("gelu_pytorch_tanh", positions=Positions(alibi=True)),
        QKV_IN_GROUPS.changed(ends={"embedding_norm": "transformer.word_embeddings_layernorm"}),
        {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
)
