"""Mamba-2: mixers alone, as many heads as ``expand`` times the hidden size has."""

from functools import partial

from simpar.architectures.config import Config
from simpar.architectures.details import Details
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hybrid import hybrid
from simpar.architectures.mamba import Mamba, mamba
from simpar.architectures.reading import mark_unbuilt, style_of
from simpar.architectures.state_space import BARE_CONVOLUTION
from simpar.architectures.transformer import Shape, Style
from simpar.architectures.weights import LLAMA
from simpar.errors import UserError


def _read(config: Config, name: str) -> ModelGraph:
    hidden, heads = config.size("hidden_size", default=4096), config.size("num_heads", default=128)
    head_dim, expand = config.size("head_dim", default=64), config.size("expand", default=2)
    state = Mamba(
        heads=heads, head_dim=head_dim, state=config.size("state_size", default=128),
        groups=config.size("n_groups", default=8), conv=config.size("conv_kernel", default=4),
        chunk=config.size("chunk_size", default=256),
    )  # fmt: skip
    if heads * head_dim != expand * hidden or heads % state.groups:
        raise UserError(
            f"{config.source}: num_heads = {heads}: allowed: expand x hidden_size / head_dim = "
            f"{expand * hidden // head_dim}, and a multiple of the {state.groups} groups"
        )
    layers = config.size("num_hidden_layers", default=64)
    shape = Shape(config.size("vocab_size", default=32768), hidden, 0, layers, heads, heads, head_dim)
    bias, conv_bias = config.flag("use_bias", default=False), config.flag("use_conv_bias", default=True)
    mixer = partial(mamba, bias=bias, conv_bias=conv_bias)
    graph = hybrid(name, "M" * layers, shape, state, style_of(config, Style(rotary=False)), mixer=mixer)
    return graph if conv_bias else mark_unbuilt(graph, BARE_CONVOLUTION)


FAMILIES = (
    ModelFamily(
        "mamba2",
        _read,
        Details(init_std=0.1),
        LLAMA.changed(
            layers="backbone.layers",
            layer={"mamba_norm": "norm"},
            ends={"token_embedding": "backbone.embeddings", "final_norm": "backbone.norm_f"},
        ).with_mixer("mixer"),
        {
            "vocab_size": 96, "hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 16,
            "num_hidden_layers": 2, "n_groups": 2, "chunk_size": 8, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
)  # fmt: skip
