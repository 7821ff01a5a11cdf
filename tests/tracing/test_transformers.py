"""Capture is the declaration: for every declared family, modules of transformers are the models that configs say."""

from __future__ import annotations

from typing import Any

import pytest

import simpar
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token, shape_dims
from simpar.architectures.graph import ModelGraph, evaluate, saved_tensors
from simpar.architectures.hf_config import read
from tests.gate import some
from tests.runtime.tiny_models import MODELS

pytest.importorskip("torch")
pytest.importorskip("transformers")

SEQ = 32
TRAINING = simpar.Training(seq_len=SEQ, global_batch=16)
PLANS = ({"zero": 3}, {"tp": 2, "sequence_parallel": True}, {"pp": 2, "recompute": "full"})
QUICK = ("deepseek_v3", "gemma2")
"""Experts behind latent attention, grouped queries with windows."""
WITHOUT_CLASS = (
    "bailing_moe", "bailing_moe_v2", "deepseek", "kimi_k2", "grok-1", "kimi_vl", "internvl_chat", "minimax_m1",
    "minimax_text_01", "kimi_k3", "minimax_m3", "minimax_m3_text", "exaone4_5_text", "dit",
    "FluxTransformer2DModel", "SD3Transformer2DModel", "PixArtTransformer2DModel", "QwenImageTransformer2DModel",
    "WanTransformer3DModel", "step3_text", "step3_vl", "mimo", "minicpm",
    "dots_ocr", "ernie4_5_moe_vl", "qwen2_5_omni", "qwen3_omni_moe", "musicflamingo", "nemotron-nas",
    "bailing_moe_linear",
)  # fmt: skip
"""Families that come with their own code, of which transformers has no class."""
WITHOUT_HEAD = ("glm4v_text", "glm4v_moe_text", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text",
                "qwen3_vl_moe_text", "step3p5")  # fmt: skip
"""Text parts of models that see; transformers has their language model within the class of the whole only."""
OF_PICTURES = ("vit",)
"""A config gets the library's language model; classes of another kind are chosen by name."""
TEXT_ONLY = ("exaone4_5", "gemma3", "gemma4", "internvl", "kimi_k25", "lfm2_vl", "llama4", "llava", "mistral3",
             "qwen3_5", "qwen3_5_moe", "minimax_m3_vl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v",
             "glm4v_moe", "step3p7", "ernie4_5_vl_moe", "paligemma", "idefics3", "smolvlm", "cohere2_vision",
             "aya_vision", "ovis2", "llava_next", "llava_onevision", "lighton_ocr", "glm46v", "mllama", "voxtral",
             "qwen2_audio", "audioflamingo3", "glmasr", "qwen3_asr", "qwen2_5_omni_thinker",
             "qwen3_omni_moe_thinker")  # fmt: skip
"""Models that see, whose language model is captured: they are compared without pictures."""
SECTIONS = {
    **{name: [2, 1, 1] for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")},
    **{name: [2, 1, 1] for name in ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")},
    "glm4v": [2, 1, 1], "glm46v": [2, 1, 1], "glm4v_moe": [1, 1, 0],
}  # fmt: skip
"""Of the frequencies of a head, those that turn with time, height and width: defaults are those of large heads."""
LONG_ENOUGH = {
    "whisper": {"max_target_positions": 64}, "longcat_flash": {"zero_expert_num": 0},
    "deepseek_v4": {"compress_rate_hca": 8},
}  # fmt: skip
"""Fields of tiny configs that a class needs for the tests' sequences, and for rotary parts of another width."""
WRAPPED = ("gemma3n",)
"""Families whose tiny config is that of the text alone, which the library expects within the whole."""
NO_PREDICTION = {"qwen3_5_text": {"mtp_num_hidden_layers": 0}}
"""Fields that leave out layers for multi-token prediction, which classes of transformers do not have."""


def cases() -> list[Any]:
    """Every declared family of which the library has a class, and the variants of ``tests.runtime.tiny_models``."""
    names = sorted({*DECLARED, *MODELS} - {*WITHOUT_CLASS, *WITHOUT_HEAD, *OF_PICTURES})
    return list(some(names, QUICK))


def config_of(name: str) -> dict[str, Any]:
    """The tiny config of a family, or of a variant, with what its class asks for at that size."""
    kind = name if name in DECLARED else name.split("-")[0]
    config = {**MODELS.get(name, DECLARED[kind].tiny), **NO_PREDICTION.get(kind, {}), **LONG_ENOUGH.get(kind, {})}
    if kind in SECTIONS:
        rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": SECTIONS[kind]}
        config["text_config"] = {**config["text_config"], "rope_parameters": rope}
    if kind in WRAPPED:
        config = {"text_config": config}
    return {**config, "model_type": kind}


def both(name: str) -> tuple[ModelGraph, ModelGraph]:
    """The graph of the library's module, and the declared one."""
    from simpar.tracing.graph import trace_library

    config = config_of(name)
    pictures = {"images_per_sequence": 0, "clips_per_sequence": 0} if name in TEXT_ONLY else {}
    return trace_library(config, "", name, SEQ, f"model = {name}"), read({**config, **pictures}, name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cases())
def test_a_captured_model_is_its_declaration(name: str) -> None:
    """Parameters, FLOP and activations within 1 %, step time within 2 %, in layouts of every kind."""
    captured, declared = both(name)
    assert captured.num_parameters() == pytest.approx(declared.num_parameters(), rel=0.01)
    products = [matmul_flop_per_token(graph, SEQ) for graph in (captured, declared)]
    assert products[0] == pytest.approx(products[1], rel=0.01)
    for convention in ("full", "causal"):
        scores = [attention_flop_per_token(graph, SEQ, convention) for graph in (captured, declared)]
        assert scores[0] == pytest.approx(scores[1], rel=0.01)
    cluster = simpar.Cluster("dgx-h100")
    for plan in (*PLANS, {"ep": 2}) if declared.is_mixture else PLANS:
        one, two = (
            simpar.simulate(graph, cluster, simpar.Plan(micro_batch=1, **plan), TRAINING, with_timeline=False)
            for graph in (captured, declared)
        )
        assert one.speed.step_time_s == pytest.approx(two.speed.step_time_s, rel=0.02)
    assert stream_widths(captured) == stream_widths(declared)
    kept = [activations_bytes(graph) for graph in (captured, declared)]
    assert kept[0] == pytest.approx(kept[1], rel=0.01)


def stream_widths(graph: ModelGraph) -> set[float]:
    """Elements of a token in front of a layer, which full recomputation keeps; towers have widths of their own."""
    dims = shape_dims(graph, SEQ)
    return {float(evaluate(block.stream, block.view(dims))) for block in (graph.blocks[name] for name in graph.layers)}


def activations_bytes(graph: ModelGraph) -> float:
    """What the operators keep of one sequence for backward, in 16 bits; masks take 8, sums of rows and heads 32."""
    dims = shape_dims(graph, SEQ)
    total = 0.0
    for block in (graph.embedding, *(graph.blocks[name] for name in graph.layers), graph.head):
        own = block.view(dims)
        for _, op, what in saved_tensors(block):
            rows = evaluate(op.rows, own) if op else own["batch"] * own["seq"]
            columns = evaluate(op.columns, own) if op else own["hidden"]
            width = {"mask": columns, "stats": 4, "lse": 4 * own["heads"]}.get(what, 2 * columns)
            total += rows * width
    return total
