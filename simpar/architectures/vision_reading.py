"""Fields of vision configs that many families read: images and patches, the layers of common towers.

``images_per_sequence`` and ``patches_per_image`` beside the sub-configs say what sequences are made of; without them
there is one image a sequence, of the size that the tower has, or about 784 x 784 pixels where it takes any.
"""

from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.transformer import Shape, Style
from simpar.architectures.vision import Patches, ProjectorStep
from simpar.errors import UserError

TEXT_CONFIGS = ("text_config", "language_config", "llm_config")
TOWERS = ("vision_config", "audio_config", "encoder_config")
"""Fields of configs with models within: a language model, and towers before it."""
USUAL_SIDE = 784
"""Pixels of the side of an image for towers that take any size: a multiple of 2 x 14 and, nearly, of 2 x 16."""
CHANNELS = 3
SILENT_VISION = {
    "vision_use_head",
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
    "image_grid_pinpoints", "vision_use_head", "force_image_size", "dynamic_image_size", "template",
    "projector_hidden_act", "initializer_range", "vision_feature_layer", "vision_feature_select_strategy",
    "use_cache", "image_seq_length", "vision_start_token_id", "vision_end_token_id", "mm_tokens_per_image",
}  # fmt: skip
"""Fields beside the sub-configs that no size depends on."""


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
    if isinstance(value, list) and value and all(each == value[0] for each in value):
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
    if hidden % heads and vision.data.get("head_dim") is None:
        raise UserError(f"{vision.source}: num_attention_heads = {heads} does not divide hidden_size = {hidden}")
    return Shape(
        vocab=1, hidden=hidden, ffn=vision.size("intermediate_size", default=ffn or 4 * hidden),
        layers=vision.size("depth", "num_hidden_layers", default=layers), heads=heads,
        kv_heads=vision.size("num_key_value_heads", default=heads),
        head_dim=vision.size("head_dim", default=hidden // heads),
    )  # fmt: skip


def check_width(vision: Config, field: str, hidden: int, of: str = "hidden_size of the language model") -> None:
    """Raise UserError where a tower's output, or what is read within one, has another width than what reads it."""
    if vision.data.get(field) is not None and (wide := vision.size(field)) != hidden:
        raise UserError(f"{vision.source}: {field} = {wide}: allowed: {hidden}, as {of}")


def siglip(vision: Config, around: Config, *, merge: int = 1) -> tuple[Patches, Shape]:
    """Patches and layers of SigLIP, whose pooling head no language model reads."""
    side = square(vision, "image_size", default=224) // square(vision, "patch_size", default=16)
    sized = vision.having({"image_size": 224}, unless_given=True)
    patches = patches_of(sized, around, fixed=True, merge=merge, positions=side * side)
    return patches, vit_shape(vision, hidden=768, layers=12, heads=12, ffn=3072)


def pixtral(vision: Config, around: Config, *, merge: int = 1) -> tuple[Patches, Shape]:
    """Patches and layers of Pixtral, which takes images of any size up to ``image_size``; heads share its width."""
    for field in ("image_size", "head_dim"):
        vision.data.get(field)
    vision = vision.having({"head_dim": None})
    patches = patches_of(vision, around, merge=merge, bias=False, norm="rms")
    return patches, vit_shape(vision, hidden=1024, layers=24, heads=16, ffn=4096)


GATED_RMS = Style()
"""The style of Pixtral: Llama's."""
VIT = Style(norm="layer", gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, rotary=False)
"""The style of ViT, CLIP and SigLIP."""


def merger(features: int, hidden: int, *, norm: ProjectorStep | None) -> tuple[ProjectorStep, ...]:
    """A projector of the Qwen kind: a norm, and an MLP as wide as the ``features`` that it reads."""
    return (*([norm] if norm else []), ProjectorStep("mlp", hidden, inner=features))
