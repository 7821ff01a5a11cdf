"""BERT and RoBERTa: encoders alone [arXiv 1810.04805; arXiv 1907.11692]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details
from simpar.architectures.encoder import encoder
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import shape_of


def _read(config: Config, name: str) -> ModelGraph:
    shape = shape_of(
        config,
        hidden=config.size("hidden_size", default=768),
        ffn=config.size("intermediate_size", default=3072),
        layers=config.size("num_hidden_layers", default=12),
        heads=config.size("num_attention_heads", default=12),
        positions=config.size("max_position_embeddings", default=512),
    )
    types = config.size("type_vocab_size", default=2)
    usual = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.1)
    rate = config.having(usual, unless_given=True).rate(*usual)
    graph = encoder(name, shape, token_types=types, dropout=rate > 0, tied=config.tied(default=True))
    if config.data.get("model_type") == "bert":
        return graph
    padding = config.having({"pad_token_id": 1}, unless_given=True).optional_size("pad_token_id")
    # RoBERTa's positions begin behind the row of this token
    return replace(graph, facts={**graph.facts, "longest": shape.positions - padding - 1})


FAMILIES = (
    ModelFamily(
        "bert",
        _read,
        Details("gelu", 1e-12),
        weights=None,
        tiny={
            "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 64,
        },
        aliases=("roberta", "xlm-roberta"),
    ),
)  # fmt: skip
