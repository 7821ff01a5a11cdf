"""Configs of every family that the runtime builds, so small that a test trains them, as transformers takes them."""

from typing import Any

from simpar.architectures.families import DECLARED
from simpar.architectures.families.family import TINY
from simpar.architectures.hf_config import read

LLAMA = TINY


def is_simulated(kind: str) -> bool:
    """Whether a family has parts that no run computes, or a tower, or no vocabulary."""
    family = DECLARED[kind]
    graph = read({**family.tiny, "model_type": kind}, kind)
    return family.nested or bool(graph.details.unbuilt) or graph.dims["vocab"] == 1


SIMULATED = {
    "bert", "roberta", "xlm-roberta", "t5", "mt5", "umt5", "phimoe", "whisper",
    *filter(is_simulated, DECLARED),
}  # fmt: skip
"""Families that no run computes."""
WITHOUT_CLASS = {
    "deepseek", "kimi_k2", "grok-1", "glm4v_text", "glm4v_moe_text", "qwen2_vl_text", "qwen2_5_vl_text",
    "qwen3_vl_text", "qwen3_vl_moe_text", "exaone4_5_text", "bailing_moe", "bailing_moe_v2",
}  # fmt: skip
"""Families of which transformers has no class, or one around that of another name."""
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 0.7,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    **{kind: {**DECLARED[kind].tiny} for kind in DECLARED.keys() - SIMULATED - WITHOUT_CLASS},
    "llama-llama3": {**LLAMA, "rope_parameters": {**LLAMA3, "rope_theta": 500_000.0}},
    "llama-linear": {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-yarn": {**LLAMA, "rope_scaling": {**YARN, "mscale": None, "mscale_all_dim": None}},
    "llama-biased": {**LLAMA, "attention_bias": True, "mlp_bias": True},
    "granitemoehybrid-experts": {**DECLARED["granitemoehybrid"].tiny, "num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron_h-experts": {
        **DECLARED["nemotron_h"].tiny, "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"],
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 24, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
    },
    "nemotron_h-latent": {
        **DECLARED["nemotron_h"].tiny, "layers_block_type": ["mamba", "moe", "attention", "moe"],
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "moe_latent_size": 8,
        "moe_shared_expert_intermediate_size": 24,
    },
    "mamba2-limited": {**DECLARED["mamba2"].tiny, "time_step_limit": [0.02, 0.05]},
    "olmo-clipped": {**LLAMA, "clip_qkv": 0.5},
    "deepseek_v3-yarn": {**DECLARED["deepseek_v3"].tiny, "n_group": 1, "topk_group": 1, "rope_scaling": YARN},
    "smollm3-windowed": {
        **DECLARED["smollm3"].tiny, "use_sliding_window": True, "sliding_window": 8, "no_rope_layers": [1, 0, 1, 0],
    },
    "stablelm-parallel": {**LLAMA, "use_parallel_residual": True},
}  # fmt: skip
MODELS = dict(sorted(MODELS.items()))
"""By model_type, after a dash what is special about a variant."""
