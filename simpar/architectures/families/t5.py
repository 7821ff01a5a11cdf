"""T5, mT5 and UMT5: an encoder, and a decoder that attends to it [arXiv 1910.10683; arXiv 2010.11934]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import style_of
from simpar.architectures.towers import encoder_decoder
from simpar.architectures.transformer import Shape, Style


def _read(config: Config, name: str) -> ModelGraph:
    layers = config.size("num_layers", default=6)
    heads = config.size("num_heads", default=8)
    shape = Shape(
        vocab=config.size("vocab_size"), hidden=config.size("d_model"), ffn=config.size("d_ff"), layers=layers,
        heads=heads, kv_heads=heads, head_dim=config.size("d_kv", default=64),
    )  # fmt: skip
    gated = config.text("feed_forward_proj", "relu").startswith("gated")
    style = style_of(config, Style(gated=gated, rotary=False, tied=True))
    decoder_seq = config.optional_size("decoder_seq_len") or None
    depth = config.size("num_decoder_layers", default=layers)
    each = config.text("model_type") == "umt5"
    graph = encoder_decoder(name, shape, style, decoder_layers=depth, decoder_seq=decoder_seq, biases_by_layer=each)
    rate = config.having({"dropout_rate": 0.1}, unless_given=True).rate("dropout_rate")
    said = (f"no dropout: its dropout_rate of {rate:g} is not modelled",) if rate else ()
    return replace(graph, facts={**graph.facts, "assumed": said})


FAMILIES = (
    ModelFamily(
        "t5",
        _read,
        None,
        weights=None,
        tiny={
            "vocab_size": 96, "d_model": 32, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 4,
            "d_kv": 8, "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0,
        },
        aliases=("mt5", "umt5"),
    ),
)  # fmt: skip
