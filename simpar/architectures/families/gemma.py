"""Gemma 1 to 3 and VaultGemma: embeddings multiplied by the root of the hidden size, norms by 1 + weight.

Gemma 2 has norms before and after attention and MLP, windows in every other layer, and soft caps [arXiv 2408.00118];
Gemma 3 has normed heads instead of caps, and windows in five layers of six [arXiv 2503.19786]. VaultGemma is Gemma 2
without the norms behind attention and MLP [transformers, models/vaultgemma].
"""

import math
from dataclasses import replace
from functools import partial

from simpar.architectures.config import Config
from simpar.architectures.details import Caps, Details, Positions, Rope, Scales
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ATTENTION_BIAS, Windows, alternate_windows, llama_like
from simpar.architectures.transformer import Style
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, siglip, square
from simpar.architectures.weights import LLAMA, POST_NORMS

GELU = "gelu_pytorch_tanh"
NAMED_GELU = {"gelu": GELU}
PLAIN = Details(GELU, 0.000001, norm_offset=1.0)
CAPPED = replace(PLAIN, caps=Caps(attention=50.0, logits=30.0), scales=Scales(attention=256**-0.5))
LOCAL = Details(
    GELU, 0.000001, norm_offset=1.0, positions=Positions(Rope(1_000_000.0), Rope()), scales=Scales(attention=256**-0.5)
)
WIDE = {**TINY, "head_dim": 8}
TINY_CAPPED = {**WIDE, "sliding_window": 8, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0}
every_other = partial(alternate_windows, period=2)


def _windows_3(config: Config, layers: int) -> Windows:
    period = config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return alternate_windows(config, layers, period=period)


def _read_3(config: Config, name: str) -> ModelGraph:
    sizes = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4}
    both_ways = config.flag("use_bidirectional_attention", default=False)  # as models of embeddings have it
    style = Style(tied=True, norms=4, qk_norm="head", extra={"bidirectional": True} if both_ways else {})
    read = llama_like(style, head_dim=256, windows=_windows_3)
    return read(config.having(sizes, unless_given=True), name)


def _tower_3(vision: Config, around: Config, hidden: int) -> Vision:
    """SigLIP's tower; means over squares of patches, normed, through one product."""
    side = square(vision, "image_size", default=224) // square(vision, "patch_size", default=16)
    tokens = around.size("mm_tokens_per_image", default=256)
    patches, shape = siglip(vision, around, merge=max(side // math.isqrt(tokens), 1))
    steps = (ProjectorStep("norm", shape.hidden, norm="rms"), ProjectorStep("linear", hidden, bias=False))
    return Vision(patches, shape, VIT, steps, end_norm="layer", pooled=True)


FAMILIES = (
    ModelFamily(
        "gemma",
        llama_like(Style(tied=True), head_dim=256),
        PLAIN,
        tiny=WIDE,
        activations=NAMED_GELU,
        scaled_by_root=True,
    ),
    ModelFamily(
        "gemma2",
        llama_like(Style(tied=True, norms=4), head_dim=256, windows=every_other),
        CAPPED,
        POST_NORMS,
        TINY_CAPPED,
        activations=NAMED_GELU,
        scaled_by_root=True,
    ),
    ModelFamily(
        "gemma3_text",
        _read_3,
        LOCAL,
        POST_NORMS,
        {**WIDE, "sliding_window": 8, "num_hidden_layers": 7},
        scaled_by_root=True,
        classes={"gemma3_text": "Gemma3ForCausalLM"},
    ),
    vision_family(
        "gemma3",
        _tower_3,
        "gemma3_text",
        tiny={
            "text_config": {**WIDE, "sliding_window": 8, "num_hidden_layers": 7},
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 64,
                "vision_use_head": False,
            },
            "mm_tokens_per_image": 4,
        },
    ),
    ModelFamily(
        "vaultgemma",
        llama_like(Style(tied=True), head_dim=256, windows=every_other, biases=ATTENTION_BIAS),
        CAPPED,
        LLAMA.changed(layer={"mlp_norm": "pre_feedforward_layernorm"}),
        TINY_CAPPED,
        scaled_by_root=True,
        classes={"vaultgemma": "VaultGemmaForCausalLM"},
    ),
)
