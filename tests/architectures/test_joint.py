"""Diffusion transformers conditioned on text: published sizes, FLOP by hand, and plans on them."""

from __future__ import annotations

from typing import Any

import pytest

import simpar
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token, shape_dims
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.errors import UserError

FLUX: dict[str, Any] = {  # black-forest-labs/FLUX.1-dev, transformer/config.json
    "_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.30.0", "attention_head_dim": 128,
    "axes_dims_rope": [16, 56, 56], "guidance_embeds": True, "in_channels": 64, "joint_attention_dim": 4096,
    "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "patch_size": 1, "pooled_projection_dim": 768,
}  # fmt: skip
SD3: dict[str, Any] = {  # stabilityai/stable-diffusion-3.5-large, transformer/config.json
    "_class_name": "SD3Transformer2DModel", "attention_head_dim": 64, "caption_projection_dim": 2432,
    "dual_attention_layers": [], "in_channels": 16, "joint_attention_dim": 4096, "num_attention_heads": 38,
    "num_layers": 38, "out_channels": 16, "patch_size": 2, "pooled_projection_dim": 2048, "pos_embed_max_size": 192,
    "qk_norm": "rms_norm", "sample_size": 128,
}  # fmt: skip
PIXART: dict[str, Any] = {  # PixArt-alpha/PixArt-XL-2-1024-MS, transformer/config.json
    "_class_name": "PixArtTransformer2DModel", "num_layers": 28, "num_attention_heads": 16, "attention_head_dim": 72,
    "cross_attention_dim": 1152, "caption_channels": 4096, "patch_size": 2, "in_channels": 4, "sample_size": 128,
    "norm_type": "ada_norm_single", "attention_bias": True, "activation_fn": "gelu-approximate", "out_channels": 8,
}  # fmt: skip
QWEN: dict[str, Any] = {  # Qwen/Qwen-Image, transformer/config.json
    "_class_name": "QwenImageTransformer2DModel", "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56],
    "guidance_embeds": False, "in_channels": 64, "joint_attention_dim": 3584, "num_attention_heads": 24,
    "num_layers": 60, "out_channels": 16, "patch_size": 2, "pooled_projection_dim": 768,
}  # fmt: skip
WAN: dict[str, Any] = {  # Wan-AI/Wan2.1-T2V-14B-Diffusers, transformer/config.json
    "_class_name": "WanTransformer3DModel", "added_kv_proj_dim": None, "attention_head_dim": 128,
    "cross_attn_norm": True, "eps": 1e-06, "ffn_dim": 13824, "freq_dim": 256, "image_dim": None, "in_channels": 16,
    "num_attention_heads": 40, "num_layers": 40, "out_channels": 16, "patch_size": [1, 2, 2],
    "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": 4096,
}  # fmt: skip
NAMES = (
    "FluxTransformer2DModel", "SD3Transformer2DModel", "PixArtTransformer2DModel", "QwenImageTransformer2DModel",
    "WanTransformer3DModel",
)  # fmt: skip


def linear(columns: int, rows: int) -> int:
    """Parameters of a product with its bias."""
    return columns * rows + rows


def embedded(features: int, hidden: int) -> int:
    """Parameters of an MLP that embeds something once an image."""
    return linear(features, hidden) + linear(hidden, hidden)


def tiny(name: str, **more: Any) -> ModelGraph:
    """The tiny model of a class."""
    return read({"_class_name": name, **DECLARED[name].tiny, **more}, "tiny")


def test_parameters_of_flux() -> None:
    """By hand: 19 layers of two streams, 38 of one, guidance embedded beside time and pooled text. 11.90 billion."""
    h, head = 3072, 128
    ends = embedded(256, h) * 2 + embedded(768, h) + linear(4096, h) + linear(64, h) + linear(h, 2 * h) + linear(h, 64)
    double = 2 * (linear(h, 6 * h) + 4 * linear(h, h) + linear(h, 4 * h) + linear(4 * h, h) + 2 * head)
    single = linear(h, 3 * h) + 3 * linear(h, h) + linear(h, 4 * h) + linear(5 * h, h) + 2 * head
    assert read(FLUX, "dev").num_parameters() == ends + 19 * double + 38 * single == 11_901_408_320
    schnell = read({**FLUX, "guidance_embeds": False}, "schnell")
    assert schnell.num_parameters() == 11_901_408_320 - embedded(256, h)


def test_parameters_of_stable_diffusion() -> None:
    """The released index: 16,292,561,536 bytes of 16 bits, positions that do not train among them."""
    graph = read(SD3, "sd3.5-large")
    assert graph.num_parameters() == 16_292_561_536 // 2
    assert graph.num_parameters() - graph.num_trained_parameters() == 192**2 * 2432


def test_parameters_of_dual_layers() -> None:
    """By hand, of 3.5 Medium: 13 of 24 layers have a second attention of the image, with three vectors more."""
    h, head = 1536, 64
    medium = {
        **SD3, "caption_projection_dim": h, "dual_attention_layers": [*range(13)], "num_attention_heads": 24,
        "num_layers": 24, "pos_embed_max_size": 384,
    }  # fmt: skip
    ends = embedded(256, h) + embedded(2048, h) + linear(4096, h) + linear(64, h) + linear(h, 2 * h) + linear(h, 64)
    stream = linear(h, 6 * h) + 4 * linear(h, h) + linear(h, 4 * h) + linear(4 * h, h) + 2 * head
    last = stream + linear(h, 2 * h) + 3 * linear(h, h) + 2 * head
    dual = linear(h, 9 * h) - linear(h, 6 * h) + 4 * linear(h, h) + 2 * head
    graph = read(medium, "medium")
    assert graph.num_trained_parameters() == ends + 23 * 2 * stream + last + 13 * dual == 2_243_171_520
    assert graph.num_parameters() - graph.num_trained_parameters() == 384**2 * h


def test_flop_of_dual_layers() -> None:
    """Three vectors more an image, four products more a patch, and a score of every patch with every key."""
    h, seq, image = 48, 72, 64
    dual, plain = (tiny("SD3Transformer2DModel", dual_attention_layers=layers) for layers in ([0], []))
    products = [matmul_flop_per_token(graph, seq) * seq for graph in (dual, plain)]
    assert products[0] - products[1] == pytest.approx(2 * (3 * h * h + image * 4 * h * h))
    scores = [attention_flop_per_token(graph, seq) * seq for graph in (dual, plain)]
    assert scores[0] - scores[1] == pytest.approx(4 * image * seq * h)
    training = simpar.Training(seq_len=72, global_batch=64)
    plan = {"tp": 2, "sequence_parallel": True, "pp": 2, "recompute": "selective"}
    slow, fast = (simpar.simulate(graph, "dgx-h100", plan, training).step_time_s for graph in (dual, plain))
    assert slow > fast


def test_parameters_of_pixart() -> None:
    """By hand: a table of six vectors in every layer, one product that makes all modulations; 0.6 billion."""
    h = 1152
    sizes = 2 * embedded(256, h // 3)
    ends = embedded(256, h) + sizes + linear(h, 6 * h) + linear(4096, h) + linear(h, h) + linear(16, h)
    ends += 2 * h + linear(h, 4 * 8)
    layer = 6 * h + 8 * linear(h, h) + linear(h, 4 * h) + linear(4 * h, h)
    assert read(PIXART, "alpha").num_parameters() == ends + 28 * layer == 611_349_152
    sigma = read({**PIXART, "use_additional_conditions": False, "text_tokens": 300}, "sigma")
    assert sigma.num_parameters() == 611_349_152 - sizes


def test_parameters_of_qwen_image() -> None:
    """By hand: 60 layers of two streams, the last like the others; 20 billion."""
    h, head = 3072, 128
    stream = linear(h, 6 * h) + 4 * linear(h, h) + linear(h, 4 * h) + linear(4 * h, h) + 2 * head
    ends = embedded(256, h) + 3584 + linear(3584, h) + linear(64, h) + linear(h, 2 * h) + linear(h, 64)
    assert read(QWEN, "image").num_parameters() == ends + 60 * 2 * stream == 20_430_401_088


@pytest.mark.parametrize(
    ("heads", "layers", "ffn", "total"), [(40, 40, 13824, 14_288_491_584), (12, 30, 8960, 1_418_996_800)]
)
def test_parameters_of_wan(heads: int, layers: int, ffn: int, total: int) -> None:
    """By hand: norms over all heads in both attentions, one with weights before the second, a table of six vectors."""
    h = heads * 128
    layer = 8 * linear(h, h) + 2 * 2 * h + 2 * h + linear(h, ffn) + linear(ffn, h) + 6 * h
    ends = embedded(256, h) + linear(h, 6 * h) + linear(4096, h) + linear(h, h) + linear(16 * 4, h) + 2 * h
    config = {**WAN, "num_attention_heads": heads, "num_layers": layers, "ffn_dim": ffn}
    assert read(config, "wan").num_parameters() == ends + layers * layer + linear(h, 16 * 4) == total


def test_flop_of_a_video() -> None:
    """A layer of Wan: eight products and an MLP of its own width a patch, of which two are of the text."""
    h, text, seq, ffn = 48, 8, 64, 96
    more, fewer = (tiny(NAMES[4], num_layers=n) for n in (3, 2))
    layer = [matmul_flop_per_token(graph, seq) * seq for graph in (more, fewer)]
    assert layer[0] - layer[1] == pytest.approx(2 * (seq * (6 * h * h + 2 * h * ffn) + text * 2 * h * h))


def test_flop_of_joint_attention() -> None:
    """Text and image have products of their own, once each, and attend to each other; MLPs are four times as wide."""
    h, text, seq, image = 48, 8, 72, 64
    graph = tiny("SD3Transformer2DModel")
    once = 256 * h + h * h + 20 * h + h * h  # time and pooled text
    first = 2 * 6 * h * h + seq * (4 * h * h + 8 * h * h)
    last = 8 * h * h + seq * 3 * h * h + image * (h * h + 8 * h * h)
    ends = text * 24 * h + image * 16 * 4 * h + 2 * h * h + image * h * 64
    assert matmul_flop_per_token(graph, seq) * seq == pytest.approx(2 * (once + first + last + ends))
    assert attention_flop_per_token(graph, seq) * seq == pytest.approx(2 * 4 * seq**2 * h)


def test_flop_of_layers_of_one_stream() -> None:
    """A single layer of Flux: 3 h^2 once, and 12 h^2 a token of text and image."""
    seq, h = 72, 48
    more, fewer = (matmul_flop_per_token(tiny(NAMES[0], num_single_layers=n), seq) * seq for n in (3, 2))
    assert more - fewer == pytest.approx(2 * (3 * h * h + seq * 12 * h * h))


def test_flop_of_cross_attention() -> None:
    """Keys and values of the text are projected in every layer, queries and outputs with the patches."""
    h, text, seq = 48, 8, 64
    more, fewer = (tiny(NAMES[2], num_layers=n) for n in (3, 2))
    layer = [matmul_flop_per_token(graph, seq) * seq for graph in (more, fewer)]
    assert layer[0] - layer[1] == pytest.approx(2 * (seq * (4 + 2 + 8) * h * h + text * 2 * h * h))
    scores = [attention_flop_per_token(graph, seq) * seq for graph in (more, fewer)]
    assert scores[0] - scores[1] == pytest.approx(4 * h * (seq**2 + seq * text))


@pytest.mark.parametrize(
    ("name", "seq"), [(NAMES[0], 72), (NAMES[1], 72), (NAMES[2], 64), (NAMES[3], 72), (NAMES[4], 64)]
)
def test_what_travels(name: str, seq: int) -> None:
    """Behind a layer: all tokens, and one row of conditions an image; PixArt's text and seven vectors beside."""
    graph = tiny(name)
    dims = shape_dims(graph, seq, batch=3)
    rows = seq + 8 + 7 if name in (NAMES[2], NAMES[4]) else seq + 1
    for block in (graph.embedding, graph.blocks["layer"]):
        assert block.output_elements(dims) == 3 * rows * 48


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_plan_answers(name: str) -> None:
    """Model FLOP are the same under any; weights are split by tensor parallelism, stages and shards."""
    training = simpar.Training(seq_len=64, global_batch=64)
    plans = ({}, {"tp": 2, "sequence_parallel": True}, {"pp": 2, "zero": 1}, {"zero": 3}, {"cp": 2})
    results = [simpar.simulate(tiny(name), "dgx-h100", plan, training) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1
    assert all(result.memory.static_memory_bytes < results[0].memory.static_memory_bytes for result in results[1:4])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**SD3, "dual_attention_layers": [38]}, "dual_attention_layers = 38: allowed: numbers of layers from 0 to 37"),
        ({**SD3, "caption_projection_dim": 1152}, "caption_projection_dim = 1152: allowed: 2432"),
        ({**SD3, "qk_norm": "layer_norm"}, "qk_norm = 'layer_norm': allowed: rms_norm"),
        ({**PIXART, "norm_type": "layer_norm"}, "norm_type = 'layer_norm': allowed: ada_norm_single"),
        ({**PIXART, "dropout": 0.1}, "dropout = 0.1: allowed: 0"),
        ({**WAN, "image_dim": 1280}, "image_dim = 1280: allowed: null, images as a condition are not read"),
        ({**WAN, "patch_size": 2}, "patch_size = 2: allowed: three sizes above 0"),
        ({**QWEN, "guidance_embeds": True}, "guidance_embeds = True: allowed: False"),
        ({"_class_name": "UNet2DConditionModel"}, "this class of diffusers is not read; allowed: FluxTransformer2DMo"),
    ],
)
def test_what_is_not_modelled_is_refused(config: dict[str, Any], words: str) -> None:
    """With the field, its value and what is allowed, in one line."""
    with pytest.raises(UserError, match=words) as refused:
        read(config, "theirs")
    assert "\n" not in str(refused.value)


def test_a_sequence_is_longer_than_its_text() -> None:
    """As it has the patches of an image besides."""
    with pytest.raises(UserError, match=r"seq_len = 512: dev has 512 tokens of text a sequence; allowed: more"):
        simpar.simulate(read(FLUX, "dev"), "dgx-h100", {}, simpar.Training(seq_len=512, global_batch=64))
