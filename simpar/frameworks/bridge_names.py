"""The names of Megatron-LM's arguments as fields of Megatron-Bridge's configs."""

_FIELDS = (
    ("model", (
        "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "normalization",
        "vocab_size", "position_embedding_type", "num_query_groups", "rotary_base", "rotary_percent",
        "seq_len_interpolation_factor", "layernorm_epsilon", "init_method_std", "attention_dropout",
        "hidden_dropout", "window_attn_skip_freq", "tensor_model_parallel_size", "pipeline_model_parallel_size",
        "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "num_moe_experts",
        "moe_ffn_hidden_size", "moe_router_topk", "moe_router_load_balancing_type", "moe_router_score_function",
        "moe_router_topk_scaling_factor", "moe_router_num_groups", "moe_router_group_topk", "moe_router_dtype",
        "moe_shared_expert_intermediate_size", "rope_scaling_factor", "yarn_rotary_scaling_factor",
        "yarn_original_max_position_embeddings", "yarn_beta_fast", "yarn_beta_slow", "yarn_mscale",
        "yarn_mscale_all_dim", "softmax_type", "glu_linear_offset", "activation_func_clamp_value", "mtp_num_layers",
        "mtp_loss_scaling_factor", "moe_aux_loss_coeff", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend",
        "cuda_graph_impl", "cuda_graph_modules",
        "moe_expert_capacity_factor", "cp_comm_type", "hierarchical_context_parallel_sizes",
        "pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size", "recompute_granularity",
        "recompute_method", "recompute_num_layers", "cross_entropy_fusion_impl",
        "hybrid_layer_pattern", "mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads",
        "moe_latent_size",
    )),
    ("ddp", ("data_parallel_sharding_strategy", "num_distributed_optimizer_instances", "bucket_size")),
    ("checkpoint", ("ckpt_format",)),
    ("optimizer", ("optimizer", "sgd_momentum", "exp_avg_dtype", "exp_avg_sq_dtype", "optimizer_offload_fraction")),
    ("train", ("micro_batch_size", "global_batch_size", "train_iters", "empty_unused_memory_level")),
    ("optimizer", ("lr",)),
    ("logger", ("log_interval",)),
)  # fmt: skip
"""Fields by section that hold the value of an argument."""
_ELSEWHERE = {
    "model.seq_len_interpolation_factor": "--rotary-seq-len-interpolation-factor",
    "model.layernorm_epsilon": "--norm-epsilon",
    "model.num_moe_experts": "--num-experts",
    "model.yarn_rotary_scaling_factor": "--rotary-scaling-factor",
    "model.yarn_mscale": "--mscale",
    "model.yarn_mscale_all_dim": "--mscale-all-dim",
    "model.virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "ddp.bucket_size": "--ddp-bucket-size",
}
"""Arguments of fields that are not called like them."""

PLAIN = {
    _ELSEWHERE.get(f"{section}.{name}", f"--{name.replace('_', '-')}"): f"{section}.{name}"
    for section, names in _FIELDS
    for name in names
}
SWITCHES: dict[str, dict[str, bool]] = {
    "--add-qkv-bias": {"model.add_qkv_bias": True},
    "--apply-layernorm-1p": {"model.layernorm_zero_centered_gamma": True},
    "--mtp-use-repeated-layer": {"model.mtp_use_repeated_layer": True},
    "--rotary-interleaved": {"model.rotary_interleaved": True},
    "--no-bias-gelu-fusion": {"model.bias_activation_fusion": False},
    "--use-rope-scaling": {"model.rope_scaling": True},
    "--no-yarn-correction-range-round-to-int": {"model.yarn_correction_range_round_to_int": False},
    "--moe-router-enable-expert-bias": {"model.moe_router_enable_expert_bias": True},
    "--moe-router-force-load-balancing": {"model.moe_router_force_load_balancing": True},
    "--moe-router-pre-softmax": {"model.moe_router_pre_softmax": True},
    "--moe-shared-expert-gate": {"model.moe_shared_expert_gate": True},
    "--moe-shared-expert-overlap": {"model.moe_shared_expert_overlap": True},
    "--disable-bias-linear": {"model.add_bias_linear": False},
    "--qk-layernorm": {"model.qk_layernorm": True},
    "--moe-grouped-gemm": {"model.moe_grouped_gemm": True},
    "--moe-permute-fusion": {"model.moe_permute_fusion": True},
    "--moe-pad-expert-input-to-capacity": {"model.moe_pad_expert_input_to_capacity": True},
    "--overlap-moe-expert-parallel-comm": {"model.overlap_moe_expert_parallel_comm": True},
    "--te-rng-tracker": {"model.use_te_rng_tracker": True, "rng.te_rng_tracker": True},
    "--sequence-parallel": {"model.sequence_parallel": True},
    "--tp-comm-overlap": {"model.tp_comm_overlap": True},
    "--cross-entropy-loss-fusion": {"model.cross_entropy_loss_fusion": True},
    "--no-gradient-accumulation-fusion": {"model.gradient_accumulation_fusion": False},
    "--use-tp-pp-dp-mapping": {"dist.use_tp_pp_dp_mapping": True},
    "--use-distributed-optimizer": {"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True},
    "--use-precision-aware-optimizer": {"optimizer.use_precision_aware_optimizer": True},
    "--optimizer-cpu-offload": {"optimizer.optimizer_cpu_offload": True},
    "--use-megatron-fsdp": {"ddp.use_megatron_fsdp": True, "dist.use_megatron_fsdp": True},
    "--overlap-grad-reduce": {"ddp.overlap_grad_reduce": True},
    "--overlap-param-gather": {"ddp.overlap_param_gather": True, "optimizer.overlap_param_gather": True},
}
REDUCES_IN_FP32 = {"bf16": True, "fp16": False}
"""Whether gradients are reduced in fp32 by Bridge's precisions of a half (``training/mixed_precision.py``); what the
precision says goes over the replicas' own config."""
