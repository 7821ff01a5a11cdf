"""Words of Megatron-Bridge's recipes that no plan has, by what they change, and those without effect beside others."""

import re
from bisect import bisect_left

from simpar.frameworks.bridge_names import PLAIN
from simpar.frameworks.megatron_arguments import SIZES
from simpar.frameworks.megatron_words import MEGATRON_WORDS
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.trainer_towers import frozen_parts, has_tower
from simpar.frameworks.words import ReadWords, TableNames, WordTable, is_off
from simpar.plan.plan import Plan

SEEN = "model.vision_model"
FREEZING = ("model.freeze_vision_model", "model.freeze_vision_projection")
MIXED = "adapters of mixers"
HALVES = ("bf16", "fp16", "fp32")
OF_LOW_BITS = (
    r"fp8|fp4|first_last_layers_bf16|num_layers_at_\w+_in_bf16|disable_parameter_transpose_cache|keep_mtp_spec"
)
"""Words that only products in 8 or 4 bits read."""
PARTS_OF = {
    "model.cpu_offloading_num_layers": "model.cpu_offloading",
    "model.activation_offload_fraction": "model.fine_grained_activation_offloading",
    "model.offload_modules": "model.fine_grained_activation_offloading",
    "optimizer.optimizer_offload_fraction": "optimizer.optimizer_cpu_offload",
    "optimizer.overlap_cpu_optimizer_d2h_h2d": "optimizer.optimizer_cpu_offload",
}
"""Words that only what another word switches on reads."""


def without_idle(words: ReadWords, plan: Plan, given: ConfigReader) -> ReadWords:
    """The words, with those used that have no effect beside what else is said."""
    idle: list[str] = []
    if plan.numerics.precision in HALVES:
        idle += [word for word in words.unread if re.search(OF_LOW_BITS, word)]
    idle += [word for word, switch in PARTS_OF.items() if word in words.unread and is_off(given.values_.get(switch))]
    if plan.tuning.lora_rank:
        idle.append("peft")
    if given.values_.get("model.pipeline_model_parallel_layout"):  # which says how many chunks a rank has
        idle.append("model.virtual_pipeline_model_parallel_size")
    if words.unread.get("ddp.outer_dp_sharding_strategy") == "no_shard":
        idle.append("ddp.outer_dp_sharding_strategy")
    kept = {word: value for word, value in words.unread.items() if word not in idle}
    return ReadWords((*words.used, *(word for word in words.unread if word in idle)), kept)


def with_tower(plan: Plan, model: str | None, named: str, given: ConfigReader) -> tuple[Plan, dict[str, str]]:
    """The plan of a recipe with the parts of the model's tower that it freezes, and what decides of a tower otherwise.

    Adapters may stand in a tower, too, and a shipped model may have none where the recipe's has.
    """
    if has_tower(model) and not plan.tuning.lora_rank:
        return plan.with_values(**frozen_parts([not given.get(field) for field in FREEZING])), {}
    return plan, {SEEN: named} if re.search(r"_(vl|vlm|omni)_|vision", named) else {}


PREDICTED = "model.mtp_num_layers"
_OWN = WordTable(
    idle=(
        "checkpoint.*",
        "validation.*",
        "scheduler.*",
        "logger.*",
        "tokenizer*",
        "train.tokenizer*",
        "rng.*",
        "dataset.*",
        "env_vars",
        "dist",
        "profiling.*",
        "ft.*",
        "straggler.*",
        "nvrx_straggler.*",
        "rerun_state_machine.*",
        "dist.*",
        "peft.*",
        "log.*",
        "resume.*",
        "optim.*",
        "tensor_inspect.*",
        "train.train_iters",
        "train.manual_gc*",
        "train.eval*",
        "train.exit*",
        "optimizer.lr",
        "optimizer.min_lr",
        "optimizer.weight_decay",
        "optimizer.adam_*",
        "optimizer.clip_grad",
        "optimizer.bf16",
        "optimizer.fp16",
        "optimizer.main_*",
        "optimizer.muon_*",
        "ddp.average_in_collective",
        "ddp.check_for_*",
        "ddp.align_param_gather",
        "model.gradient_as_bucket_view",
        "model.config",  # a class that names the model
        "mixed_precision.fp8_margin",
        "mixed_precision.fp8_amax_*",
        "model.init_method*",
        "model.rotary_*",
        "model.yarn_*",
        "model.mscale*",
        "model.mtp_*",
        "model.max_vision_cuda_graph_seq_length",  # where graphs are used, which decides
        "ddp.fsdp_db_use_persist_buf_on_alloc_fail",  # beside two buffers, which decide
        "model.load_weights",
        "model.pipeline_dtype",
        "model.params_dtype",
        "model._pipeline*",
        "model.transformer_impl",
        "model.cuda_graph_warmup_steps",
        "model.cuda_graph_scope",
        "model.tp_comm_overlap_cfg",
        *(
            f"model.moe_router_{name}"
            for name in (
                "load_*",
                "score_*",
                "topk_scaling_factor",
                "pre_*",
                "bias_*",
                "dtype",
                "fusion",
                "enable_*",
                "force_load*",
                "quantile*",
                "padding*",
            )
        ),
        "model.moe_aux_loss_coeff",
        "model.moe_z_loss_coeff",
        "model.apply_rope_fusion",
        "model.should_pad_vocab",
        "model.make_vocab_size_divisible_by",
        "model.layernorm_*",
        "model.normalization",
        "model.position_embedding_type",
        "model.attention_softmax_in_fp32",
        "model.bf16",
        "model.gradient_accumulation_fusion",
        "model.trust_remote_code",
        "model.masked_softmax_fusion",
        "model.bias_*_fusion",
        "model.persist_layer_norm",
        "model.qk_clip*",
        "trainer.*",
        "moe_grouped_gemm",
        "mixed_precision.bf16",
        "mixed_precision.params_dtype",
        "mixed_precision.pipeline_dtype",
        "mixed_precision.autocast*",
        "mixed_precision.precision",
        "model.freeze_*",
        "model.hf_model_*",
        "model.moe_a2a_overlap",  # nothing reads it: the exchange overlaps where comm_overlap says so
        "train.check_optimizer_step_success",
        "train.skip_sync_grad_norm_across_mp",
        "optimizer.lion_beta*",
        "optimizer.apply_wd_to_qk_layernorm",
    ),
    deciding={
        **dict.fromkeys((PLAIN[flag] for flag in SIZES), "a size that the model does not have: memory and time"),
        "model.fine_grained_activation_offloading": "activations of named modules leave the device: memory and time",
        "model.cpu_offloading": "activations leave the device: memory and time",
        "model.delay_wgrad_compute": "gradients of weights are computed later: time of overlap",
        "*.overlap_param_gather_with_optimizer_step": "parameters are gathered beside the update: time",
        "model.use_transformer_engine_op_fuser": "fused operators of experts: time and memory",
        "model.moe_paged_stash": "activations of experts are stashed in pages: memory",
        "model.moe_expert_rank_capacity_factor": "tokens that a rank takes: time and memory of experts",
        "mixed_precision.fp8_param*": "weights are kept and gathered in 8 bits: memory and time",
        "mixed_precision.fp8_dot_product_attention": "attention in 8 bits: time",
        "mixed_precision.first_last_layers_bf16": "some layers are not in 8 bits: time",
        "mixed_precision.num_layers_at_*": "some layers are not in 8 bits: time",
        PREDICTED: "layers that predict further tokens, other than the model's: step time and memory",
        "model.keep_mtp_spec_in_bf16": "prediction layers are not in 8 bits: time",
        "*.reuse_grad_buf_for_mxfp8_param_ag": "gathered parameters in the buffer of gradients: memory",
        "*.fp4_param*": "weights are kept and gathered in 4 bits: memory and time",
        "ddp.suggested_communication_unit_size": "how much is gathered and reduced at once: memory and overlap",
        "ddp.num_buckets": "how much is gathered and reduced at once: memory and overlap",
        "ddp.outer_dp_sharding_strategy": "what replicas of shards share out among them: memory and communication",
        "ddp.fsdp_manual_registration": "registered buffers of collectives: time and memory",
        "ddp.megatron_fsdp_*": "dtypes of what is gathered and reduced, and when: memory and communication",
        "optimizer.offload_optimizer_states": "states wait on the host: memory and time",
        "optimizer.optimizer_offload_fraction": "how much of the update is on the host: memory and time",
        "optimizer.overlap_cpu_optimizer_d2h_h2d": "whether the host's update overlaps with its copies: step time",
        "train.empty_unused_memory_level": "cached memory goes back in every step: time, and less memory kept",
        "ddp.nccl_ub": "registered buffers of collectives: time and memory",
        "ddp.fsdp_double_buffer": "two buffers of gathered parameters: memory",
        "ddp.keep_fp8_transpose_cache*": "transposed weights in 8 bits are kept: memory",
        "model.disable_parameter_transpose_cache": "transposed weights in 8 bits are not kept: memory",
        "model.use_transformer_engine_full_layer_spec": "layers of Transformer Engine as a whole: time",
        "model.fp8_output_proj": "the output projection in 8 bits: time",
        "model.attention_backend": "the kernel of attention: time and memory",
        "model.cuda_graph_impl": "graphs of parts that a plan does not name: time and memory",
        "model.moe_flex_dispatcher_backend": "kernels of the exchange of tokens: time",
        "model.window_*": "attention in windows: time",
        MIXED: "adapters beside projections of Mamba's mixers, which are left out: memory and time",
        SEEN: "an encoder of images beside the language model, and its tokens: time and memory",
        "model.freeze_language_model": "layers that are not trained: time and memory",
        "model.mamba_chunk_size": "the length of the pieces in which Mamba's scan runs: time and memory",
    },
    off={"model.use_mamba_mem_eff_path": MEGATRON_WORDS.deciding["disable_mamba_mem_eff_path"]},
)
_MEGATRON = MEGATRON_WORDS.under("model")
_IDLE, _IN_ORDER = TableNames.of(_OWN.idle), sorted(_OWN.idle)


def _is_idle(name: str) -> bool:
    """Whether a recipe's own words without effect hold one of Megatron-LM's: as it is, by a pattern, or below it."""
    start = name.rstrip("*")
    below = _IN_ORDER[bisect_left(_IN_ORDER, start) :][:1]
    return _IDLE.first(name) is not None or any(each.startswith(start) for each in below)


WORDS = (
    WordTable(_MEGATRON.idle, {name: what for name, what in _MEGATRON.deciding.items() if not _is_idle(name)}) | _OWN
)
"""Fields of recipes that no plan has, by what they change; those of a model are Megatron-LM's arguments, too."""
