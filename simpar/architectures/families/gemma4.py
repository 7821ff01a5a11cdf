"""Gemma 4: Gemma 3 with wider heads and fewer keys where layers see all tokens; experts, or embeddings by layer."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope, Scales
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.gemma4 import FullHeads, LayerPlan, build_gemma4, check_shared
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import Windows, all_but_every, llama_shape, mark_unbuilt, windows_in, with_experts
from simpar.architectures.transformer import Style
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import patches_of, vit_shape
from simpar.errors import UserError

UNBUILT = "layers of two head widths, with keys, values or embeddings of other layers"
DETAILS = Details(
    "gelu_pytorch_tanh", 0.000001, positions=Positions(Rope(1_000_000.0, 0.25), Rope()), scales=Scales(attention=1.0)
)


def _read(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=4, head_dim=256)
    if not config.tied(default=True):
        raise UserError(f"{config.source}: tie_word_embeddings = false: allowed: true, the family's table is tied")
    if config.flag("attention_bias", default=False):
        raise UserError(f"{config.source}: attention_bias = true: allowed: false")
    listed = config.data.get("layer_types") is not None
    usual = [] if listed else all_but_every(config, shape.layers, "sliding_window_pattern", default=6)
    windows = windows_in(config, shape.layers, usual, default=512)
    windows = (*windows[:-1], None)  # the last layer always sees all tokens
    equal = config.flag("attention_k_eq_v", default=False)
    own = _of_full_layers(config, windows)
    few = own.data.get("num_global_key_value_heads")
    full = FullHeads(
        own.size("global_head_dim", default=512),
        own.size("num_global_key_value_heads") if few and equal else shape.kv_heads, equal,
    )  # fmt: skip
    shared = config.optional_size("num_kv_shared_layers")
    check_shared(config.source, windows, shared)
    embedded = config.size("hidden_size_per_layer_input") if config.data.get("hidden_size_per_layer_input", 256) else 0
    if config.flag("enable_moe_block", default=False):
        mixture = Mixture(
            config.size("num_experts"), config.size("top_k_experts"), config.size("moe_intermediate_size")
        )
        shape = with_experts(shape, mixture, ffn=shape.ffn)
    for unused in ("num_experts", "top_k_experts", "moe_intermediate_size", "use_bidirectional_attention"):
        config.data.get(unused)
    layout = LayerPlan(
        windows, full, shared, config.flag("use_double_wide_mlp", default=False), embedded,
        config.size("vocab_size_per_layer_input", default=262_144),
    )  # fmt: skip
    return mark_unbuilt(build_gemma4(name, shape, layout), UNBUILT)


def _of_full_layers(config: Config, windows: Windows) -> Config:
    """The config with the heads of layers that see all tokens, which transformers writes layer by layer.

    Raises UserError where layers of one kind differ.
    """
    listed = config.mapping("per_layer_config")
    if not listed:
        return config
    full = {str(at) for at, window in enumerate(windows) if window is None}
    one, written = next(iter(listed.values())), {str(at).lstrip("0") or "0" for at in listed}  # "05" as "5"
    if written != full or any(each != one for each in listed.values()) or {*one} - {*OF_LAYERS}:
        raise UserError(
            f"{config.source}: per_layer_config = {listed!r}: allowed: the same {' and '.join(OF_LAYERS)} for each of "
            f"the layers {', '.join(sorted(full, key=int))}, which see all tokens"
        )
    return config.having({OF_LAYERS[field]: value for field, value in one.items()})


OF_LAYERS = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
"""Names of released configs, by those of ``per_layer_config``."""


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """Layers as the language model's; means over squares of patches, normed without weights, through one product."""
    pool = vision.size("pooling_kernel_size", default=3)
    tokens = around.size("vision_soft_tokens_per_image", default=280)
    rows = vision.size("position_embedding_size", default=10_240)
    fitting = around.having({"patches_per_image": tokens * pool**2}, unless_given=True)
    patches = patches_of(vision, fitting, merge=pool, bias=False, positions=2 * rows)
    shape = vit_shape(vision, hidden=768, layers=16, heads=12, ffn=3072)
    style = Style(qk_norm="head", norms=4)
    steps = (ProjectorStep("norm", 0, norm="none"), ProjectorStep("linear", hidden, bias=False))
    return Vision(patches, shape, style, steps, pooled=True)


TINY_4 = {
    **TINY, "head_dim": 8, "global_head_dim": 16, "num_hidden_layers": 6, "sliding_window": 8,
    "vocab_size_per_layer_input": 96,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}  # fmt: skip
SPARSE = {
    **TINY_4, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
    "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16,
}  # fmt: skip
FAMILIES = (
    ModelFamily(
        "gemma4_text",
        _read,
        DETAILS,
        None,
        {
            **TINY_4, "hidden_size_per_layer_input": 4, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
        },
        scaled_by_root=True,
    ),
    vision_family(
        "gemma4",
        _tower,
        "gemma4_text",
        {
            "text_config": SPARSE,
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 4, "head_dim": 8, "position_embedding_size": 16,
            },
        },
    ),
)  # fmt: skip
