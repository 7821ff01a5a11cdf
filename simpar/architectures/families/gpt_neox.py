"""GPT-NeoX and Pythia: attention and MLP side by side, a fourth of a head's features rotates [arXiv 2204.06745]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ATTENTION_BIAS, GPT_STYLE, llama_like
from simpar.architectures.weights import QKV, QKV_IN_GROUPS, Packing


def _read(config: Config, name: str) -> ModelGraph:
    parallel = config.flag("use_parallel_residual", default=True)
    read = llama_like(replace(GPT_STYLE, rotary=True, parallel=parallel), biases=ATTENTION_BIAS)
    return read(config.having({"num_key_value_heads": None}), name)  # the family has none


FAMILIES = (
    ModelFamily(
        "gpt_neox",
        _read,
        Details("gelu", positions=Positions(Rope(fraction=0.25))),
        QKV_IN_GROUPS.changed(
            layers="gpt_neox.layers",
            layer={"o_proj": "attention.dense"},
            ends={
                "token_embedding": "gpt_neox.embed_in",
                "final_norm": "gpt_neox.final_layer_norm",
                "lm_head": "embed_out",
            },
            packed={QKV: ("attention.query_key_value", Packing.QKV_GROUPS)},
        ),
        {key: value for key, value in TINY.items() if key != "num_key_value_heads"},
        classes={"gpt_neox": "GPTNeoXForCausalLM"},
    ),
)
