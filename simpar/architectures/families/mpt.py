"""MPT: GPT with ALiBi and norms without biases, both as the config says."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import shape_of, style_of
from simpar.architectures.transformer import Style, build
from simpar.architectures.weights import QKV, Packing, Weights


def _read(config: Config, name: str) -> ModelGraph:
    hidden = config.size("d_model", "hidden_size")
    learned = config.flag("learned_pos_emb", default=False)
    learned = learned and not (config.mapping("attn_config") or {}).get("alibi")
    shape = shape_of(
        config, hidden=hidden, ffn=hidden * config.size("expansion_ratio", default=4),
        layers=config.size("n_layers", "num_hidden_layers"), heads=config.size("n_heads", "num_attention_heads"),
        positions=config.size("max_seq_len") if learned else 0,
    )  # fmt: skip
    bias = not config.flag("no_bias", default=True)
    style = Style(
        norm="layer" if bias else "weight", gated=False, tied=True, rotary=False, qkv_bias=bias, output_bias=bias,
        mlp_bias=bias,
    )  # fmt: skip
    return build(name, shape, style_of(config, style))


FAMILIES = (
    ModelFamily(
        "mpt",
        _read,
        Details("gelu", positions=Positions(alibi=True)),
        Weights(
            "transformer.blocks",
            layer={
                "attention_norm": "norm_1", "mlp_norm": "norm_2", "o_proj": "attn.out_proj", "up": "ffn.up_proj",
                "mlp_down": "ffn.down_proj",
            },
            ends={"token_embedding": "transformer.wte", "final_norm": "transformer.norm_f", "lm_head": "lm_head"},
            packed={QKV: ("attn.Wqkv", Packing.QKV_ROWS)},
        ),
        {"vocab_size": 96, "d_model": 36, "n_layers": 2, "n_heads": 6},
    ),
)  # fmt: skip
