"""Bamba: layers with a Mamba-2 mixer, and some with attention instead."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.falcon_h1 import MIXED, TINY_MIXER
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ATTENTION_BIAS, MLP_BIAS, llama_shape, mark_unbuilt, style_of
from simpar.architectures.state_space import ATTENTION, MAMBA, kinds_of, list_missing, mixer_of, with_mixers
from simpar.errors import UserError


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=8)
    indices = config.data.get("attn_layer_indices") or []
    if not isinstance(indices, list):
        raise UserError(f"{config.source}: attn_layer_indices = {indices!r}: allowed: a list of layers")
    kinds = tuple(ATTENTION if layer in indices else MAMBA for layer in range(shape.layers))
    if not indices and (config.data.get("layers_block_type") or config.data.get("layer_types")):
        kinds = kinds_of(config, shape.layers)
    style = style_of(config, biases={**ATTENTION_BIAS, **MLP_BIAS})
    graph = with_mixers(config, name, shape, style, kinds, mixer_of(config))
    return mark_unbuilt(graph, *list_missing(config))


FAMILIES = (
    ModelFamily(
        "bamba",
        _read,
        Details(positions=Positions(Rope(fraction=0.5))),
        MIXED,
        {**TINY_MIXER, "num_hidden_layers": 4, "attn_layer_indices": [1, 3]},
    ),
)
