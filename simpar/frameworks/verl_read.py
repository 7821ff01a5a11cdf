"""verl: the update of its actor (PPO, GRPO, DAPO, ...), and its SFT trainers, by their options in Hydra.

Defaults are those of ``verl/trainer/config`` at volcengine/verl b178a3c. Parameters and states that ``param_offload``
and ``optimizer_offload`` keep on the host are back on the devices during the update (``workers/fsdp_workers.py``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import choice, command_of, is_config, mapping, text_beside
from simpar.frameworks.policy_update import (
    BESIDE,
    NOTE,
    ROLLOUT,
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
    vocabulary_chunks,
)
from simpar.frameworks.reader import SPAWNS, Reader, value_of
from simpar.frameworks.rollout_side import side_of
from simpar.frameworks.target import Imported, ImportedStep, plan_said
from simpar.frameworks.torchtune_read import OPTIMIZERS
from simpar.frameworks.trainer_read import DTYPES, KERNEL_OF, low_states
from simpar.frameworks.verl_rollout import rollout
from simpar.frameworks.words import Assumed, ReadWords, WordTable

ROOT = "actor_rollout_ref."
ACTOR, MODEL = f"{ROOT}actor.", f"{ROOT}model."
SFT = r"(^|[./])(fsdp_sft_trainer|sft_trainer(_ray)?)(\.py)?$"
CONFIGS = {"verl.trainer.main_ppo": "ppo_trainer", "verl.trainer.fsdp_sft_trainer": "sft_trainer"}
"""Modules of verl, and the config that each takes where a command names none."""
OWN = "verl/trainer/config/{}.yaml"
TENSOR_RANKS = "megatron.tensor_model_parallel_size"
STRATEGIES = ("fsdp", "fsdp2", "megatron")
LIGER = "norm+activation+rope"
MICRO = f"{ACTOR}ppo_micro_batch_size_per_gpu"
USUAL = {
    "bf16": True, "use_distributed_optimizer": True, "accumulate_allreduce_grads_in_fp32": True,
    "attention_backend": "flash", "moe_token_dispatcher_type": "alltoall",
}  # fmt: skip
"""What the Megatron actor sets (``utils/megatron_utils.py``, ``models/mcore/config_converter.py``)."""


def read(text: str, name: str) -> Imported:
    """The update of verl's actor, or a step of its SFT, in a command or a YAML. Raises UserError."""
    if is_config(name):
        given = options_of([], mapping(text, name), name)
        return _sft(given, "fsdp") if "model.partial_pretrain" in given else _policy(given, "", "")
    words = command_of(text, name, _starts)
    config = (value_of(words, ("--config-name",)) or "").strip("'\"").removesuffix(".yaml")
    given = options_of(words, _base(words, config, name), name)
    if any(re.search(SFT, word) for word in words):
        engine = str(given.get("engine") or "fsdp") if isinstance(given.get("engine"), str) else "fsdp"
        return _sft(given, engine)
    return _policy(given, config, " ".join(word for word in words if "=" not in word))


def _base(words: Sequence[str], config: str, source: str) -> dict[str, Any]:
    """The config that a command names, where it lies there; of verl's own in a checkout, those before 0.5.

    Later ones are composed of groups (``defaults``), whose values are the defaults here.
    """
    folder = (value_of(words, ("--config-path",)) or "").strip("'\"")
    for path in (f"{folder}/{config}.yaml", f"config/{config}.yaml", f"{config}.yaml") if config else ():
        if (beside := text_beside(path, source)) is not None:
            return mapping(beside[1], beside[0])
    usual = next((OWN.format(name) for word, name in CONFIGS.items() if word in words), None)
    own = text_beside(OWN.format(config) if config else usual, source) if usual else None
    data = mapping(own[1], own[0]) if own is not None else {}
    return {} if "defaults" in data else data


def _policy(given: Options, config: str, trainer: str) -> Imported:
    """The update of the actor by a mini-batch of samples, in a command whose words but options are ``trainer``."""
    if not any(key.startswith(ROOT) for key in given):
        raise UserError(f"{given.source}: no options of verl's actor (actor_rollout_ref.actor...)")
    model, ask = find_policy(given.text(f"{MODEL}path"), given.source)
    samples, prompts = given.whole(f"{ROOT}rollout.n") or 1, given.whole(f"{ACTOR}ppo_mini_batch_size") or 256
    longest = (given.whole("data.max_prompt_length") or 512) + (given.whole("data.max_response_length") or 512)
    ranks = (given.whole("trainer.nnodes") or 1) * (given.whole("trainer.n_gpus_per_node") or 8)
    is_core = _strategy(given, config) == "megatron"
    if is_core:
        engine = _core(given, f"{ACTOR}megatron.", f"{ACTOR}optim.", MODEL, model)
    else:
        sequence = given.whole(f"{ACTOR}ulysses_sequence_parallel_size")
        engine = _sharded(given, f"{ACTOR}fsdp_config.", f"{ACTOR}optim.", sequence, ranks)
    inside = int(engine.plan.mesh.sizes.replica_ranks)
    if ranks % inside:
        raise UserError(f"{given.source}: trainer.nnodes x trainer.n_gpus_per_node = {ranks}: allowed: a multiple of "
                        f"{inside}, the ranks of a replica")  # fmt: skip
    batch, dp, cp = prompts * samples, ranks // inside, engine.plan.mesh.cp
    budget = (given.whole(f"{ACTOR}ppo_max_token_len_per_gpu") or 16384) * cp
    groups = groups_of(engine)

    def fill(length: int) -> int:
        return samples_of_micro_batch(budget, length, batch // dp, groups)

    by_tokens = bool(given.get(f"{ACTOR}use_dynamic_bsz"))
    micro = fill(longest) if by_tokens else _fixed(given, dp)
    given.take(MICRO, f"{ACTOR}ppo_micro_batch_size", f"{ACTOR}ppo_max_token_len_per_gpu")
    packs = bool(given.get(f"{MODEL}use_remove_padding", True))
    values = {
        "model": model,
        "dp": dp,
        "micro_batch": micro,
        "training": {"seq_len": longest, "global_batch": batch},
        **({} if is_core else _modelled(given, MODEL, micro * longest // cp)),
        **({"defer_grad_reduce": True} if not is_core and _waits(given) else {}),
    }
    _weigh_others(given, has_adapters=engine.plan.tuning.is_used or "lora_rank" in values)
    assumed = (*([open_lengths(longest, fill if by_tokens else None)] if packs else []), *_of_version(given, is_core))
    notes = (NOTE, *_steps(given, batch, prompts))
    sides = (given.whole("data.max_prompt_length") or 512, given.whole("data.max_response_length") or 512)
    side = side_of(lambda: rollout(given, f"{trainer} {config}", given.text(f"{MODEL}path"), sides), given.used)
    words = given.words() + ReadWords(
        (), {key: True for key in [f"{ACTOR}{TENSOR_RANKS}"] if is_core and not given.get(key)}
    )
    return ImportedStep.of(update_of(engine, values, words, notes, assumed, ask), side)


def _of_version(given: Options, is_core: bool) -> Iterator[Assumed]:
    """Whether layers are recomputed where nothing says it, and the batch has the name of verl before 0.2.

    Its configs did not (``config/ppo_trainer.yaml``), those since do.
    """
    key, is_old = f"{MODEL}enable_gradient_checkpointing", given.get(f"{ACTOR}ppo_micro_batch_size") is not None
    if is_old and not is_core and given.get(key) is None:
        yield Assumed("recompute", "full", "verl recomputes unless told not to; before 0.2 it did not", ("none",))


def _strategy(given: Options, config: str) -> str:
    """What trains the actor: it says it, or the group of configs that is chosen."""
    group = given.get("model_engine")
    is_core = "megatron" in config or any(key.startswith(f"{ACTOR}megatron.") for key in given)
    usual = "megatron" if is_core else "fsdp"
    strategy = str(given.told(f"{ACTOR}strategy") or (group if group not in (None, "dp") else usual))
    if strategy not in STRATEGIES:
        raise UserError(f"{given.source}: {ACTOR}strategy = {strategy}: allowed: {', '.join(STRATEGIES)}")
    return strategy


def _waits(given: Options) -> bool:
    """Whether whole gradients of the actor wait for the last microbatch."""
    return True in {given.get(f"{section}{NO_SYNC}") for section in (ACTOR, f"{ACTOR}fsdp_config.")}


def _fixed(given: Options, dp: int) -> int:
    """Samples of a micro-batch, of a rank or (before verl 0.2) of all."""
    own, whole = given.whole(MICRO), given.whole(f"{ACTOR}ppo_micro_batch_size")
    if own is None and whole is None:
        raise UserError(f"{given.source}: no {MICRO}: allowed: it, or {ACTOR}use_dynamic_bsz=True")
    return own or max(1, (whole or 1) // dp)


def _steps(given: Options, batch: int, prompts: int) -> Iterator[str]:
    rollout = given.whole("data.train_batch_size", 0)
    rollout, epochs = 1024 if rollout is None else rollout, given.whole(f"{ACTOR}ppo_epochs") or 1
    if rollout:  # none where rollouts go on by themselves
        count = max(1, rollout // prompts) * epochs
        yield f"A rollout of {rollout} prompts has {count} such steps, of {batch} samples each."


def _sharded(given: Options, section: str, optim: str, sequence: int | None, ranks: int | None) -> Imported:
    """The layout of FSDP: ranks of a sequence (Ulysses), replicas of shards, dtypes, and the optimizer."""
    cp = max(sequence or 1, given.whole(f"{section}ulysses_sequence_parallel_size") or 1)  # resolved, both are there
    size = given.get(f"{section}fsdp_size", -1)
    replicas = ranks // size if ranks and isinstance(size, int) and 0 < size < ranks and ranks % size == 0 else 1
    precision = choice(given, f"{section}mixed_precision.param_dtype", DTYPES,
                       choice(given, f"{section}dtype", DTYPES, "bf16"))  # fmt: skip
    optimizer = str(given.get(f"{optim}optimizer") or "AdamW").lower().removeprefix("_")
    if optimizer not in OPTIMIZERS:
        raise UserError(f"{given.source}: {optim}optimizer = {optimizer}: allowed: {', '.join(OPTIMIZERS)}")
    low = choice(given, f"{section}model_dtype", DTYPES, "fp32") != "fp32"
    away = "cpu" if given.get(f"{section}offload_policy") or given.get(f"{section}cpu_offload") else None
    values: dict[str, Any] = {
        "stack": "verl",
        "zero": 3 if given.get(f"{section}reshard_after_forward", True) else 2,
        "hsdp": replicas if replicas > 1 else None,
        "cp": cp,
        **({"cp_method": "ulysses", "cp_balance": "contiguous"} if cp > 1 else {}),
        "precision": precision,
        "optimizer": OPTIMIZERS[optimizer],
        **(low_states(OPTIMIZERS[optimizer]) if low else {}),
        "offload_optimizer": away,
        "offload_parameters": away,
    }
    return Imported(plan_said(values))


def _modelled(given: Options, section: str, tokens: int) -> dict[str, Any]:
    """How the model of Hugging Face runs ``tokens`` of a micro-batch: kernels, recomputation, adapters."""
    fused = given.get(f"{section}use_fused_kernels")
    kernel = str(given.get(f"{section}override_config.attn_implementation") or "flash_attention_2")
    return {
        "recompute": "full" if given.get(f"{section}enable_gradient_checkpointing", True) else "none",
        "offload_activations": 1.0 if given.get(f"{section}enable_activation_offload") else None,
        "attention_kernel": KERNEL_OF.get(kernel),
        "fused_kernels": LIGER if given.get(f"{section}use_liger") else None,
        "loss_chunks": vocabulary_chunks(tokens) if fused else None,
        **adapters_of(given.whole(f"{section}lora_rank", 0), given.get(f"{section}target_modules"), given.source,
                      f"{section}target_modules"),
    }  # fmt: skip


def _core(given: Options, section: str, optim: str, of_model: str, model: str | None) -> Imported:
    """The layout of Megatron-Core, whose fields are options, and those that override its configs."""
    half = choice(given, f"{section}dtype", DTYPES, "bf16")
    usual = {**USUAL, "bf16": half == "bf16", "fp16": half == "fp16"}
    overrides = ("", "override_transformer_config.", "override_ddp_config.")
    sections = (*(f"{section}{each}" for each in overrides), f"{optim}override_optimizer_config.")
    result = of_megatron(given, sections, usual, model)
    name = given.get(f"{optim}optimizer") or "adam"
    if name != "adam":
        raise UserError(f"{given.source}: {optim}optimizer = {name}: allowed: adam")
    targets = f"{of_model}lora.target_modules"
    tuned = adapters_of(given.whole(f"{of_model}lora.rank", 0), given.get(targets), given.source, targets)
    return replace(result, plan=result.plan.with_values(**tuned)) if tuned else result


def _weigh_others(given: Options, *, has_adapters: bool) -> None:
    """Take what the reference, the critic and the engine of the rollout keep on the devices as read if that is none."""
    keys = (f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward")
    away = [given.get(f"{ROOT}ref.{engine}.param_offload") for engine in ("fsdp_config", "megatron")]
    if any(away) or has_adapters:  # without them, a policy with adapters is its reference
        given.take(*keys)
    estimator, enabled = given.get("algorithm.adv_estimator", "gae"), given.get("critic.enable")
    gone = any(given.get(f"critic.{where}.optimizer_offload") for where in ("model.fsdp_config", "fsdp", "megatron"))
    if gone or not (estimator == "gae" if enabled is None else enabled):
        given.take("critic.model.path")
    if not (estimator == "gae" if enabled is None else enabled):
        given.take(*(key for key in given if key.startswith("critic.")))
    if not has_adapters:
        given.take(*(key for key in given if ".lora." in key))
    if given.get(f"{ROOT}rollout.free_cache_engine", True) is not False:
        given.take(f"{ROOT}rollout.gpu_memory_utilization")


def _sft(given: Options, kind: str) -> Imported:
    """A step of the SFT trainers: of FSDP's, and of the one with engines."""
    model, ask = find_policy(given.text("model.partial_pretrain", "model.path"), given.source)
    batch, longest = given.whole("data.train_batch_size") or 256, given.whole("data.max_length") or 1024
    is_old = "model.partial_pretrain" in given
    ranks = (given.whole("trainer.nnodes") or 1) * each if (each := given.whole("trainer.n_gpus_per_node")) else None
    if kind not in STRATEGIES:
        raise UserError(f"{given.source}: engine = {kind}: allowed: {', '.join(STRATEGIES)}")
    section = "model.fsdp_config." if is_old else "engine."
    if kind == "megatron":
        engine = _core(given, section, "optim.", "model.", model)
    else:
        engine = _sharded(given, section, "optim.", given.whole("ulysses_sequence_parallel_size"), ranks)
    cp = engine.plan.mesh.cp
    by_tokens = not is_old and bool(given.get("data.use_dynamic_bsz", True))
    budget = (given.whole("data.max_token_len_per_gpu") or 8192) * cp

    def fill(length: int) -> int:
        return samples_of_micro_batch(budget, length, batch)

    own = given.whole("data.micro_batch_size_per_gpu") or 4
    if "data.micro_batch_size_per_gpu" in given:
        given.used.add("data.micro_batch_size")  # which has no effect beside it
    micro = fill(longest) if by_tokens else own
    packs = bool(given.told("use_remove_padding", "model.use_remove_padding")) or not is_old
    values = {
        "model": model,
        "micro_batch": micro,
        "training": {"seq_len": longest, "global_batch": batch},
        **({} if kind == "megatron" else _modelled(given, "model.", micro * longest // cp)),
    }
    if is_old:
        values |= {"stack": "huggingface", "defer_grad_reduce": False}  # torch's cross entropy
    assumed = (open_lengths(longest, fill if by_tokens else None),) if packs else ()
    return update_of(engine, values, given.words(), (), assumed, ask)


def _starts(words: Sequence[str]) -> bool:
    if any(re.search(rf"verl.*{SFT}", word) for word in words):
        return True
    if any("main_generation" in word for word in words):  # trains nothing
        return False
    return any(re.match(r"[+~]{0,2}actor_rollout_ref\.", word) for word in words)


def _owns(data: Mapping[str, Any]) -> bool:
    model = data.get("model")
    return isinstance(data.get("actor_rollout_ref"), Mapping) or (
        isinstance(model, Mapping) and "partial_pretrain" in model
    )


NO_SYNC = "use_no_sync_for_gradient_accumulation"
_ENGINES = (f"{ACTOR}megatron", "engine")
_OVERRIDES = tuple(f"{each}.override_*_config" for each in _ENGINES)
IDLE = (
    "defaults", "hydra.*", "verifier.*", f"{ACTOR}profile*",
    "data.*", "algorithm.*", "trainer.*", "critic.*", "reward*", "custom_reward_function*",
    "ray_*", "global_profiler.*", "transfer_queue.*", "env.*", "checkpoint.*", "profiler.*", "optim.*", "env_*",
    "skip.*", "distillation.*", "*.turbo_config.*", "*.qat.*", f"{ACTOR}use_remove_padding", "*.pad_to_length_bucket",
    "*.tiled_mlp.num_shards", "_target_", "*._target_", "model_engine",
    "engine", "optim", "rollout.*", "async_training.*", "*.use_shm",
    f"{ROOT}rollout.*", f"{ROOT}ref.*", f"{ROOT}hybrid_engine", f"{ROOT}nccl_timeout", f"{ACTOR}optim.*",
    f"{ACTOR}*kl_*", f"{ACTOR}clip_*", f"{ACTOR}entropy*", f"{ACTOR}loss_*", f"{ACTOR}policy_loss*",
    f"{ACTOR}grad_clip", f"{ACTOR}ppo_epochs", f"{ACTOR}shuffle", f"{ACTOR}checkpoint*", f"{ACTOR}profiler*",
    f"{ACTOR}data_loader_seed", f"{ACTOR}tau_*", f"{ACTOR}rollout_*", f"{ACTOR}use_torch_compile",
    f"{ACTOR}router_replay*", f"{ACTOR}*checkpointing*", f"{ACTOR}load_weight", f"{ACTOR}use_rollout_log_probs",
    f"{ACTOR}calculate_sum_pi_squared", f"{ACTOR}sum_pi*",
    *( f"{each}.{name}" for each in (*_ENGINES, f"{ACTOR}fsdp_config", "model.fsdp_config")
        for name in ("param_offload", "optimizer_offload", "grad_offload", "use_*mbridge", "vanilla_mbridge",
            "seed", "*dist_checkpointing*", "use_orig_params", "forward_only", "use_torch_compile", "strategy",
            "offload_params", "mixed_precision*", "entropy*", "wrap_policy*", "extra*", "load_weight",
            "use_remove_padding", "override_transformer_config.attention_softmax_in_fp32",
            "override_transformer_config.*bias_*fusion",)),
    *( f"{section}{name}" for section in (MODEL, "model.")
        for name in ("*_path", "trust_remote_code", "custom_chat_template", "external_lib", "override_config*",
            "lora_alpha", "exclude_modules", "lora*alpha", "lora*init*", "lora*dropout*", "lora*type", "lora.*",
            "fused_kernel_*", "strategy", "mtp.*", "torch_dtype",)),
)  # fmt: skip
"""Options of the data, the rollout, rewards, critic and reference, of logging, and of what happens between steps."""
READER = Reader(
    name="verl",
    description="verl: the update of the actor (FSDP, Megatron) and its SFT, as options of a command and YAML",
    read=read,
    starts=_starts,
    owns=_owns,
    has_dotted_flags=False,
    devices=SPAWNS,
    words=WordTable(
        idle=IDLE,
        deciding={
            **{
                f"{section}override_config*.{name}": "a model of other sizes than its folder's: memory and time"
                for section in (MODEL, "model.")
                for name in (
                    "num_*",
                    "*hidden_size",
                    "*intermediate_size",
                    "head_dim",
                    "vocab_size",
                    "n_*",
                    "*_lora_rank",
                    "*sliding_window",
                    "layer_types",
                    "tie_word_embeddings",
                )
            },
            "data.micro_batch_size": "the micro-batch of all ranks, in versions before data.micro_batch_size_per_gpu",
            f"{ACTOR}{TENSOR_RANKS}": "ranks that share a layer, 4 before verl 0.4 and 1 since: memory and time",
            f"{ACTOR}use_kl_loss": f"the reference: {BESIDE}",
            "algorithm.use_kl_in_reward": f"the reference: {BESIDE}",
            "critic.model.path": f"the critic: {BESIDE}",
            f"{ROOT}rollout.gpu_memory_utilization": ROLLOUT,
            f"{ACTOR}entropy_coeff": "the entropy of every token's distribution: time and memory of logits",
            f"{ACTOR}calculate_entropy": "the entropy of every token's distribution: time and memory of logits",
            f"{ACTOR}freeze_vision_tower": "a tower of another kind: its time and memory",
            f"{ACTOR}use_prefix_grouper": "prompts that samples share are computed once: time and memory",
            "distillation.enabled": "a teacher beside the policy: memory and time",
            "skip.*.enable": "steps whose rollout is left out: time",
            "*.qat.enable": "products in fewer bits: time",
            "*.pad_to_length": "sequences padded to one length: time",
            "*.tiled_mlp.enabled": "the MLP in pieces: memory",
            "*.mtp.enable": "layers that predict further tokens: time and memory",
            "*.mtp.enable_train": "layers that predict further tokens: time and memory",
            f"*.{NO_SYNC}": "whole gradients until the update: memory, and when they are sent",
            "*.forward_prefetch": "when parameters are gathered: time and memory",
            "*.wrap_policy.min_num_params": "how many layers are gathered at a time: memory",
            "*.enable_gradient_checkpointing": "what is recomputed: memory and time",
            "*.full_determinism": "kernels that add in one order: time",
            "*.use_fused_kernels": "the loss in pieces: memory of logits and time",
            "*.exclude_modules": "which matrices have adapters: memory and time",
            "*.lora.type": "which matrices have adapters: memory and time",
        },
    )
    | core_words(*_OVERRIDES, *_ENGINES, f"{ACTOR}optim.override_optimizer_config"),
)
