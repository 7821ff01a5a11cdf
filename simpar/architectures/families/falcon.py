"""Falcon: attention and MLP side by side, on one norm or two; heads share one key-value head, or one in groups.

[arXiv 2311.16867, section 3.3]
"""

from simpar.architectures.config import Config
from simpar.architectures.details import Details
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ALL_BIASES, shape_of, style_of
from simpar.architectures.transformer import Style, build
from simpar.architectures.weights import QKV_IN_GROUPS


def _read(config: Config, name: str) -> ModelGraph:
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    new = config.flag("new_decoder_architecture", default=False)
    single = config.flag("multi_query", default=True)
    kv_heads = config.size("num_kv_heads", default=heads) if new else (1 if single else heads)
    shape = shape_of(
        config, hidden=hidden, ffn=config.size("ffn_hidden_size", default=4 * hidden),
        layers=config.size("num_hidden_layers"), heads=heads, kv_heads=kv_heads,
    )  # fmt: skip
    parallel = config.flag("parallel_attn", default=True) or new
    norms = 2 if new and config.size("num_ln_in_parallel_attn", default=2) == 2 else (1 if parallel else 2)
    style = Style(
        norm="layer", gated=False, tied=True, rotary=not config.flag("alibi", default=False), parallel=parallel,
        norms=norms,
    )  # fmt: skip
    return build(name, shape, style_of(config, style, {"bias": ALL_BIASES}))


FAMILIES = (
    ModelFamily(
        "falcon",
        _read,
        Details("gelu"),
        QKV_IN_GROUPS.changed(
            layer={"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"},
            without={"mlp_norm": {"attention_norm": "input_layernorm"}},
        ),
        {
            "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "new_decoder_architecture": True, "num_kv_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
)  # fmt: skip
