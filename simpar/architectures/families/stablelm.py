"""StableLM: Llama with LayerNorm, a fourth of a head's features rotates; branches may stand side by side."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import HEAD_LAYER_NORM, llama_shape, mark_unbuilt, style_of
from simpar.architectures.transformer import Style, build


def _read(config: Config, name: str) -> ModelGraph:
    parallel = config.flag("use_parallel_residual", default=False)
    usual = Style(norm="layer", parallel=parallel, norms=1 if parallel else 2)
    shape, style = llama_shape(config), style_of(config, usual, {"use_qkv_bias": ("qkv_bias",)})
    if not config.flag("qk_layernorm", default=False):
        return build(name, shape, style)
    return mark_unbuilt(build(name, shape, replace(style, qk_norm="full")), HEAD_LAYER_NORM)


FAMILIES = (
    ModelFamily(
        "stablelm",
        _read,
        Details(positions=Positions(Rope(fraction=0.25))),
        tiny={**TINY, "use_qkv_bias": True},
        classes={"stablelm": "StableLmForCausalLM"},
    ),
)
