"""Front ends whose arguments look like Megatron-LM's and mean something else: each by its own flags and defaults.

Megatron-DeepSpeed trains by DeepSpeed, MindSpeed on Ascend devices with switches of its own. Sources:
deepspeedai/Megatron-DeepSpeed 4efb479 and bigscience-workshop's fork (``megatron/arguments.py``), Ascend/MindSpeed-LLM
c77308a.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.bridge_recipes import TARGETS
from simpar.frameworks.deepspeed_read import CONFIG_FILE
from simpar.frameworks.deepspeed_read import WORDS as WORDS_OF_DEEPSPEED
from simpar.frameworks.deepspeed_read import read as read_deepspeed
from simpar.frameworks.deepspeed_stages import HEADS, layers_by_method
from simpar.frameworks.deepspeed_states import OWN_STATES, as_run
from simpar.frameworks.megatron_arguments import Arguments, read_arguments, renamed, starts_megatron
from simpar.frameworks.megatron_layers_said import LIMIT, further_layers
from simpar.frameworks.megatron_read import LAYOUT, of_arguments, plan_of
from simpar.frameworks.megatron_words import LOW, MEGATRON_WORDS, OFFLOADED, OTHER_LAYERS, ROUTED
from simpar.frameworks.overrides import text_beside
from simpar.frameworks.reader import Reader
from simpar.frameworks.target import Imported
from simpar.frameworks.words import ReadWords, WordTable
from simpar.plan.plan import Plan

OF_DEEPSPEED = (
    "--zero-stage", "--deepspeed", "--deepspeed-config", "--deepspeed-activation-checkpointing",
    "--no-pipeline-parallel", "--ds-sequence-parallel-size", "--ds-inference", "--deepspeed-mpi",
)  # fmt: skip
SAME_AS = {
    "--num-key-value-heads": "--num-query-groups", "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--topk": "--moe-router-topk", "--ds-sequence-parallel-size": "--context-parallel-size",
}  # fmt: skip
"""Megatron-DeepSpeed's names of arguments that Megatron-LM has by another name."""
FLASH = ("--use-flash-attn", "--use-flash-attn-v1", "--use-flash-attn-v2", "--use-flash-attn-triton")
DEEPSPEED_WORDS = MEGATRON_WORDS | WORDS_OF_DEEPSPEED | WordTable(
    idle=(
        "deepspeed*", "ds_*", "zero_*", "use_pin_memory", "contigious_checkpointing", "synchronize_each_layer",
        "profile_backward", "log_optimizer_states_to_tensorboard", "create_moe_param_group", "abort_on_unmet_fused*",
        "inference", "embed_layernorm", "pad_vocab_size_to", "tokenizer_name_or_path", "universal_checkpoint",
        "kill_switch_path", "codecarbon_dir", "skip_train_iteration_range", "sync_tp_duplicated_parameters",
        "train_weighted_split_paths*", "valid_weighted_split_paths*", "no_load_lr_state", "train_tokens",
        "aml_data*", "train_data_exact*", "return_data_index", "train_*_path", "repeated_dataloader",
        "moe_loss_coeff",
        "use_dataset_only", "kill_switch_file", "rotary_position_embeddings_theta", "disable_moe_top2_2nd*", "topk",
        "overlap_p2p_communication", "retro_encoder_*", "retro_cyclic*", "retro_num*", "retro_return*",
        "lr_decay_tokens", "lr_warmup_tokens", "shape_order", "data_efficiency*", "reset_iteration", "load_tag",
    ),
    deciding={
        **dict.fromkeys(
            (each.lstrip("-").replace("-", "_") for each in CONFIG_FILE[:2]),
            "DeepSpeed's config, which is not here: the stage, offloading, buckets",
        ),
        "partition_activations": "inputs of recomputed layers are split over tensor-parallel ranks: memory",
        "checkpoint_in_cpu": OFFLOADED,
        "cpu_optimizer": "the optimizer's states and update on the host: memory and time",
        "cpu_torch_adam": "which Adam the host runs: time",
        "remote_device": "where ZeRO-3's parameters are: memory and time",
        "memory_centric_tiled_linear": "products in pieces: memory and time",
        "tile_factor": "products in pieces: memory and time",
        "scattered_embeddings": "embeddings are split over ranks: memory",
        "split_transformers": "two parts of a layer are recomputed one by one: memory",
        "expert_interval": "which layers have experts: memory and time",
        "mlp_type": "experts with a dense MLP beside them: memory and time",
        "enable_expert_tensor_parallelism": "how experts are split: memory and communication",
        "moe_*_capacity_factor": "how many tokens an expert takes: time and memory",
        "disable_moe_token_dropping": "how many tokens an expert takes: time and memory",
        "random_ltd": "layers skip tokens: time",
        "curriculum_learning*": "shorter sequences at first: time",
        "enable_zbh1*": "a zero-bubble schedule: time and memory",
        "mos": "a teacher's forward beside the step: time and memory",
        "kd": "a teacher's forward beside the step: time and memory",
        "compression_training": "weights that are pruned or quantised: time",
        **dict.fromkeys(("*_teacher", "kd_*"), "a teacher's forward beside the step: time and memory"),
        **dict.fromkeys(("fp8_e4m3", "fp8_hybrid"), LOW),
        **dict.fromkeys(("num_experts_switch", "use_tutel"), ROUTED),
        **dict.fromkeys(("pipeline_model_parallel_split_rank", "standalone_embedding_stage"),
                        "which layers a stage has: time and memory"),
        "moe_min_capacity": "how many tokens an expert takes: time and memory",
        "embedding_weights_in_fp32": "tables in 32 bits: memory",
        "distribute_checkpointed_activations": "inputs of recomputed layers are split over ranks of tp: memory",
        "force_ds_sequence_parallel": "ranks that share a sequence: memory and communication",
        "use_flash_attn_builder": "the kernel of attention: time and memory",
        "disable_mem_efficient_ln": "what norms keep: memory",
        "no_scatter_gather_tensors_in_pipeline": "bytes between stages: time",
        "glu_activation": "the MLP's activation: time and memory",
    },
)  # fmt: skip

CP_ALGORITHMS = {
    "megatron_cp_algo": "p2p", "ulysses_cp_algo": "a2a", "hybrid_cp_algo": "a2a+p2p",
    "kvallgather_cp_algo": "allgather",
}  # fmt: skip
"""MindSpeed's names of how context-parallel ranks exchange keys and values, by Megatron-LM's."""
OF_MINDSPEED = (
    "--use-fused-rmsnorm", "--use-fused-swiglu", "--use-fused-rotary-pos-emb", "--context-parallel-algo",
    "--swap-attention", "--reuse-fp32-param", "--use-cp-send-recv-overlap", "--use-ascend-mc2", "--swap-optimizer",
    "--use-fused-ring-attention-update", "--recompute-activation-function", "--recompute-in-bubble",
    "--use-ascend-coc", "--use-mc2", "--overlap-alltoall",
    "--use-fused-moe-token-permute-and-unpermute", "--moe-alltoall-overlap-comm", "--use-glm-rope",
    "--gemm-gradient-accumulation-fusion", "--ampipe-degree", "--use-nd-matmul", "--noop-layers", "--ai-framework",
    "--is-instruction-dataset", "--prompt-type", "--lora-target-modules", "--lora-fusion",
)  # fmt: skip
WITHOUT_GROUPS = ("pai_megatron_aux_loss", "sparsemixer_topk")
"""MindSpeed's own routers that pass over groups of experts (``mindspeed_llm/core/transformer/moe/router.py``)."""
PLAIN_SPECS = ("qwen3_spec", "deepseek_spec", "bailing_spec")
"""Specs (``mindspeed_llm/tasks/models/spec``) whose layers are those that the other arguments ask for."""
ASCEND = "Ascend's kernels and memory are not those of the profile: time"
MINDSPEED_WORDS = MEGATRON_WORDS | WordTable(
    idle=("use_fused_*", "use_glm_rope", "enable_thinking",
          "enable_hf2mg_convert", "model_type_hf", "shape_order", "beta_*", "rope_scaling*", "seq_aux",
          "first_k_dense_replace", "n_shared_experts", "prompt_type", "longrope_freqs_type",
          "handler_name", "stage", "no_pad_to_seq_lengths", "is_instruction_dataset",
          "tokenizer_not_use_fast", "tokenizer_padding_side", "variable_seq_lengths", "npu_deterministic",
          "high_freq_factor", "low_freq_factor", "no_shared_storage", "norm_topk_prob", "swiglu_limit", "workers",
          "qlora_save_dequantize", "rope_factor", "original_seq_len", "router_gating_in_fp32", "padded_samples",
          "no_shuffle", "long_factor", "short_factor", "enable_mla_scale*", "query_pre_attn_scalar",
          "output_multiplier_scale", "add_rmsnorm_offset", "output_logit_softcapping", "attn_logit_softcapping",
          "fix_router", "disable_gloo_group", "*_in_fp32", "*_mscale",
          "pad_to_multiple_of", "fix_sub_seq_length", "no_chat_template", "hf_cfg_dir", "enable_mg2hf_convert",
          "overwrite_cache", "evaluation_batch_size", "map_keys", "json_keys", "no_enable_linear_qkv", "broadcast",
          "add_dense_bias", "add_output_layer_bias"),
    deciding={
        "swap_*": OFFLOADED,
        "reuse_fp32_param": "32-bit parameters share memory with those of 16 bits: memory",
        "recompute_activation_function*": "activations of the MLP are recomputed: memory and time",
        "recompute_in_*": "recomputation in bubbles of the pipeline: time",
        "recompute_norm*": "norms are recomputed: memory and time",
        "adaptive_*": "what is recomputed is chosen at run time: memory and time",
        "coc_*": "communication inside of products: time",
        "moe_permutation_async_comm": "experts' exchange beside computation: time",
        "use_ascend_*": "communication inside of products: time",
        "use_mc2": "communication inside of products: time",
        "ampipe*": "experts' exchange beside attention: time",
        "moe_alltoall_overlap_comm": "experts' exchange beside computation: time",
        "moe_allgather_overlap_comm": "experts' exchange beside computation: time",
        "moe_fb_overlap": "experts' exchange beside computation: time",
        "use_nd_matmul": "products split in two dimensions: communication",
        "qlora": "frozen weights in 4 bits: memory and time",
        "schedules_method": "another schedule of the pipeline: time and memory",
        "ai_framework": "MindSpore runs it: time and memory",
        **dict.fromkeys(("dpo_*", "is_pairwise_dataset"), "another loss than the next token's: further passes"),
        **dict.fromkeys(("*compress*", "*dsa*", "enable_mhc", "hc_mult", "use_triton_mhc", "index_*", "o_groups",
                         "o_lora_rank", "n_hash_layers", "use_sparse_flash_attn"), OTHER_LAYERS),
        **dict.fromkeys(("*window_size", "attention_mask_type"), "which keys are seen: attention's time"),
        "pack": "documents in a sequence: attention's time",
        "neat_pack": "documents in a sequence: attention's time",
        "moe_tp_extend_ep": "how experts are split: memory and communication",
        "gemm_gradient_accumulation_fusion": ASCEND,
        "o2_optimizer": "the optimizer's states in 16 bits: memory",
        "o2_gradient": "gradients are summed in 16 bits: memory",
        "num_zero_experts": "tokens that pass experts by: time",
        **dict.fromkeys(("gelu_tanh", "post_norm", "input_embeds_norm", "cla_share_factor"), OTHER_LAYERS),
        "interleave_sliding_window": "which keys are seen: attention's time",
        "cp_attention_mask_type": "which keys are seen: attention's time",
        **dict.fromkeys(("moe_zero*", "moe_zerc", "moe_unperm2_mem_optim*"), "experts' inputs are recomputed: memory"),
        "recompute_mla_up_proj": "latents' projections are recomputed: memory and time",
        "enable_recompute_layers_per_pp_rank": "how many layers of a stage are recomputed: memory and time",
        "loss_c*": "the loss in pieces: memory",
        "tp_2d": "products split in two dimensions: communication",
        **dict.fromkeys(("full_attention_interval", "fc_type"), OTHER_LAYERS),
        **dict.fromkeys(("enable_mla_absorb", "use_triton_*", "topk_softmax*"), ASCEND),
        "quant_states": "the optimizer's states in 8 bits: memory",
        "use_cp_send_recv_overlap": ASCEND,
        "mla_*": ASCEND,
    },
)  # fmt: skip

OLD_TARGETS = {
    "query_key_value": TARGETS["linear_qkv"], "dense": TARGETS["linear_proj"],
    "dense_h_to_4h": TARGETS["linear_fc1"], "dense_4h_to_h": TARGETS["linear_fc2"],
}  # fmt: skip
"""Targets of adapters by their names before Megatron-Core."""
NUMBERS_OF_ADAPTERS = (
    "--lora-alpha", "--lora-dropout", "--lora-load", "--lora-register-forward-hook", "--lora-ckpt-filter",
)  # fmt: skip
"""Arguments of adapters without effect on time and memory."""
VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
ADAPTER_RANK = 16
"""Default of MindSpeed-LLM's ``--lora-r``."""


def asks_for(flags: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    """Whether a command has one of the flags beside those of Megatron-LM."""

    def starts(words: Sequence[str]) -> bool:
        given = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
        return starts_megatron(words) and bool(given & set(flags))

    return starts


def read_megatron_deepspeed(text: str, name: str) -> Imported:
    """The plan of arguments of Megatron-DeepSpeed: ZeRO by its stage, recomputation by ``--checkpoint-activations``."""
    given = renamed(read_arguments(text, name), SAME_AS)
    if given.values.get("--num-experts") in (["1"], None):  # its default is one expert: a dense MLP
        given = replace(given, values={key: value for key, value in given.values.items() if key != "--num-experts"})
    elif "--moe-layer-freq" not in given.values:  # experts are in every second layer, unless it is told otherwise
        freq = given.values.get("--expert-interval", ["2"])
        given = replace(given, values={**given.values, "--moe-layer-freq": freq})
    if "--num-query-groups" in given.values:
        given = replace(given, values={**given.values, "--group-query-attention": []})
    result = plan_of(given)
    values: dict[str, Any] = {"stack": "megatron-deepspeed", "grad_dtype": None, "overlap_grad_reduce": None}
    notes = [note for note in result.notes if "in fp32, its default" not in note]
    of_config = ReadWords()
    if given.has("--deepspeed"):
        zero, of_config = _zero(given, notes)
        values, own = as_run(values | zero, result.plan.numerics.precision)
        notes += own
    notes += _of_pipeline(given, result.plan.mesh.pp, values.get("zero"))
    if given.has("--ds-sequence-parallel-size") or "--ds-sequence-parallel-size" in given.names.values():
        values |= {"cp_method": "ulysses", "cp_balance": "contiguous"}
    if any(given.has(flag) for flag in FLASH):
        values["attention_kernel"] = "flash2"
    if given.has("--cpu-optimizer"):
        values["offload_optimizer"] = "cpu"
    values |= _stages(given, result.plan)
    if result.plan.mesh.tp == 1 or result.plan.memory.recompute == "none":
        given.has("--partition-activations")  # there is nothing to split, or nothing to split over
    for flag in ("--deepspeed-activation-checkpointing", "--no-pipeline-parallel"):
        given.has(flag)  # what is recomputed, and stages where there is one
    plan = result.plan.with_values(**{key: value for key, value in values.items() if key != "stack"})
    plan = plan.model_copy(update={"stack": values["stack"]})
    return replace(result, plan=plan, words=given.words() + of_config, notes=tuple(notes))


def _of_pipeline(given: Arguments, pp: int, stage: Any) -> Iterator[str]:
    """What DeepSpeed's pipelines refuse when they start: sharded gradients or parameters, or no engine of their own.

    Sources: ``deepspeed/runtime/pipe/engine.py``, and ``megatron/arguments.py`` of Megatron-DeepSpeed.
    """
    size = f"--pipeline-model-parallel-size {pp}"
    if pp > 1 and given.has("--no-pipeline-parallel"):
        yield f"{size}: Megatron-DeepSpeed does not start with --no-pipeline-parallel beside it."
    elif pp > 1 and isinstance(stage, int) and stage > 1:
        yield f"{size}: DeepSpeed does not start pipelines with ZeRO stage {stage}; 0 or 1 do."


def _stages(given: Arguments, plan: Plan) -> dict[str, Any]:
    """The layers of every stage as DeepSpeed's pipeline spreads them, where the method that is asked for says so."""
    flag = "--pp-partition-method"
    method, layers = (given.values.get(flag) or [""])[0], given.number("--num-layers")
    head = HEADS["megatron-deepspeed" if given.has("--untie-embeddings-and-output-weights") else "tied"]
    if plan.mesh.pp == 1:
        given.has(flag)
        return {}
    stages = layers_by_method(method, layers, plan.mesh.pp, head) if method and layers else None
    if stages is None:
        return {}
    given.has(flag)
    return {"layers": None if len(set(stages)) == 1 else stages}


def _zero(given: Arguments, notes: list[str]) -> tuple[dict[str, Any], ReadWords]:
    """The stage, and what else DeepSpeed's config says, with its words; without the file, what the arguments say."""
    flag = next((each.replace("_", "-") for each in CONFIG_FILE if given.values.get(each.replace("_", "-"))), None)
    named = given.values[flag][0] if flag and given.has(flag) else ""
    told = int(given.text("--zero-stage") or 1) if (given.text("--zero-stage") or "1").isdecimal() else 1
    file = text_beside(named, given.source) if named else None
    if file is None:
        missing = f"{PurePath(named).name} is not here; " if named else ""
        notes.append(f"{missing}ZeRO stage {told} is that of --zero-stage (1 by default).")
        if flag:
            given.used.discard(flag)
        return {"zero": told}, ReadWords()
    config = read_deepspeed(file[1], file[0])
    data = config.plan.data_parallel
    if "--zero-stage" in given.values and told != data.zero and OWN_STATES not in config.notes:
        notes.append(f"DeepSpeed shards by {PurePath(file[0]).name}: stage {data.zero}, not {told} of --zero-stage.")
    choices = config.plan.flat_values()
    keys = ("overlap_grad_reduce", "bucket_bytes", "offload_optimizer", "offload_parameters", "grad_dtype")
    return {"zero": data.zero, **{key: choices[key] for key in keys if choices.get(key) is not None}}, config.words


def read_mindspeed(text: str, name: str) -> Imported:
    """The plan of arguments of MindSpeed: Megatron-LM's, and its own names of context parallelism and attention."""
    given = renamed(read_arguments(text, name), {"--context-parallel-algo": "--cp-comm-type"})
    kind = given.text("--cp-comm-type")
    if kind is not None:
        if kind not in (*CP_ALGORITHMS, *CP_ALGORITHMS.values()):
            raise UserError(f"{name}: --context-parallel-algo = {kind}: allowed: {', '.join(CP_ALGORITHMS)}")
        values = {**given.values, "--cp-comm-type": [CP_ALGORITHMS.get(kind, kind)]}
        degree = given.number("--ulysses-degree-in-cp")
        if degree:
            values["--hierarchical-context-parallel-sizes"] = [str(degree)]
        given = replace(given, values=values)
    given = _with_listed_stages(_without_noops(_with_own_experts(_with_plain_spec(given))))
    result = of_arguments(given)
    plan = result.plan.with_values(fused_kernels=_fused(given), **_adapters(given))
    if not given.has("--use-flash-attn") and plan.execution.attention_kernel is None:
        plan = plan.with_values(attention_kernel="eager")
    note = "MindSpeed runs on Ascend devices, whose kernels no profile here has: the hardware is that of --hardware."
    return replace(result, plan=plan, words=given.words(), notes=(*result.notes, note))


def _with_own_experts(given: Arguments) -> Arguments:
    """The arguments with MindSpeed's names of shared experts and of dense layers before the mixtures as Megatron-LM's.

    Source: MindSpeed-LLM, ``mindspeed_llm/features_manager/moe`` and its ``transformer_config``: layers from the
    K-th on have experts every ``--moe-layer-freq``, and shared experts are as wide as routed ones.
    """
    told, layers = given.text("--first-k-dense-replace"), given.number("--num-layers")
    dense = 0 if told in ("0", "-1") else given.number("--first-k-dense-replace")
    shared, width = given.number("--n-shared-experts"), given.number("--moe-ffn-hidden-size")
    values, names = dict(given.values), dict(given.names)
    if values.get("--moe-layer-freq") == ["-1"]:  # every layer number is a multiple of it
        values["--moe-layer-freq"] = ["1"]
    if dense and layers and values.get("--moe-layer-freq", ["1"]) == ["1"]:
        values["--moe-layer-freq"] = [f"[0]*{dense}+[1]*{layers - dense}"]
        names["--moe-layer-freq"] = "--first-k-dense-replace"
    if shared and width and "--moe-shared-expert-intermediate-size" not in values:
        values["--moe-shared-expert-intermediate-size"] = [str(shared * width)]
        names["--moe-shared-expert-intermediate-size"] = "--n-shared-experts"
    if values.get("--moe-router-load-balancing-type", [""])[:1] in ([kind] for kind in WITHOUT_GROUPS):
        given.used |= {LIMIT} & set(values)
        values.pop(LIMIT, None)
    return replace(given, values=values, names=names)


def _with_plain_spec(given: Arguments) -> Arguments:
    """The arguments without a spec whose layers are those that the other arguments ask for."""
    named = given.values.get("--spec", [""])[0].rpartition(".")[2]
    if named not in PLAIN_SPECS:
        return given
    given.has("--spec")
    return replace(given, values={flag: each for flag, each in given.values.items() if flag != "--spec"})


def _with_listed_stages(given: Arguments) -> Arguments:
    """The arguments with ``--num-layer-list`` as a layout."""
    listed = given.text("--num-layer-list")
    if listed is None:
        return given
    layers = listed.split(",")
    if not all(each.isdecimal() for each in layers):
        raise UserError(
            f"{given.source}: --num-layer-list = {listed}: allowed: layers of every stage, such as 10,12,10"
        )
    return _as_layout(given, [*map(int, layers)], "--num-layer-list")


def _as_layout(given: Arguments, stages: Sequence[int], flag: str) -> Arguments:
    """The arguments with the layers of every stage as a layout of Megatron-LM, which stands for ``flag``."""
    further = further_layers(given)
    text = "E" + "|".join("t" * count for count in stages) + "m" * further + "L"
    return replace(given, values={**given.values, LAYOUT: [text]}, names={**given.names, LAYOUT: flag})


def _without_noops(given: Arguments) -> Arguments:
    """The arguments with the layers that compute, in the stages that they are in.

    ``--noop-layers 1,47`` are places, counted from 0 over all stages in turn, that pass their input on.
    """
    flag = "--noop-layers"
    listed, layers = given.values.get(flag), given.number("--num-layers")
    if not listed or not layers:
        return given
    places = listed[0].split(",")
    chunk, pp = "--num-layers-per-virtual-pipeline-stage", given.number("--pipeline-model-parallel-size") or 1
    each = given.number(chunk) or layers // pp
    if not all(place.isdecimal() and int(place) < layers for place in places) or layers % each:
        raise UserError(f"{given.source}: {flag} = {listed[0]}: allowed: places below --num-layers, such as 0,61")
    given.has(flag)
    empty = {int(place) for place in places}
    values, names = {**given.values, "--num-layers": [str(layers - len(empty))]}, dict(given.names)
    if values.pop(chunk, None):
        values[VIRTUAL], names[VIRTUAL] = [str(layers // (each * pp))], chunk
    if freq := values.get("--moe-layer-freq"):
        dense = int((re.match(r"\[0\]\*(\d+)", freq[0]) or ["", "0"])[1])
        dense -= sum(place < dense for place in empty)
        values["--moe-layer-freq"] = [f"[0]*{dense}+[1]*{layers - len(empty) - dense}"] if dense else ["1"]
    stages = tuple(each - sum(first <= place < first + each for place in empty) for first in range(0, layers, each))
    return _as_layout(replace(given, values=values, names=names), stages, flag)


def _fused(given: Arguments) -> str:
    """What is fused: a switch for each of what Llama's layers have, and no loss (MindSpeed-LLM, ``arguments.py``)."""
    is_fused = {
        "norm": given.has("--use-fused-rmsnorm") or given.text("--normalization") != "RMSNorm",
        "activation": given.has("--use-fused-swiglu") or not given.has("--swiglu"),
        "rope": given.has("--use-fused-rotary-pos-emb"),
    }
    return "+".join(part for part, is_one in is_fused.items() if is_one) or "none"


def _adapters(given: Arguments) -> dict[str, Any]:
    """Adapters, where products are named that have them, by Megatron-Core's names or older ones. Raises UserError."""
    flag = "--lora-target-modules"
    if not given.has(flag) or not given.values[flag]:
        return {}
    known = {**TARGETS, **OLD_TARGETS}
    if unknown := [each for each in given.values[flag] if each not in known]:
        raise UserError(f"{given.source}: {flag} = {unknown[0]}: allowed: {', '.join(known)}")
    kept = dict.fromkeys(part for each in given.values[flag] for part in known[each])
    given.used |= {*NUMBERS_OF_ADAPTERS} & set(given.values)
    return {"lora_rank": given.number("--lora-r") or ADAPTER_RANK, "lora_targets": tuple(kept)}


MEGATRON_DEEPSPEED = Reader(
    name="megatron-deepspeed",
    description="Megatron-DeepSpeed: arguments in a command or a script, and its DeepSpeed JSON",
    read=read_megatron_deepspeed,
    starts=asks_for(OF_DEEPSPEED),
    words=DEEPSPEED_WORDS,
)
MINDSPEED = Reader(
    name="mindspeed",
    description="MindSpeed: Megatron-LM's arguments with those of Ascend devices",
    read=read_mindspeed,
    starts=asks_for(OF_MINDSPEED),
    words=MINDSPEED_WORDS,
)
