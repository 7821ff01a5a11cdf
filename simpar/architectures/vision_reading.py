"""Configs of a vision tower before a language model: what all families of them share.

``images_per_sequence`` and ``patches_per_image`` beside the sub-configs say what sequences are made of; without them
there is one image a sequence, of the size that the tower has, or about 784 x 784 pixels where it takes any.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.families.family import Reader
from simpar.architectures.graph import ModelGraph
from simpar.architectures.transformer import Shape, Style
from simpar.architectures.vision import Patches, Step, Vision, before_language_model
from simpar.errors import UserError

TEXT_CONFIGS = ("text_config", "language_config", "llm_config")
TOWERS = ("vision_config", "audio_config", "encoder_config")
"""Fields of configs with models within: a language model, and towers before it."""
USUAL_SIDE = 784
"""Pixels of the side of an image for towers that take any size: a multiple of 2 x 14 and, nearly, of 2 x 16."""
CHANNELS = 3
SILENT_VISION = {
    "_attn_implementation", "_name_or_path", "architectures", "attention_dropout", "chunk_size_feed_forward",
    "default_output_length", "drop_path_rate", "dropout", "dtype", "fullatt_block_indexes", "hidden_act",
    "hidden_activation", "hidden_dropout_prob", "id2label", "in_chans", "initializer_factor", "initializer_range",
    "label2id", "layer_norm_eps", "layer_scale_init_value", "max_position_embeddings", "model_type", "norm_eps",
    "output_attentions", "output_hidden_states", "projection_dim", "projection_dropout", "projector_dropout",
    "return_dict", "rms_norm_eps", "rope_parameters", "rope_theta", "spatial_patch_size", "tokens_per_second",
    "torch_dtype", "transformers_version", "use_flash_attn", "use_head", "use_mask_token", "use_mean_pooling",
    "vision_feature_select_strategy", "vocab_size",
}  # fmt: skip
"""Fields of vision configs that no size depends on, or that have defaults for what another field says."""
SILENT_WRAPPER = {
    "projector_hidden_act", "initializer_range", "vision_feature_layer", "vision_feature_select_strategy",
    "use_cache", "image_seq_length", "vision_start_token_id", "vision_end_token_id", "mm_tokens_per_image",
}  # fmt: skip
"""Fields beside the sub-configs that no size depends on."""
TowerReader = Callable[[Config, Config, int], Vision]
"""Makes a tower of its config, the config around it and the width of the language model."""


def with_tower(read_tower: TowerReader, text: str) -> Reader:
    """The reader of a family with a vision tower before a language model, whose default ``model_type`` is ``text``."""

    def read(config: Config, name: str, read_text: Reader) -> ModelGraph:
        language = read_text(_text(config, text), f"{name}: text_config")
        inner = config.mapping("vision_config")
        left_out = [f"{field} is left out" for field in ("audio_config",) if config.mapping(field)]
        images = config.data.get("images_per_sequence")
        if inner is None or images == 0:
            reason = "images_per_sequence = 0" if inner is not None else "the config has no vision_config"
            said = f"text only ({reason}): no vision tower is held or trained"
            config.data.get("patches_per_image")
            return _told(replace(language, name=name), [said, *left_out], ())
        tower = Config(inner, f"{name}: vision_config")
        vision = read_tower(tower, config, language.dims["hidden"])
        graph = before_language_model(name, vision, language)
        return _told(graph, [_describe(vision.patches), *left_out], tower.unread(SILENT_VISION))

    return read


def _text(config: Config, kind: str) -> dict[str, Any]:
    """The config of the language model: a section, or fields beside the vision's. Raises UserError for none.

    ``tie_word_embeddings`` beside a section counts for more than one in it.
    """
    inner = next((each for name in TEXT_CONFIGS if (each := config.mapping(name)) is not None), None)
    if inner is None:
        if "hidden_size" not in config.data:
            raise UserError(f"{config.source}: model_type = {config.text('model_type')!r}: text_config is needed")
        inner = {name: value for name, value in config.data.items() if name not in (*TOWERS, "model_type")}
        for name in inner:
            config.data.get(name)
    outside = config.data.get("tie_word_embeddings")
    tied = {} if outside is None else {"tie_word_embeddings": outside}
    return {"model_type": kind, **inner, **tied}


def _told(graph: ModelGraph, assumed: list[str], unread: tuple[str, ...]) -> ModelGraph:
    """The graph with what was assumed, and fields of the vision config that were not understood."""
    details = graph.details
    fields = (*details.unread, *(f"vision_config.{field}" for field in unread))
    return replace(
        graph, facts={**graph.facts, "assumed": (*graph.assumed, *assumed)}, details=replace(details, unread=fields)
    )


def _describe(patches: Patches) -> str:
    images = f"{patches.images} image" + "s" * (patches.images > 1)
    return (
        f"{images} a sequence (images_per_sequence) of {patches.count:,} patches each (patches_per_image), "
        f"{patches.tokens:,} visual tokens in all"
    )


def patches_of(
    vision: Config, around: Config, *, fixed: bool = False, side: int = 16, frames: int = 1, merge: int = 1, **own: Any
) -> Patches:
    """Images and patches: of ``image_size`` where it is ``fixed``, else of about USUAL_SIDE; ``side`` is the default.

    ``merge`` x ``merge`` patches make a visual token; ``own`` are further ones of :class:`Patches`. Raises
    UserError.
    """
    width = square(vision, "patch_size", default=side)
    edge = square(vision, "image_size", default=USUAL_SIDE) // width if fixed else USUAL_SIDE // (width * merge) * merge
    count = around.size("patches_per_image", default=edge * edge)
    if count % merge**2:
        raise UserError(f"{around.source}: patches_per_image = {count}: allowed: multiples of {merge**2}")
    images = around.size("images_per_sequence", default=1)
    elements = vision.size("in_channels", "num_channels", "in_chans", default=CHANNELS) * frames * width**2
    return Patches(elements, count, images, merged=merge**2, **own)


def square(config: Config, name: str, *, default: int) -> int:
    """A size that configs may write as a pair of equal numbers. Raises UserError."""
    value = config.data.get(name)
    if isinstance(value, list) and len(set(value)) == 1:
        return Config({name: value[0]}, config.source).size(name)
    return config.size(name, default=default)


def vit_shape(
    vision: Config, *, hidden: int, layers: int, heads: int, ffn: int | None = None, width: str = "hidden_size"
) -> Shape:
    """The shape of a vision transformer with the family's defaults (``ffn`` None: four times as wide).

    Raises UserError.
    """
    hidden = vision.size(width, default=hidden)
    heads = vision.size("num_heads", "num_attention_heads", default=heads)
    if hidden % heads:
        raise UserError(f"{vision.source}: num_attention_heads = {heads} does not divide hidden_size = {hidden}")
    return Shape(
        vocab=1, hidden=hidden, ffn=vision.size("intermediate_size", default=ffn or 4 * hidden),
        layers=vision.size("depth", "num_hidden_layers", default=layers), heads=heads, kv_heads=heads,
        head_dim=vision.size("head_dim", default=hidden // heads),
    )  # fmt: skip


VIT = Style(norm="layer", gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, rotary=False)
"""The style of ViT, CLIP and SigLIP."""


def merger(features: int, hidden: int, *, norm: Step | None) -> tuple[Step, ...]:
    """A projector of the Qwen kind: a norm, and an MLP as wide as the ``features`` that it reads."""
    return (*([norm] if norm else []), Step("mlp", hidden, inner=features))
