"""OpenRLHF: its trainers on DeepSpeed (SFT, the actor of PPO and its kin), under the names of both its generations.

Defaults are those of ``openrlhf/cli`` at OpenRLHF/OpenRLHF 3c3be623 (``--ds.zero_stage``) and of its release 0.8.11
(``--zero_stage``).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from simpar.errors import UserError
from simpar.frameworks import deepspeed_read
from simpar.frameworks.openrlhf_rollout import rollout
from simpar.frameworks.policy_update import (
    BESIDE,
    NOTE,
    ROLLOUT,
    adapters_of,
    find_policy,
    open_lengths,
    samples_of_micro_batch,
    update_of,
)
from simpar.frameworks.reader import SPAWNS, Reader
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.rollout_side import side_of
from simpar.frameworks.target import Imported, ImportedStep, plan_said
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand, commands_of, split_command
from simpar.frameworks.trainer_read import KERNEL_OF
from simpar.frameworks.trainer_words import PREFERENCE
from simpar.frameworks.words import Assumed, WordTable

MODULE = "openrlhf.cli.train_"
ONLINE = ("ppo_ray", "ppo")
KINDS = (*ONLINE, "sft", "dpo", "rm", "kto", "kd", "prm")
LIGER = "norm+activation+rope"
OPEN_KERNEL = "releases before 0.8.6 run eager attention without --flash_attn"
MODEL = ("actor.model_name_or_path", "model.model_name_or_path", "pretrain")


def read(text: str, name: str) -> Imported:
    """The step of a trainer of OpenRLHF. Raises UserError naming file, option and value."""
    command = next((each for each in commands_of(text, name) if each.script.startswith(MODULE)), None)
    if command is None:
        raise UserError(f"{name}: no command of OpenRLHF, such as deepspeed --module openrlhf.cli.train_sft")
    kind = _kind(command)
    if kind not in KINDS:
        raise UserError(f"{name}: {command.script}: allowed: {', '.join(MODULE + each for each in KINDS)}")
    given = TrainerArguments(command.flags, name, command.written)
    if kind not in (*ONLINE, "sft"):
        given.values_[command.script] = True  # decides: see the table of words
    return _plan(given, kind)


def _plan(given: TrainerArguments, kind: str) -> Imported:
    is_online, is_dotted = kind in ONLINE, any("." in key for key in given)
    named = str(given.one(*MODEL) or "")
    model, ask = find_policy(named, given.source)
    tp = given.number("ds_tensor_parallel_size", "ds.tensor_parallel_size") or 1
    cp = given.number("ring_attn_size", "ds.ring_attn_size") or 1
    batch = given.number("train_batch_size", "train.batch_size") or 128
    longest = _longest(given, is_online=is_online, is_dotted=is_dotted)
    ranks = _ranks(given) if is_online else None
    if ranks and ranks % (tp * cp):
        raise UserError(f"{given.source}: actor's nodes x GPUs of each = {ranks}: allowed: a multiple of {tp * cp}")
    dp = ranks // (tp * cp) if ranks else None
    budget = (given.number("train_max_tokens_per_gpu", "train.max_tokens_per_gpu") or 16192) * cp * tp
    fills = bool(given.on("use_dynamic_batch", "train.dynamic_batch_enable"))

    def fill(length: int) -> int:
        return samples_of_micro_batch(budget, length, batch // dp if dp else batch)

    usual = 8 if not is_online else 1 if is_dotted else 4
    own = given.number("micro_train_batch_size", "train.micro_batch_size") or usual
    values: dict[str, Any] = {
        **_sharded(given, is_dotted=is_dotted),
        **({"tp": tp, "sequence_parallel": False} if tp > 1 else {}),
        **({"cp": cp, "cp_method": "ring", "cp_balance": "zigzag"} if cp > 1 else {}),
        "dp": dp,
        "micro_batch": fill(longest) if fills else own,
        "training": {"seq_len": longest, "global_batch": batch},
        **_modelled(given),
    }
    if is_online:
        _weigh_others(given)
    assumed = (open_lengths(longest, fill if fills else None), *_open_kernel(given, is_dotted=is_dotted))
    notes = (NOTE, *_steps(given, batch)) if is_online else ()
    engine = Imported(plan_said(values))
    told = update_of(engine, {"model": model}, given.words(), (*notes, *given.misspelt()), assumed, ask)
    if not is_online:
        return told
    return ImportedStep.of(told, side_of(lambda: rollout(given, named, longest, is_dotted=is_dotted), given.used))


def _longest(given: TrainerArguments, *, is_online: bool, is_dotted: bool) -> int:
    """Tokens of the longest sample: of prompt and answer, or of both together."""
    whole = given.number("data.max_len", "max_len")
    parts = [given.number(f"{part}_max_len") or 1024 for part in ("prompt", "generate")]
    return sum(parts) if is_online and not is_dotted else whole or 2048


def _ranks(given: TrainerArguments) -> int:
    nodes = given.number("actor.num_nodes", "actor_num_nodes") or 1
    return nodes * (given.number("actor.num_gpus_per_node", "actor_num_gpus_per_node") or 8)


def _sharded(given: TrainerArguments, *, is_dotted: bool) -> dict[str, Any]:
    """The plan of the DeepSpeed config that OpenRLHF makes (``utils/deepspeed/deepspeed_utils.py``)."""
    dtype = str(given.one("ds.param_dtype", "param_dtype") or ("bf16" if is_dotted or given.on("bf16") else "fp32"))
    if dtype not in ("bf16", "fp16", "fp32"):
        raise UserError(f"{given.source}: param_dtype = {dtype}: allowed: bf16, fp16, fp32")
    stage = given.one("ds.zero_stage", "zero_stage")
    config = {
        "zero_optimization.stage": 2 if stage is None else stage,
        "zero_optimization.offload_optimizer.device": "cpu" if given.on("ds.adam_offload", "adam_offload") else "none",
        "zero_optimization.offload_param.device": "none",
        "bf16.enabled": dtype == "bf16",
        "fp16.enabled": dtype == "fp16",
        "optimizer.type": "Adam",
        **({"zero_optimization.overlap_comm": True} if given.on("ds.overlap_comm", "overlap_comm") else {}),
    }
    values = deepspeed_read.values_of(ConfigReader(config, given.source), [])
    muon = given.one("actor.optim", "optim")
    return {**values, "precision": dtype, "optimizer": "muon" if muon == "muon" else values["optimizer"]}


def _modelled(given: TrainerArguments) -> dict[str, Any]:
    """How the model of Hugging Face runs: kernels, recomputation, adapters."""
    recomputes = given.on(
        "gradient_checkpointing", "actor.gradient_checkpointing_enable", "model.gradient_checkpointing_enable"
    )
    kernel = str(given.one("ds.attn_implementation", "attn_implementation") or "flash_attention_2")
    if kernel not in KERNEL_OF:
        given.leave("ds.attn_implementation", "attn_implementation")
    rank = given.one("ds.lora.rank", "lora_rank")
    targets = given.one("ds.lora.target_modules", "target_modules")
    low = given.on("ds.load_in_4bit", "load_in_4bit")
    return {
        "recompute": "full" if recomputes else "none",
        "attention_kernel": KERNEL_OF.get(kernel),
        "fused_kernels": LIGER if given.on("ds.use_liger_kernel", "use_liger_kernel") else None,
        **adapters_of(int(rank or 0), targets, given.source, "target_modules"),
        **({"lora_dropout": given.rate("ds.lora.dropout", "lora_dropout") or 0.0} if rank else {}),
        **({"frozen_dtype": "nf4"} if low and rank else {}),
    }


def _open_kernel(given: TrainerArguments, *, is_dotted: bool) -> Iterator[Assumed]:
    told = given.one("ds.attn_implementation", "attn_implementation", "flash_attn")
    if not is_dotted and told is None:
        yield Assumed("attention_kernel", "flash2", OPEN_KERNEL, ("eager",))


def _steps(given: TrainerArguments, batch: int) -> Iterator[str]:
    prompts = given.number("rollout.batch_size", "rollout_batch_size") or 1024
    samples = given.number("rollout.n_samples_per_prompt", "n_samples_per_prompt") or 1
    count = max(1, prompts * samples // batch)
    yield f"A rollout of {prompts} prompts has {count} such steps, of {batch} samples each."


def _weigh_others(given: TrainerArguments) -> None:
    """Take what reference, critic and engine of the rollout keep as read where they have other devices, or leave."""
    whole = given.on("colocate_all_models", "train.colocate_all")
    is_async = given.on("train.async_enable", "async_train")  # then engines have devices of their own
    beside = given.on("colocate_actor_ref", "train.colocate_actor_ref")
    if not whole or is_async or given.on("vllm_enable_sleep", "vllm.enable_sleep"):
        given.one("vllm_gpu_memory_utilization", "vllm.gpu_memory_utilization")
    has_reference = given.one("init_kl_coef", "algo.kl.init_coef") not in (0, 0.0)
    is_away = given.on("ref_reward_offload", "ref.offload")
    if (whole or beside) and has_reference and not is_away:
        given.leave("colocate_all_models", "train.colocate_all", "colocate_actor_ref", "train.colocate_actor_ref")


def _kind(command: TrainerCommand) -> str:
    return command.script.removeprefix(MODULE)


def _starts(words: Sequence[str]) -> bool:
    command = split_command(words) if words else None
    return command is not None and command.script.startswith(MODULE)


DETERMINISM = "kernels that add in one order: time"
IDLE = (
    "ckpt*", "logger*", "eval*", "data.*", "dataset*", "input_*", "output_*", "save_*", "load_checkpoint", "max_epochs",
    "train.max_epochs", "train.num_episodes", "train.seed", "seed", "adam*", "actor.*", "critic*",
    "reward*", "ref*", "rollout.*", "vllm*", "algo*", "lr*", "learning_rate", "*_learning_rate", "min_lr*", "max_norm",
    "l2", "muon*", "optim*", "use_wandb", "wandb*", "use_tensorboard", "use_ms", "logging_steps", "max_samples",
    "prompt_*", "apply_chat_template", "tokenizer*", "disable_fast_tokenizer", "chosen_key", "rejected_key",
    "label_key",
    "local_rank", "enable_prefix_caching", "enforce_eager", "rollout_*", "micro_rollout*", "init_kl*", "kl_*",
    "normalize_reward", "advantage*", "gamma", "lambd", "eps_clip*", "value_*", "temperature", "top_p", "n_samples_*",
    "remote_rm*", "agent_func_path", "num_episodes", "lora_alpha", "ds.lora.alpha",
    "ds.use_universal_ckpt", "use_ds_universal_ckpt", "ds.enable_sleep", "deepspeed_enable_sleep", "model.*_coef",
    "ref_num*", "colocate_critic*", "train.colocate_critic*", "train.async*", "async_train", "train.partial*",
    "*freezing*", "dynamic_filtering*", "overlong*", "use_kl*", "policy_loss_type", "dual_clip", "no_advantage*",
    "train.agent*", "gradient_checkpointing_use_reentrant", "*.gradient_checkpointing_reentrant", "packing_samples",
    "ds.packing_samples", "multiturn", "pretrain_mode", "pretrain_data", "model.pretrain*", "beta", "margin_loss",
    "loss", "ring_head_stride", "ds.ring_attn_head_stride", "ds.value_head_prefix", "aux_loss_coef", "sync_*",
    "perf", "bf16", "flash_attn", "train.enable_ema", "enable_ema", "ema_beta", "train.ema_beta", "perf*", "limit_*",
    "is_correction*", "enable_vllm_is*", "placeholder_token", "reward_tokens", "kd_coef", "model.*",
)  # fmt: skip
"""Options of the data, of the rollout, of rewards and of logging."""
READER = Reader(
    name="openrlhf",
    description="OpenRLHF: SFT, and the update of the actor of PPO and its kin, on DeepSpeed",
    read=read,
    starts=_starts,
    has_dotted_flags=False,
    devices=SPAWNS,
    words=WordTable(
        idle=IDLE,
        deciding={
            f"{MODULE}*": PREFERENCE,
            **dict.fromkeys(("vllm_gpu_memory_utilization", "vllm.gpu_memory_utilization"), ROLLOUT),
            **dict.fromkeys(
                ("colocate_all_models", "train.colocate_all", "colocate_actor_ref", "train.colocate_actor_ref"),
                f"the reference: {BESIDE}",
            ),
            **dict.fromkeys(("zpg", "ds.zpg"), "shards of a node beside those of all: memory and time"),
            **dict.fromkeys(("grad_accum_dtype", "ds.grad_accum_dtype"), "the dtype of summed gradients: memory"),
            **dict.fromkeys(("deepcompile", "ds.deepcompile"), "DeepSpeed's compiler: time and memory"),
            **dict.fromkeys(("enable_ema", "train.enable_ema"), "a second copy of the weights: memory and time"),
            **dict.fromkeys(
                ("attn_implementation", "ds.attn_implementation"), "the kernel of attention: time and memory"
            ),
            **dict.fromkeys(("full_determinism", "train.full_determinism_enable"), DETERMINISM),
            **dict.fromkeys(("entropy_loss_coef", "actor.entropy_coef"), "the entropy of every token: time and memory"),
            "teacher_*": PREFERENCE,
            "ds.experts_implementation": "kernels of experts: time",
            "*freeze_vis*": "a tower of another kind: its time and memory",
        },
    ),
)
