"""SmolLM 3: every fourth layer has no positions; only these have windows, where the config asks for them."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ATTENTION_BIAS, MLP_BIAS, all_but_every, llama_shape, style_of, windows_of
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.errors import UserError


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=4)
    given = config.data.get("no_rope_layers")
    usual = all_but_every(config, shape.layers, "no_rope_layer_interval", default=4)
    turns = usual if given is None else given
    if not isinstance(turns, list) or len(turns) != shape.layers:
        raise UserError(
            f"{config.source}: no_rope_layers = {given!r}: allowed: 1 (positions) or 0 for each of "
            f"{shape.layers} layers"
        )
    windows = windows_of(config, shape.layers, default=False)
    if windows and config.data.get("layer_types") is None:
        windows = tuple(None if turn else window for turn, window in zip(turns, windows, strict=True))
    pairs = zip(windows or (None,) * shape.layers, turns, strict=True)
    layers = tuple(LayerVariant(window, rotary=bool(turn)) for window, turn in pairs)
    style = style_of(config, Style(tied=True), {**ATTENTION_BIAS, **MLP_BIAS})
    return build(name, shape, style, layers=layers)


FAMILIES = (
    ModelFamily(
        "smollm3",
        _read,
        Details(norm_eps=0.000001, positions=Positions(Rope(2_000_000.0))),
        tiny={**TINY, "num_hidden_layers": 4},
        classes={"smollm3": "SmolLM3ForCausalLM"},
    ),
)
