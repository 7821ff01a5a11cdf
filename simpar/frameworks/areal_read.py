"""AReaL: the update of its actor (FSDP, Megatron-Core), in its YAML with ``key=value`` words of a command over it.

Defaults are those of ``areal/api/cli_args.py`` at inclusionAI/AReaL 4aef98d.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.areal_rollout import ACTOR, Allocation, allocation_of, allocations, rollout
from simpar.frameworks.overrides import choice, command_of, files_of_script, is_config, load_beside, mapping
from simpar.frameworks.policy_update import (
    BESIDE,
    NOTE,
    Options,
    adapters_of,
    core_words,
    find_policy,
    groups_of,
    of_megatron,
    open_lengths,
    options_of,
    samples_of_micro_batch,
    update_of,
)
from simpar.frameworks.reader import SPAWNS, Reader
from simpar.frameworks.rollout_side import parted, side_of
from simpar.frameworks.target import Imported, ImportedStep, plan_said
from simpar.frameworks.trainer_read import DTYPES, KERNEL_OF, low_states
from simpar.frameworks.words import WordTable

CORE = f"{ACTOR}megatron."
TRAINS = ("fsdp", "megatron")
OPTIMIZERS = ("adam", "adam_bf16")
MOMENTS = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
"""Fields of Megatron-Core's section that have an effect with its precision-aware optimizer alone."""
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CORE_USUAL = {
    "use_distributed_optimizer": True, "accumulate_allreduce_grads_in_fp32": True, "attention_backend": "flash",
    "moe_token_dispatcher_type": "alltoall",
}  # fmt: skip
PROMPT, ANSWER = 1024, 16384
"""Tokens of a prompt where the data have no limit, and of a response (``GenerationHyperparameters``)."""
UNTRAINED = "preferences and rewards are not modelled"
LAUNCHER = re.compile(r"areal\.(infra\.)?launcher\.\w+")
TELLING = re.compile(r"(allocation_mode=\w+:|(actor|rollout)\.backend=)")


def read(text: str, name: str) -> Imported:
    """The update of AReaL's actor in a YAML or a command. Raises UserError naming file, key and value."""
    if is_config(name):
        return _plan(options_of((), mapping(text, name), name))

    def starts(words: Sequence[str]) -> bool:
        return _starts(words) or any(_owns(load_beside(file, name)) for file in files_of_script(words))

    words = command_of(text, name, starts)
    named = files_of_script(words)
    if not named:
        raise UserError(f"{name}: no --config: allowed: --config FILE.yaml")
    return _plan(options_of(words, load_beside(named[0], name), name))


def _plan(given: Options) -> Imported:
    if not any(key.startswith(ACTOR) for key in given):
        raise UserError(f"{given.source}: no actor of AReaL: allowed: a config with actor.path and actor.backend")
    model, ask = find_policy(given.text(f"{ACTOR}path"), given.source)
    kind = given.get("train_dataset.type")
    if kind not in (None, "sft", "rl"):
        raise UserError(f"{given.source}: train_dataset.type = {kind}: {UNTRAINED}; allowed: sft, rl")
    train = _trains(given)
    longest = longest_of(given)
    batch = _batch(given)
    engine = _core(given, train, model) if train.backend == "megatron" else _sharded(given, train)
    dp, groups = train.sizes["d"], groups_of(engine)
    budget, least = given.whole(f"{ACTOR}mb_spec.max_tokens_per_mb"), given.whole(f"{ACTOR}mb_spec.n_mbs") or 1
    if batch % dp:
        raise UserError(f"{given.source}: {batch} samples of an update: allowed: a multiple of {dp}, the data-parallel "
                        f"ranks of {ACTOR}backend")  # fmt: skip

    def fill(length: int) -> int:
        return samples_of_micro_batch(min(budget or 0, batch // dp // least * length), length, batch // dp, groups)

    values: dict[str, Any] = {
        "model": model,
        "dp": dp,
        "micro_batch": fill(sum(longest)) if budget else max(1, batch // dp // least),
        "training": {"seq_len": sum(longest), "global_batch": batch},
        **_adapters(given),
    }
    _weigh_others(given, has_adapters="lora_rank" in values)
    assumed = (open_lengths(sum(longest), fill if budget else None),)
    notes = (NOTE,) if _generates(given) else ()
    update = update_of(engine, values, given.words(), notes, assumed, ask)
    if not _generates(given):
        return update
    return ImportedStep.of(update, side_of(lambda: rollout(given, longest), given.used))


def longest_of(given: Options) -> tuple[int, int]:
    """Tokens that prompts and responses may have, together at most ``gconfig.max_tokens``; of SFT the samples alone."""
    longest = given.whole("train_dataset.max_length") or PROMPT
    if not _generates(given):
        return longest, 0
    answer, whole = given.whole("gconfig.max_new_tokens") or ANSWER, given.whole("gconfig.max_tokens")
    if not whole or whole >= longest + answer:
        return longest, answer
    return (whole - answer, answer) if whole > answer else parted(whole)


def _generates(given: Options) -> bool:
    return any(key.startswith(("rollout.", "gconfig.", "allocation_mode")) for key in given)


def _trains(given: Options) -> Allocation:
    """The layout of the actor. Raises UserError."""
    result = allocations(given).get("actor") or allocation_of(str(given.get(f"{ACTOR}backend") or ""), given.source)
    if result.backend not in TRAINS:
        raise UserError(f"{given.source}: {ACTOR}backend = {result.text or None}: allowed: {' and '.join(TRAINS)} with "
                        "their dimensions, such as fsdp:d8")  # fmt: skip
    return result


def _batch(given: Options) -> int:
    """Samples of an update: those of a step by its minibatches."""
    prompts = given.whole("train_dataset.batch_size") or 1
    if not _generates(given):
        return prompts
    responses, parts = prompts * (given.whole("gconfig.n_samples") or 1), given.whole(f"{ACTOR}ppo_n_minibatches") or 4
    if responses % parts:
        raise UserError(f"{given.source}: {ACTOR}ppo_n_minibatches = {parts}: allowed: a divisor of the {responses} "
                        "samples of a step")  # fmt: skip
    return responses // parts


def _optimizer(given: Options) -> str:
    named = str(given.get(f"{ACTOR}optimizer.type") or "adam")
    if named not in OPTIMIZERS:
        raise UserError(f"{given.source}: {ACTOR}optimizer.type = {named}: allowed: {', '.join(OPTIMIZERS)}")
    return named


def _sharded(given: Options, train: Allocation) -> Imported:
    """FSDP 2: parameters, summed gradients and moments are of the model's dtype (``fsdp_engine.py``)."""
    _optimizer(given)
    tp, cp = train.sizes["t"], train.sizes["c"]
    precision = choice(given, f"{ACTOR}dtype", DTYPES, "bf16")
    kernel = str(given.get(f"{ACTOR}attn_impl") or "flash_attention_2")
    if kernel not in KERNEL_OF:
        given.leave(f"{ACTOR}attn_impl")
    away = "cpu" if given.get(f"{ACTOR}fsdp.offload_params") else None
    values: dict[str, Any] = {
        "stack": "huggingface",
        "zero": 3,
        "defer_grad_reduce": False,
        "tp": tp,
        "cp": cp,
        **({"sequence_parallel": True} if tp > 1 else {}),
        **({"cp_method": "ulysses", "cp_balance": "contiguous"} if cp > 1 else {}),
        "precision": precision,
        "optimizer": "adamw",
        **(low_states("adamw") if precision == "bf16" else {}),
        "reduce_dtype": choice(given, f"{ACTOR}grad_reduce_dtype", DTYPES, "fp32"),
        "recompute": "full" if given.get(f"{ACTOR}gradient_checkpointing") else "none",
        "attention_kernel": KERNEL_OF.get(kernel),
        "offload_parameters": away,
        "offload_optimizer": away,
    }
    return Imported(plan_said(values))


def _core(given: Options, train: Allocation, model: str | None) -> Imported:
    """Megatron-Core: the sizes of the allocation, and the fields of its section."""
    half = choice(given, f"{ACTOR}dtype", DTYPES, "bf16")
    experts = train.experts or {**train.sizes, "t": 1}
    usual: dict[str, Any] = {
        **CORE_USUAL,
        "bf16": half == "bf16",
        "fp16": half == "fp16",
        "tensor_model_parallel_size": train.sizes["t"],
        "pipeline_model_parallel_size": train.sizes["p"],
        "context_parallel_size": train.sizes["c"],
        "expert_model_parallel_size": experts["e"],
        "expert_tensor_parallel_size": experts["t"] if train.experts else None,
    }
    checkpoints = bool(given.get(f"{ACTOR}gradient_checkpointing"))
    for field in () if checkpoints else (*RECOMPUTE, "recompute_modules"):
        _drop(given, field)
    usual |= RECOMPUTE if checkpoints else {}
    for field in MOMENTS:
        _rename(given, field, is_used=bool(given.get(f"{CORE}use_precision_aware_optimizer")))
    if _optimizer(given) == "adam_bf16":
        usual |= {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    if mode := given.get(f"{CORE}fp8_config.mode"):
        usual |= {"fp8_format": mode, "fp8_recipe": given.get(f"{CORE}fp8_config.recipe") or "delayed"}
    if given.get(f"{CORE}moe_enable_deepep"):
        usual["moe_token_dispatcher_type"] = "flex"
        _drop(given, "moe_token_dispatcher_type")
    if (chunks := given.whole(f"{CORE}virtual_pipeline_parallel_size") or 1) > 1:
        usual["num_virtual_stages_per_pipeline_rank"] = chunks
    if given.get(f"{CORE}ddp.grad_reduce_in_fp32") is False:
        usual["accumulate_allreduce_grads_in_fp32"] = False
    for field in ("virtual_pipeline_parallel_size", "ddp.grad_reduce_in_fp32"):
        _drop(given, field)
    known, own = set(given.used), {key: each for key, each in usual.items() if each is not None}
    result = of_megatron(given, (CORE, f"{CORE}ddp."), own, model)
    unread = {word: value for word, value in result.words.unread.items() if word not in known}
    return replace(result, words=replace(result.words, unread=unread))


def _drop(given: Options, field: str) -> None:
    """Leave a field of Megatron-Core's section to what else was read, or to no effect."""
    if given.values_.pop(f"{CORE}{field}", None) is not None:
        given.take(f"{CORE}{field}")


def _rename(given: Options, field: str, *, is_used: bool) -> None:
    """The dtype of a field by Megatron-Core's name; a field without effect counts as read."""
    key = f"{CORE}{field}"
    if key not in given:
        return
    if is_used:
        given.values_[key] = choice(given, key, DTYPES, "fp32")
        return
    _drop(given, field)


def _adapters(given: Options) -> dict[str, Any]:
    if not given.get(f"{ACTOR}use_lora"):
        return {}
    key = f"{ACTOR}target_modules"
    return adapters_of(given.whole(f"{ACTOR}lora_rank") or 32, given.get(key), given.source, key)


def _weigh_others(given: Options, *, has_adapters: bool) -> None:
    """Take the reference as read where it has no memory beside the update."""
    beside = given.get("ref.scheduling_strategy.type") == "colocation"
    if has_adapters or not beside or not given.get("actor.kl_ctl", 0.1):
        given.take("ref.path")
    if given.get("critic.scheduling_strategy.type") != "colocation":
        given.take("critic.path")


def _starts(words: Sequence[str]) -> bool:
    is_named = any(PurePath(word).suffix == ".py" for word in words) and bool(files_of_script(words))
    return any(LAUNCHER.fullmatch(word) for word in words) or (is_named and any(map(TELLING.match, words)))


def _owns(data: Mapping[str, Any]) -> bool:
    actor = data.get("actor")
    own = {"experiment_name", "trial_name"} <= set(map(str, data))
    return own and isinstance(actor, Mapping) and bool({"backend", "path"} & set(map(str, actor)))


IDLE = (
    "experiment_name", "trial_name", "seed", "enable_offload", "total_train_*", "tokenizer_path", "cluster.*",
    "scheduler.*", "rollout.*", "gconfig.*", "eval_gconfig.*", "sglang.*", "vllm.*", "train_dataset.*",
    "valid_dataset.*", "saver.*", "recover.*", "checkpointer.*", "evaluator.*", "stats_logger.*", "perf_tracer.*",
    "memory_profiler.*", "launcher.*", "allocation_mode", "async_training", "ref.*", "critic.*", "teacher.*",
    "dynamic_bs", "max_turns", "max_tokens_per_trajectory", "n_trajs", "workflow*", "eval_workflow*", "tir.*",
    "judge_engine.*",
    "agent_run_args.*", "econfig.*", "econfig", "log_*", "model_path", "reward_fn_path", "agent_builder_path",
    "export_style", f"{ACTOR}grad_reduce_dtype", "max_llm_calls_per_run",
    *(f"{ACTOR}{name}" for name in (
        "experiment_name", "trial_name", "init_from_scratch", "disable_dropout", "mb_spec.*", "optimizer.*",
        "eps_clip*", "c_clip", "m2_threshold", "temperature", "reward_*", "kl_*", "recompute_logprob",
        "use_decoupled_loss", "behav_imp*", "behave_imp*", "rejection_sampling*", "adv_norm*", "max_new_tokens",
        "weight_update_mode", "scheduling_*", "group_*", "overlong_*", "mask_*", "discount", "gae_lambda",
        "use_sapo_loss", "sapo_*", "importance_sampling*", "prox_logp_method", "log_agent*", "dynamic_sampling",
        "offload", "lora_alpha", "peft_type", "log_level", "request_timeout", "setup_timeout", "fsdp.wrap_policy*",
        "fsdp.memory_efficient_load", "fsdp.shard_vision*", "fsdp.optim_step*", "archon.*", "is_critic",
        "version", "_version", "admin_api_key", "backend", "target_modules", "lora_rank",
        "megatron.wrap_with_ddp", "megatron.async_save", "megatron.use_checkpoint*", "megatron.bridge_type",
        "megatron.use_mbridge_save", "megatron.ddp.check_for_nan*", "megatron.ddp.average_in*",
        "megatron.ddp.align_param*", "megatron.fp8_config.*", "megatron.ddp.bucket_size", "offload_params",
    )),
)  # fmt: skip
"""Options of the rollout, rewards, data and logging, and those without effect on an update."""
READER = Reader(
    name="areal",
    description="AReaL: the update of the actor (FSDP, Megatron-Core) in its YAML and commands",
    read=read,
    starts=_starts,
    owns=_owns,
    has_dotted_flags=False,
    devices=SPAWNS,
    takes_files=True,
    words=core_words("actor.megatron", "actor.megatron.ddp")
    | WordTable(
        idle=IDLE,
        deciding={
            "judge_engine.backend": "an engine on further devices that judges: time",
            "ref.path": f"the reference: {BESIDE}",
            "critic.path": f"the critic: {BESIDE}",
            f"{ACTOR}pad_to_maximum": "micro-batches padded to the most tokens: time",
            f"{ACTOR}enable_tree_training": "prompts that samples share are computed once: time and memory",
            f"{ACTOR}use_kernels": "kernels of the hub: time and memory",
            f"{ACTOR}attn_impl": "the kernel of attention: time and memory",
            f"{ACTOR}fsdp.per_layer_optim_step": "where states wait, and the time of the update: memory and time",
            f"{ACTOR}megatron.use_deterministic_algorithms": "kernels that add in one order: time",
            f"{ACTOR}megatron.ddp.fp8_param_gather": "gathered parameters in 8 bits: time and memory",
            f"{ACTOR}megatron.use_custom_fsdp": "how states are sharded: memory",
            f"{ACTOR}megatron.use_torch_fsdp2": "how states are sharded: memory",
        },
    ),
)
