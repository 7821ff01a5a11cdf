"""Seed-OSS: Llama with heads of 128 features, biases of queries, keys and values, and dropout."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Dropout
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import MLP_BIAS, llama_shape, style_of
from simpar.architectures.transformer import Style, build

BIASES = {"attention_bias": ("qkv_bias",), "attention_out_bias": ("output_bias",), **MLP_BIAS}
RATES = {"residual_dropout": 0.1, "attention_dropout": 0.1}


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, head_dim=128, kv_heads=8)
    style = style_of(config, Style(qkv_bias=True, extra={"embedding_kept": True}), BIASES)
    drops = config.having(RATES, unless_given=True).rate(*RATES) > 0
    return build(name, shape, style, dropout=drops)


FAMILIES = (
    ModelFamily(
        "seed_oss",
        _read,
        Details(norm_eps=0.000001, dropout=Dropout(0.0, 0.1, 0.1)),
        tiny={**TINY, "head_dim": 8, "attention_dropout": 0.0, "residual_dropout": 0.0},
    ),
)
