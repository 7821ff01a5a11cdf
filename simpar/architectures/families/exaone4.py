"""EXAONE 4: norms behind both branches, normed heads; where some layers have windows, the others have no positions."""

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import all_but_every, llama_shape, rotary_in_windows, style_of, windows_in
from simpar.architectures.transformer import Style, build
from simpar.architectures.weights import POST_NORMS


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config)
    style = style_of(config, Style(qk_norm="head", extra={"post_norm_only": True}))
    config.data.get("sliding_window_pattern")  # asked for, because layer_types may state the same
    listed = config.data.get("layer_types") is not None
    if config.data.get("sliding_window", 0) is None:
        return build(name, shape, style)
    usual = [] if listed else all_but_every(config, shape.layers, "sliding_window_pattern", default=4)
    windows = windows_in(config, shape.layers, usual, default=4096)
    return build(name, shape, style, layers=rotary_in_windows(windows))


FAMILIES = (
    ModelFamily("exaone4", _read, weights=POST_NORMS, tiny={**TINY, "num_hidden_layers": 4, "sliding_window": 8}),
)
