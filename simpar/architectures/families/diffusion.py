"""PixArt, Wan, Stable Diffusion 3, Flux and Qwen-Image, by the configs of diffusers' classes (``transformer/``).

Their text comes from other models' encoders, which do not train here; how many tokens of it a sequence has stands in no
config: ``text_tokens`` beside the fields says it [arXiv 2310.00426; arXiv 2503.20314; arXiv 2403.03206; arXiv
2508.02324; diffusers, models/transformers].
"""

from dataclasses import replace
from math import prod

from simpar.architectures.config import Config
from simpar.architectures.details import Details
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.images import FREQUENCIES, PLAIN
from simpar.architectures.joint import Conditioned, JointStyle, crossed_transformer, joint_transformer
from simpar.architectures.transformer import Shape
from simpar.architectures.vision import Patches
from simpar.errors import UserError

SILENT = (
    "_class_name", "_diffusers_version", "_name_or_path", "quantization_config", "axes_dims_rope", "norm_eps",
    "norm_elementwise_affine", "norm_num_groups", "num_embeds_ada_norm", "upcast_attention", "interpolation_scale",
    "attention_type", "double_self_attention", "only_cross_attention", "num_vector_embeds", "use_linear_projection",
    "eps", "rope_max_seq_len",
)  # fmt: skip
TIME = ("time", FREQUENCIES, 1, 1)
CLIP_AND_T5, T5_OF_FLUX, T5_OF_PIXART, T5_OF_WAN, QWEN_OF_IMAGE = 77 + 256, 512, 120, 512, 512
"""Tokens of text that the pipelines of diffusers give these models where nothing else is asked for."""


def _shape(config: Config, *, heads: int, head_dim: int, layers: int) -> Shape:
    """The sizes of a layer; an MLP is four times as wide."""
    for field in SILENT:
        config.data.get(field)
    if rate := config.rate("dropout"):
        raise UserError(f"{config.source}: dropout = {rate:g}: allowed: 0, dropout is not modelled here")
    heads, head_dim = (
        config.size("num_attention_heads", default=heads),
        config.size("attention_head_dim", default=head_dim),
    )
    hidden = heads * head_dim
    return Shape(
        vocab=1, hidden=hidden, ffn=4 * hidden, layers=config.size("num_layers", default=layers), heads=heads,
        kv_heads=heads, head_dim=head_dim,
    )  # fmt: skip


def _as_wide(config: Config, field: str, hidden: int) -> None:
    """Raise UserError unless a width is that of the model."""
    if (width := config.size(field, default=hidden)) != hidden:
        raise UserError(f"{config.source}: {field} = {width}: allowed: {hidden}, the width of all heads")


def _only(config: Config, field: str, *usual: object) -> None:
    """Raise UserError for a value that is not modelled."""
    if (value := config.data.get(field)) not in (None, *usual):
        allowed = ", ".join(str(each) for each in usual)
        raise UserError(f"{config.source}: {field} = {value!r}: allowed: {allowed}")


def _patches(config: Config, channels: int, largest: int) -> tuple[Patches, int]:
    """Patches of ``largest`` x ``largest`` at most, and the numbers that are predicted for one."""
    side, read = config.size("patch_size", default=2), config.size("in_channels", default=channels)
    made = config.size("out_channels", default=read) if config.data.get("out_channels") else read
    return Patches(read * side * side, largest**2), made * side * side


def _told(graph: ModelGraph, said: str, longest: int | None) -> ModelGraph:
    facts = {**graph.facts, "assumed": (f"{said}; no encoder of text or images makes them here",)}
    return replace(graph, facts=facts | ({"longest": longest} if longest else {}))


def _read_flux(config: Config, name: str) -> ModelGraph:
    shape = _shape(config, heads=24, head_dim=128, layers=19)
    once = [TIME, ("pooled", config.size("pooled_projection_dim", default=768), 1, 1)]
    if config.flag("guidance_embeds", default=False):
        once.insert(1, ("guidance", FREQUENCIES, 1, 1))
    text = Conditioned(
        config.size("text_tokens", default=T5_OF_FLUX), config.size("joint_attention_dim", default=4096), tuple(once)
    )
    patches, predicted = _patches(config.having({"patch_size": 1}, unless_given=True), 64, 1)
    style = JointStyle(config.size("num_single_layers", default=38), qk_norm=True, rotary=True)
    graph = joint_transformer(name, patches, shape, text, style, predicted)
    return _told(graph, f"a sequence is {text.prompt} tokens of text (text_tokens) and the patches of an image", None)


def _read_sd3(config: Config, name: str) -> ModelGraph:
    shape = _shape(config, heads=18, head_dim=64, layers=18)
    _as_wide(config, "caption_projection_dim", shape.hidden)
    _only(config, "qk_norm", "rms_norm")
    dual = frozenset(config.data.get("dual_attention_layers") or ())
    if wrong := [layer for layer in dual if not isinstance(layer, int) or not 0 <= layer < shape.layers]:
        raise UserError(
            f"{config.source}: dual_attention_layers = {wrong[0]!r}: allowed: numbers of layers from 0 to "
            f"{shape.layers - 1}"
        )
    pooled = ("pooled", config.size("pooled_projection_dim", default=2048), 1, 1)
    text = Conditioned(
        config.size("text_tokens", default=CLIP_AND_T5), config.size("joint_attention_dim", default=4096),
        (TIME, pooled),
    )  # fmt: skip
    side = config.size("pos_embed_max_size", default=96)
    patches, predicted = _patches(config, 16, side)
    usual = (config.size("sample_size", default=128) // config.size("patch_size", default=2)) ** 2
    style = JointStyle(qk_norm=config.data.get("qk_norm") is not None, dual=dual)
    graph = joint_transformer(name, replace(patches, positions=side**2), shape, text, style, predicted)
    said = f"a sequence is {text.prompt} tokens of text (text_tokens) and the patches of an image, usually {usual:,}"
    if dual:
        said += "; second attentions, of the image alone, are counted with the keys of the text"
    return _told(graph, said, side**2 + text.prompt)


def _read_pixart(config: Config, name: str) -> ModelGraph:
    shape = _shape(config, heads=16, head_dim=72, layers=28)
    _as_wide(config, "cross_attention_dim", shape.hidden)
    _only(config, "norm_type", "ada_norm_single")
    _only(config, "attention_bias", True)
    _only(config, "activation_fn", "gelu-approximate")
    size, side = config.size("sample_size", default=128), config.size("patch_size", default=2)
    sized = config.data.get("use_additional_conditions")
    once = [TIME]
    if size == 128 if sized is None else sized:  # height and width, and their ratio, a third of the width each
        third = shape.hidden // 3
        once += [("resolution", FREQUENCIES, 2, third), ("ratio", FREQUENCIES, 1, third)]
    text = Conditioned(
        config.size("text_tokens", default=T5_OF_PIXART), config.size("caption_channels", default=4096), tuple(once)
    )
    made = config.having({"out_channels": 8}, unless_given=True)
    patches, predicted = _patches(made, 4, size // side)
    graph = crossed_transformer(name, patches, shape, text, predicted)
    said = (
        f"a sequence is a latent image of {patches.count:,} patches beside {text.prompt} tokens of text (text_tokens)"
    )
    return _told(graph, said, patches.count)


def _read_qwen_image(config: Config, name: str) -> ModelGraph:
    """Double layers alone, the last one too, of whose text nothing is read; numbers of a patch come packed."""
    shape = _shape(config, heads=24, head_dim=128, layers=60)
    for field in ("guidance_embeds", "zero_cond_t", "use_additional_t_cond", "use_layer3d_rope"):
        _only(config, field, False)
    config.data.get("pooled_projection_dim")  # which the class does not read
    read, side = config.size("in_channels", default=64), config.size("patch_size", default=2)
    text = Conditioned(
        config.size("text_tokens", default=QWEN_OF_IMAGE), config.size("joint_attention_dim", default=3584), (TIME,),
        normed=True,
    )  # fmt: skip
    style = JointStyle(qk_norm=True, rotary=True, keeps_text=True)
    predicted = config.size("out_channels", default=16) * side * side
    graph = joint_transformer(name, Patches(read, 1), shape, text, style, predicted)
    return _told(graph, f"a sequence is {text.prompt} tokens of text (text_tokens) and the patches of an image", None)


def _read_wan(config: Config, name: str) -> ModelGraph:
    """PixArt's layers with rotary positions, and norms over all heads of queries and keys."""
    shape = _shape(config, heads=40, head_dim=128, layers=40)
    shape = replace(shape, ffn=config.size("ffn_dim", default=13824))
    _only(config, "cross_attn_norm", True)
    _only(config, "qk_norm", "rms_norm_across_heads")
    for field in ("image_dim", "added_kv_proj_dim", "pos_embed_seq_len"):
        if (value := config.data.get(field)) is not None:
            raise UserError(f"{config.source}: {field} = {value!r}: allowed: null, images as a condition are not read")
    size = config.data.get("patch_size") or [1, 2, 2]
    if not isinstance(size, list) or len(size) != 3 or not all(isinstance(n, int) and n > 0 for n in size):
        raise UserError(f"{config.source}: patch_size = {size!r}: allowed: three sizes above 0 (frames, rows, columns)")
    patch, time = prod(size), ("time", config.size("freq_dim", default=FREQUENCIES), 1, 1)
    text = Conditioned(config.size("text_tokens", default=T5_OF_WAN), config.size("text_dim", default=4096), (time,))
    predicted = config.size("out_channels", default=16) * patch
    patches = Patches(config.size("in_channels", default=16) * patch, 1)
    style = replace(PLAIN, qk_norm="full", rotary=True)
    graph = crossed_transformer(name, patches, shape, text, predicted, style)
    return _told(graph, f"a sequence is a latent video beside {text.prompt} tokens of text (text_tokens)", None)


TINY = {"num_attention_heads": 4, "attention_head_dim": 12, "num_layers": 2, "text_tokens": 8}
FAMILIES = (
    ModelFamily(
        "FluxTransformer2DModel", _read_flux, Details("gelu_pytorch_tanh"), None,
        {**TINY, "num_single_layers": 2, "in_channels": 16, "joint_attention_dim": 24, "pooled_projection_dim": 20,
         "guidance_embeds": True},
    ),
    ModelFamily(
        "SD3Transformer2DModel", _read_sd3, Details("gelu_pytorch_tanh"), None,
        {**TINY, "caption_projection_dim": 48, "joint_attention_dim": 24, "pooled_projection_dim": 20,
         "sample_size": 16, "pos_embed_max_size": 12, "qk_norm": "rms_norm"},
    ),
    ModelFamily(
        "QwenImageTransformer2DModel", _read_qwen_image, Details("gelu_pytorch_tanh"), None,
        {**TINY, "in_channels": 16, "out_channels": 4, "joint_attention_dim": 24},
    ),
    ModelFamily(
        "WanTransformer3DModel", _read_wan, Details("gelu_pytorch_tanh"), None,
        {**TINY, "ffn_dim": 96, "text_dim": 24, "in_channels": 4, "out_channels": 4, "patch_size": [1, 2, 2],
         "qk_norm": "rms_norm_across_heads", "cross_attn_norm": True},
    ),
    ModelFamily(
        "PixArtTransformer2DModel", _read_pixart, Details("gelu_pytorch_tanh"), None,
        {**TINY, "cross_attention_dim": 48, "caption_channels": 24, "sample_size": 16,
         "use_additional_conditions": True},
    ),
)  # fmt: skip
