"""OPT: GPT-2's shape with ReLU and positions from row 2 of their table [arXiv 2205.01068]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ALL_BIASES, GPT_STYLE, shape_of, style_of
from simpar.architectures.transformer import build
from simpar.architectures.weights import Weights
from simpar.errors import UserError


def _read(config: Config, name: str) -> ModelGraph:
    hidden = config.size("hidden_size")
    shape = shape_of(
        config, hidden=hidden, ffn=config.size("ffn_dim", default=4 * hidden), layers=config.size("num_hidden_layers"),
        heads=config.size("num_attention_heads"), positions=config.size("max_position_embeddings", default=2048) + 2,
    )  # fmt: skip
    if not config.flag("do_layer_norm_before", default=True):
        raise UserError(f"{name}: do_layer_norm_before = false: norms behind attention and MLP are not modelled")
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        raise UserError(f"{name}: word_embed_proj_dim: allowed: hidden_size, {hidden}; projections are not modelled")
    style = style_of(config, replace(GPT_STYLE, tied=True), {"enable_bias": ALL_BIASES})
    weighted = config.flag("layer_norm_elementwise_affine", default=True)
    return build(name, shape, replace(style, norm="layer" if weighted else "none"))


FAMILIES = (
    ModelFamily(
        "opt",
        _read,
        Details("relu", positions=Positions(offset=2)),
        Weights(
            "model.decoder.layers",
            layer={
                "attention_norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm", "query": "self_attn.q_proj",
                "key": "self_attn.k_proj", "value": "self_attn.v_proj", "o_proj": "self_attn.out_proj", "up": "fc1",
                "mlp_down": "fc2",
            },
            ends={
                "token_embedding": "model.decoder.embed_tokens",
                "position_embedding": "model.decoder.embed_positions",
                "final_norm": "model.decoder.final_layer_norm", "lm_head": "lm_head",
            },
        ),
        {
            "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
            "word_embed_proj_dim": 32, "max_position_embeddings": 64, "dropout": 0.0, "bos_token_id": 1,
            "eos_token_id": 2,
        },
        classes={"opt": "OPTForCausalLM"},
    ),
)  # fmt: skip
