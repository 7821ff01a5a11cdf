"""Command R: attention and MLP side by side on one LayerNorm without bias.

In Command R7B three layers of four have a window, and the others no positions.
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope, Scales
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import (
    ATTENTION_BIAS,
    HEAD_LAYER_NORM,
    all_but_every,
    llama_shape,
    mark_unbuilt,
    rotary_in_windows,
    style_of,
    windows_in,
)
from simpar.architectures.transformer import Style, build

STYLE = Style(norm="weight", tied=True, parallel=True, norms=1)


def _read(config: Config, name: str) -> ModelGraph:
    shape, style = llama_shape(config), style_of(config, STYLE, ATTENTION_BIAS)
    if not config.flag("use_qk_norm", default=False):
        return build(name, shape, style)
    return mark_unbuilt(build(name, shape, replace(style, qk_norm="full")), HEAD_LAYER_NORM)


def _read_2(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config)
    usual = all_but_every(config, shape.layers, "sliding_window_pattern", "_sliding_window_pattern", default=4)
    layers = rotary_in_windows(windows_in(config, shape.layers, usual, default=4096))
    return build(name, shape, style_of(config, STYLE, ATTENTION_BIAS), layers=layers)


FAMILIES = (
    ModelFamily(
        "cohere",
        _read,
        Details(positions=Positions(Rope(500_000.0, interleaved=True)), scales=Scales(logits=0.0625)),
        tiny={**TINY, "attention_bias": True},
    ),
    ModelFamily(
        "cohere2",
        _read_2,
        Details(positions=Positions(Rope(interleaved=True)), scales=Scales(logits=0.0625)),
        tiny={**TINY, "num_hidden_layers": 4, "sliding_window": 8},
    ),
)
