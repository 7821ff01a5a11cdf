"""Mistral and Ministral: Llama with a window in all layers, and Ministral 3 with queries scaled by their position.

Mistral 4 has latent attention and experts, as DeepSeek.
Mistral Small 3.1 and later have Pixtral's vision tower before one of these; LightOnOCR has it before Qwen 3.
"""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.deepseek import TINY_LATENT, read_deepseek
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import MLP_BIAS, USED_WINDOWS, Windows, llama_like, mark_unbuilt, windows_in
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import GATED_RMS, pixtral


def _read_4(config: Config, name: str) -> ModelGraph:
    return mark_unbuilt(read_deepseek(config, name, usual=USUAL_4), LONG_SCALE)


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """Pixtral's tower; a norm, a product that merges 2 x 2 patches into one as wide, and an MLP."""
    merge = around.size("spatial_merge_size", default=2)
    patches, shape = pixtral(vision, around, merge=merge)
    bias = around.flag("multimodal_projector_bias", default=False)
    steps = (
        ProjectorStep("norm", shape.hidden, norm="rms"), ProjectorStep("linear", shape.hidden, bias=False),
        ProjectorStep("mlp", hidden, inner=hidden, bias=bias),
    )  # fmt: skip
    return Vision(patches, shape, GATED_RMS, steps)


YARN = {
    "rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
}  # fmt: skip
USUAL_4 = {
    "kv_lora_rank": 256, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 128,
    "n_shared_experts": 1, "n_routed_experts": 128, "num_experts_per_tok": 4, "head_dim": 128,
}  # fmt: skip
"""Fields that a config of Mistral 4 may leave out."""
LONG_SCALE = "queries scaled by their position"


def _all(config: Config, layers: int) -> Windows:
    return windows_in(config, layers, [True] * layers, default=4096)


def _read_3(config: Config, name: str) -> ModelGraph:
    graph = llama_like(head_dim=128, kv_heads=8, windows=USED_WINDOWS)(config, name)
    rope = config.mapping("rope_parameters") or config.mapping("rope_scaling")
    return mark_unbuilt(graph, LONG_SCALE) if rope is None or rope.get("llama_4_scaling_beta") else graph


TINY_PIXTRAL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
}  # fmt: skip
FAMILIES = (
    ModelFamily(
        "mistral",
        llama_like(kv_heads=8, windows=USED_WINDOWS),
        Details(norm_eps=0.000001),
        tiny={**TINY, "sliding_window": 8},
    ),
    ModelFamily(
        "ministral",
        llama_like(kv_heads=8, windows=_all, biases=MLP_BIAS),
        Details(norm_eps=0.000001),
        tiny={**TINY, "head_dim": 8, "sliding_window": 8},
    ),
    ModelFamily(
        "ministral3",
        _read_3,
        Details(positions=Positions(Rope(1_000_000.0, scaling=YARN))),
        tiny={
            **TINY,
            "head_dim": 8,
            "rope_parameters": {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0,
                "mscale_all_dim": 0.7, "rope_theta": 1_000_000.0, "llama_4_scaling_beta": 0.0,
            },
        },
    ),
    ModelFamily(
        "mistral4",
        _read_4,
        Details(
            norm_eps=0.000001, positions=Positions(Rope(10_000.0, interleaved=True)), gating=Gating(normalised=True)
        ),
        None,
        {**TINY_LATENT, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0},
    ),
    vision_family(
        "mistral3",
        _tower,
        "mistral",
        tiny={"text_config": TINY, "vision_config": TINY_PIXTRAL, "tie_word_embeddings": False},
    ),
    vision_family(
        "lighton_ocr",
        _tower,
        "qwen3",
        tiny={"text_config": {**TINY, "head_dim": 8}, "vision_config": TINY_PIXTRAL, "tie_word_embeddings": True},
    ),
)  # fmt: skip
