"""Falcon-H1: in every layer attention and a Mamba-2 mixer side by side on one norm [arXiv 2507.22448, section 2.1]."""

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ATTENTION_BIAS, MLP_BIAS, llama_shape, mark_unbuilt, style_of
from simpar.architectures.state_space import ATTENTION, MAMBA, list_missing, mixer_of, with_mixers
from simpar.architectures.weights import LLAMA

MIXED = LLAMA.changed(
    layer={
        "mlp_norm": "pre_ff_layernorm", "gate": "feed_forward.gate_proj", "up": "feed_forward.up_proj",
        "mlp_down": "feed_forward.down_proj",
    },
    ends={"final_norm": "model.final_layernorm"},
).with_mixer("mamba")  # fmt: skip
"""Llama's names, with mixers and MLPs as in Falcon-H1 and Bamba."""
TINY_MIXER = {**TINY, "mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 8}


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=8)
    style = style_of(config, biases={**ATTENTION_BIAS, **MLP_BIAS})
    normed = config.flag("mamba_rms_norm", default=False)
    mixer = mixer_of(config, normed=normed, out_bias=config.flag("projectors_bias", default=False))
    kinds = (f"{ATTENTION}_{MAMBA}",) * shape.layers
    graph = with_mixers(config, name, shape, style, kinds, mixer)
    return mark_unbuilt(graph, *list_missing(config, normed=normed))


FAMILIES = (ModelFamily("falcon_h1", _read, weights=MIXED, tiny={**TINY_MIXER, "mamba_d_ssm": 64}),)
