"""ROLL: the update of ``actor_train`` (Megatron-Core, FSDP 2) in the YAML of its RLVR pipeline, or a command with one.

Defaults are those of ``roll/configs`` and ``roll/pipeline/rlvr/rlvr_config.py``, and of ``mcore_adapter``, at
alibaba/ROLL 8eb27cc2.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import choice, command_of, is_config, load_beside, mapping
from simpar.frameworks.policy_update import (
    NOTE,
    Options,
    adapters_of,
    core_words,
    find_policy,
    of_megatron,
    open_lengths,
    options_of,
    update_of,
)
from simpar.frameworks.reader import SPAWNS, Reader, value_of
from simpar.frameworks.roll_rollout import (
    ACTOR,
    devices_of,
    longest_of,
    packs,
    responses_of,
    rollout,
    strategy_of,
    updated_at_once,
)
from simpar.frameworks.rollout_side import side_of
from simpar.frameworks.target import Imported, ImportedStep, plan_said
from simpar.frameworks.trainer_read import DTYPES, low_states
from simpar.frameworks.words import WordTable

CONFIG = f"{ACTOR}.strategy_args.strategy_config."
MODEL = f"{ACTOR}.model_args."
TRAINS = ("megatron_train", "fsdp2_train")
PIPELINE_FILE = re.compile(r"start_rlvr(_vl|_rollout)?_pipeline\.py")
USUAL = {"attention_backend": "flash", "moe_token_dispatcher_type": "allgather"}


def read(text: str, name: str) -> Imported:
    """The update of an RLVR pipeline in a YAML or a command. Raises UserError naming file, key and value."""
    if is_config(name):
        return _plan(options_of((), mapping(text, name), name))
    words = command_of(text, name, _starts)
    config = value_of(words, ("--config_name",))
    if config is None:
        raise UserError(f"{name}: no --config_name: allowed: --config_name NAME, of a YAML beside the text")
    file = f"{PurePath(config).with_suffix('')}.yaml"
    return _plan(options_of((), load_beside(file, name), file))


def _plan(given: Options) -> Imported:
    model, ask = find_policy(given.text("pretrain", f"{MODEL}model_name_or_path"), given.source)
    named, devices = strategy_of(given, ACTOR), devices_of(given, ACTOR)
    if named not in TRAINS:
        raise UserError(f"{given.source}: {ACTOR}.strategy_args.strategy_name = {named}: allowed: {', '.join(TRAINS)}")
    if not devices:
        raise UserError(f"{given.source}: {ACTOR}.device_mapping: missing; allowed: device numbers, such as "
                        "list(range(0,8))")  # fmt: skip
    engine = (_core if named == TRAINS[0] else _sharded)(given, model)
    mesh = engine.plan.mesh
    ranks = mesh.tp * mesh.pp * mesh.cp
    dp, rest = divmod(len(devices), ranks)
    if rest:
        raise UserError(
            f"{given.source}: {ACTOR}.device_mapping: {len(devices)} devices: allowed: a multiple of {ranks}"
        )
    batch = updated_at_once(given, dp)
    micro = min(given.whole(f"{ACTOR}.training_args.per_device_train_batch_size") or 1, batch // dp)
    values: dict[str, Any] = {
        "model": model,
        "dp": dp,
        "micro_batch": micro,
        "training": {"seq_len": sum(longest_of(given)), "global_batch": batch},
        **_adapters(given),
    }
    count = responses_of(given) // batch
    notes = [NOTE, f"A rollout has {count} such steps, of {batch} samples each."]
    if not packs(given):
        notes.append(f"samples are padded to sequence_length, {sum(longest_of(given))} tokens")
    assumed = (open_lengths(sum(longest_of(given))),) if packs(given) else ()
    update = update_of(engine, values, given.words(), notes, assumed, ask)
    return ImportedStep.of(update, side_of(lambda: rollout(given, dp), given.used))


def _adapters(given: Options) -> dict[str, Any]:
    targets = given.get(f"{MODEL}lora_target")
    listed = [each.strip() for each in targets.split(",")] if isinstance(targets, str) else targets
    listed = "*" if listed in (["all"], ["all-linear"]) else listed
    return adapters_of(given.whole(f"{MODEL}lora_rank"), listed, given.source, f"{MODEL}lora_target")


def _sharded(given: Options, _: str | None) -> Imported:
    """FSDP 2: parameters and moments are of the model's dtype, sums of gradients in fp32 where nothing is said."""
    precision = choice(given, f"{MODEL}dtype", DTYPES, "bf16")
    precision = choice(given, f"{CONFIG}param_dtype", DTYPES, precision)
    away = "cpu" if given.get(f"{CONFIG}offload_policy") else None
    cp = given.whole(f"{MODEL}ulysses_size") or 1
    group, world = given.whole(f"{CONFIG}fsdp_size") or 1, len(devices_of(given, ACTOR))
    shards = group if 1 < group < world else world
    values: dict[str, Any] = {
        "stack": "huggingface",
        "zero": 3,
        **({"hsdp": world // shards} if shards < world else {}),
        **({"cp": cp, "cp_method": "ulysses", "cp_balance": "contiguous"} if cp > 1 else {}),
        "precision": precision,
        "optimizer": "adamw",
        **(low_states("adamw") if precision == "bf16" else {}),
        "reduce_dtype": choice(given, f"{CONFIG}reduce_dtype", DTYPES, "fp32"),
        "recompute": "none" if given.get(f"{MODEL}disable_gradient_checkpointing") else "full",
        "offload_parameters": away,
        "offload_optimizer": away,
    }
    if given.get(f"{CONFIG}reshard_after_forward") is False:
        values["reshard_after_forward"] = False
    return Imported(plan_said(values))


def _core(given: Options, model: str | None) -> Imported:
    """Megatron-Core by the fields of ``mcore_adapter``."""
    half = choice(given, f"{MODEL}dtype", DTYPES, "bf16")
    usual: dict[str, Any] = {**USUAL, "bf16": half == "bf16", "fp16": half == "fp16"}
    chunks = given.whole(f"{CONFIG}virtual_pipeline_model_parallel_size") or 1
    for field in ("virtual_pipeline_model_parallel_size", "bf16", "fp16"):
        if given.values_.pop(f"{CONFIG}{field}", None) is not None:
            given.take(f"{CONFIG}{field}")
    if chunks > 1:
        usual["num_virtual_stages_per_pipeline_rank"] = chunks
    if given.get(f"{CONFIG}recompute_granularity") == "full":
        usual |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    known = set(given.used)
    result = of_megatron(given, (CONFIG,), usual, model)
    unread = {word: value for word, value in result.words.unread.items() if word not in known}
    return replace(result, words=replace(result.words, unread=unread))


def _starts(words: Sequence[str]) -> bool:
    return any(PIPELINE_FILE.fullmatch(PurePath(word).name) for word in words)


def _owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of an RLVR pipeline."""
    if "train_env_manager" in data or "custom_envs" in data:
        return False  # an agentic pipeline
    roles = [data.get(role) for role in (ACTOR, "actor_infer")]
    return all(isinstance(role, Mapping) and "strategy_args" in role for role in roles) and "rollout_batch_size" in data


IDLE = (
    "hydra.*", "defaults", "pg_variant", "offload_nccl", "reward_shift", "reward_scale", "reward_system_config.*",
    "exp_name", "seed", "logging_dir", "output_dir", "base_dir", "system_envs.*",
    "checkpoint_config.*", "track_with", "tracker_kwargs.*", "max_steps", "save_steps", "logging_steps", "eval_steps",
    "max_ckpt_to_keep", "resume_from_checkpoint", "num_nodes", "num_gpus_per_node", "rollout_batch_size", "val_*",
    "prompt_length", "response_length", "sequence_length", "num_return_sequences_in_group", "generate_opt_level",
    "is_num_return_sequences_expand", "max_running_requests", "is_use_additional_prompts", "use_additional_prompts",
    "max_additional_running_prompts", "async_generation_ratio", "ppo_epochs", "adv_estimator", "value_clip",
    "reward_clip", "advantage_clip", "dual_clip_loss", "*_clip*", "norm_*_type", "*_mask", "difficulty_*",
    "length_loss_weight", "error_max_len*", "add_token_level_kl", "whiten_*", "init_kl_coef", "kl_*", "use_kl_loss",
    "target_kl", "gamma", "lambd", "l2", "reward_pretrain", "pretrain", "validation.*", "rewards.*", "reward.*",
    "reward_model.*", "actor_infer.*", "reference.*", "critic.*", "enable_reference", "*enable_old_logprobs_recompute",
    "force_disable_old*", "train_infer_correction.*", "loss_agg_mode", "importance_sampling", "entropy_loss_coef",
    "use_policy_loss_type", "rl_loss_coef", "postive_loss_coef", "use_topr*", "use_reward*", "add_len_reward",
    "max_grad_norm", "critic_warmup", "global_template", "dataset_filter.*", "vlm_filter.*", "minibatch_data_iter_num",
    "balance_length", "model_update_buffer_size_mb", "model_download_type", "rpc_timeout", "profiler_*",
    "report_length*", "length_profiler_dir", "rollout_dump_dir", "rollout_mock.*", "is_offload_*", "router_args.*",
    "schedule_*", "user_defined_rollout*",
    *(f"{ACTOR}.{name}" for name in (
        "name", "worker_cls", "pg_variant", "training_args.*", "data_args.*", "device_mapping", "world_size",
        "infer_batch_size", "num_gpus_per_worker", "model_update_frequency", "backend_timeout", "system_envs.*",
        "topr_*", "max_concurrency", "sequence_packing_args.*", "use_dynamic_batching_in_infer",
        "max_tokens_per_microbatch_in_*", "use_remove_padding", "sequence_length_round_in_*", "offload_nccl",
        "logits_in_fp32", "apply_loss_scale", "use_sequence_packing", "use_dynamic_batching_in_train",
        "strategy_args.strategy_name", "model_args.model_type", "model_args.attn_implementation",
        "model_args.flash_attn",
        "model_args.disable_gradient_checkpointing", "strategy_args.strategy_config.use_batched_model_update",
        "model_args.lora_alpha", "model_args.lora_dropout", "model_args.model_name_or_path",
        "strategy_args.strategy_config.wrap_policy.*", "strategy_args.strategy_config.param_dtype",
        "strategy_args.strategy_config.async_save*", "strategy_args.strategy_config.apply_optimizer_in_backward",
    )),
)  # fmt: skip
"""Options of the rollout, rewards, data and logging, and those without effect on an update."""
READER = Reader(
    name="roll",
    description="ROLL: the update of actor_train (Megatron-Core, FSDP 2) in the YAML of its RLVR pipeline",
    read=read,
    starts=_starts,
    owns=_owns,
    has_dotted_flags=False,
    devices=SPAWNS,
    words=core_words(CONFIG.rstrip("."))
    | WordTable(
        idle=IDLE,
        deciding={
            f"{CONFIG}ep_size": "experts spread over devices under FSDP: time and memory",
            f"{CONFIG}efsdp_size": "experts spread over devices under FSDP: time and memory",
            f"{CONFIG}apply_tiled_mlp": "an MLP in pieces: memory",
            f"{CONFIG}tiled_num_shards": "an MLP in pieces: memory",
            f"{CONFIG}apply_expert_patch": "kernels of experts: time",
            f"{CONFIG}moe_use_grouped_mm": "kernels of experts: time",
            "actor_train.model_args.freeze_module_prefix": "what is trained: memory and time",
        },
    ),
)
