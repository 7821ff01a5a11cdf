"""Configs of every family that the runtime builds, so small that a test trains them, as transformers takes them."""

from typing import Any

from simpar.models.families import DECLARED

LLAMA = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WIDE = {**LLAMA, "head_dim": 8}
DEEP = {**LLAMA, "num_hidden_layers": 4}
MIXER = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 8}
LATENT = {
    **LLAMA, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8, "moe_intermediate_size": 16,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 0.7,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 96}
FALCON = {**ENDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**LLAMA, "rope_theta": 500_000.0, "rms_norm_eps": 1e-3},
    "llama-llama3": {**LLAMA, "rope_parameters": {**LLAMA3, "rope_theta": 500_000.0}},
    "llama-linear": {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-yarn": {**LLAMA, "rope_scaling": {**YARN, "mscale": None, "mscale_all_dim": None}},
    "llama-biased": {**LLAMA, "attention_bias": True, "mlp_bias": True},
    "mistral": {**LLAMA, "sliding_window": 8}, "qwen2": LLAMA, "qwen3": WIDE, "gemma": WIDE,
    "gemma2": {**WIDE, "sliding_window": 8, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**WIDE, "sliding_window": 8, "num_hidden_layers": 7},
    "phi3": LLAMA, "phi": LLAMA, "olmo": LLAMA, "olmo-clipped": {**LLAMA, "clip_qkv": 0.5}, "olmo2": LLAMA,
    "gpt2": {**ENDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
             "attn_pdrop": 0.0, "embd_pdrop": 0.0},
    "gpt_neox": {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"},
    "falcon": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "mpt": {"vocab_size": 96, "d_model": 36, "n_layers": 2, "n_heads": 6},
    "opt": {**FALCON, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64, "dropout": 0.0},
    "bloom": {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "starcoder2": LLAMA,
    "mixtral": {**LLAMA, "num_local_experts": 4},
    "qwen2_moe": {**LLAMA, "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
                  "num_experts_per_tok": 2},
    "qwen3_moe": {**WIDE, "num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2},
    "deepseek_v2": {**LATENT, "head_dim": 4, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**LATENT, "n_group": 4, "topk_group": 2},
    "deepseek_v3-yarn": {**LATENT, "n_group": 1, "topk_group": 1, "rope_scaling": YARN},
    "glm4_moe": {**WIDE, **{key: LATENT[key] for key in LATENT if "lora" not in key and "head_dim" not in key},
                 "head_dim": 8, "use_qk_norm": True, "attention_bias": True},
    "dbrx": {"vocab_size": 96, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64,
             "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 0.5},
             "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}},
    "gpt_oss": {**WIDE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "olmoe": {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {**LLAMA, "num_local_experts": 4, "residual_multiplier": 0.3, "attention_multiplier": 0.2},
    "granitemoeshared": {**LLAMA, "num_local_experts": 4, "shared_intermediate_size": 24},
    "dots1": {**LLAMA, "num_hidden_layers": 3, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
              "moe_intermediate_size": 16, "first_k_dense_replace": 1, "max_window_layers": 2, "sliding_window": 8},
    "flex_olmo": {**LLAMA, "num_experts": 4, "num_experts_per_tok": 3},
    "minimax_m2": {**WIDE, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4},
    "ernie4_5_moe": {**LLAMA, "num_hidden_layers": 3, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    "hunyuan_v1_moe": {**WIDE, "num_experts": 4, "moe_topk": 2},
    "falcon_h1": {**LLAMA, **MIXER, "mamba_d_ssm": 64}, "bamba": {**DEEP, **MIXER, "attn_layer_indices": [1, 3]},
    "granitemoehybrid": {**DEEP, **MIXER, "num_local_experts": 0, "shared_intermediate_size": 24,
                         "layer_types": ["linear_attention", "full_attention"] * 2, "residual_multiplier": 0.3},
    "nemotron_h": {**{key: WIDE[key] for key in WIDE if key != "num_hidden_layers"}, "mamba_num_heads": 8,
                   "n_groups": 2, "mamba_head_dim": 8, "ssm_state_size": 16, "chunk_size": 8,
                   "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"]},
    "mamba2": {**ENDS, "hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 16, "num_hidden_layers": 2,
               "n_groups": 2, "chunk_size": 8, "pad_token_id": 0},
    "granite": {**LLAMA, "embedding_multiplier": 6.0, "logits_scaling": 4.0, "residual_multiplier": 0.3,
                "attention_multiplier": 0.2},
    "arcee": LLAMA, "ernie4_5": {**WIDE, "use_bias": True},
    "internlm3": {**WIDE, "attention_bias": True, "mlp_bias": True},
    "seed_oss": {**WIDE, "attention_dropout": 0.0, "residual_dropout": 0.0}, "helium": {**WIDE, "attention_bias": True},
    "ministral": {**WIDE, "sliding_window": 8},
    "ministral3": {**WIDE, "rope_parameters": {**YARN, "rope_theta": 1e6, "llama_4_scaling_beta": 0.0}},
    "cwm": {**WIDE, "sliding_window": 8}, "cohere": {**LLAMA, "attention_bias": True},
    "cohere2": {**DEEP, "sliding_window": 8}, "glm": WIDE, "glm4": WIDE,
    "olmo3": {**DEEP, "sliding_window": 8, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "exaone4": {**DEEP, "sliding_window": 8}, "smollm3": DEEP,
    "smollm3-windowed": {**DEEP, "use_sliding_window": True, "sliding_window": 8, "no_rope_layers": [1, 0, 1, 0]},
    "stablelm": {**LLAMA, "use_qkv_bias": True}, "stablelm-parallel": {**LLAMA, "use_parallel_residual": True},
    "nemotron": LLAMA, "jais2": LLAMA, "hunyuan_v1_dense": WIDE,
    "persimmon": {**{key: LLAMA[key] for key in LLAMA if key != "num_key_value_heads"}, "qk_layernorm": False},
    "gptj": {**ENDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    "gpt_neo": {**ENDS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8,
                "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64},
    "gpt_bigcode": {**ENDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
                    "attn_pdrop": 0.0, "embd_pdrop": 0.0},
}  # fmt: skip
MODELS |= {kind: {**each.tiny} for kind, each in DECLARED.items()}
"""By model_type, after a dash what is special about a variant."""
