"""NeMo-RL: the update of the policy (GRPO, PPO, DPO, SFT, ...) in its YAML, on DTensors or Megatron-Core.

Defaults are those of ``examples/configs`` at NVIDIA-NeMo/RL 7ea279a, where a config that builds on one of these is
read without them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks.automodel_read import DISPATCHERS
from simpar.frameworks.automodel_read import OPTIMIZERS as OF_AUTOMODEL
from simpar.frameworks.nemo_rl_rollout import rollout
from simpar.frameworks.overrides import choice, command_of, is_config, mapping
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
from simpar.frameworks.predictions import with_predictions
from simpar.frameworks.reader import SPAWNS, Reader, value_of
from simpar.frameworks.recipes import flat
from simpar.frameworks.references import resolved
from simpar.frameworks.rollout_side import side_of
from simpar.frameworks.target import Imported, ImportedStep, plan_said
from simpar.frameworks.torchtune_read import OPTIMIZERS as OF_TORCH
from simpar.frameworks.trainer_arguments import split_command
from simpar.frameworks.trainer_read import DTYPES
from simpar.frameworks.trainer_words import PREFERENCE
from simpar.frameworks.words import ReadWords, WordTable, is_off

OPTIMIZERS = OF_AUTOMODEL | OF_TORCH
ALGORITHMS = ("grpo", "ppo", "sft", "dpo", "rm", "distillation")
SECTIONS = ("policy", "cluster", "loss_fn", "checkpointing", "data_plane", "logger", "env", "data")
CONFIG_OF = {
    "run_grpo": "grpo_math_1B", "run_grpo_math": "grpo_math_1B", "run_sft": "sft", "run_dpo": "dpo", "run_rm": "rm",
    "run_ppo": "ppo_math_1B", "run_distillation": "distillation_math", "run_vlm_grpo": "vlm_grpo_3B",
    "run_vlm_sft": "vlm_sft", "run_grpo_sliding_puzzle": "grpo_sliding_puzzle", "run_grpo_rm": "grpo_rm_1B",
}  # fmt: skip
"""Scripts of its examples, and the config that they take unless another one is named."""
_POLICY = "policy."
_MATH = {
    "model_name": "Qwen/Qwen2.5-1.5B", "train_global_batch_size": 512, "train_micro_batch_size": 4,
    "max_total_sequence_length": 512, "sequence_packing.enabled": True, "generation.backend": "vllm",
}  # fmt: skip
_LLAMA = {"train_micro_batch_size": 1, "max_total_sequence_length": 1024, "dtensor_cfg.enabled": True}
USUAL: Mapping[str, Mapping[str, Any]] = {
    "grpo_math_1B": {**_MATH, "dtensor_cfg.enabled": True},
    "grpo_math_1B_megatron": {**_MATH, "megatron_cfg.enabled": True},
    "sft": {**_LLAMA, "model_name": "meta-llama/Llama-3.2-1B", "train_global_batch_size": 32},
    "dpo": {
        **_LLAMA, "model_name": "meta-llama/Llama-3.2-1B-Instruct", "train_global_batch_size": 128,
        "train_micro_batch_size": 2,
    },
}  # fmt: skip
"""What those configs say of the policy that the defaults of this reader do not."""
BACKEND = "policy.dtensor_cfg.automodel_kwargs.backend."
BETWEEN = ("policy.megatron_cfg.empty_unused_memory_level", "policy.megatron_cfg.cuda_graph_warmup_steps")
"""Fields of Megatron-Core's section that have no effect inside a step."""
DTENSOR, CORE = f"{_POLICY}dtensor_cfg.", f"{_POLICY}megatron_cfg."
CORE_SECTIONS = (CORE, f"{CORE}model_overrides.", f"{CORE}optimizer.", f"{CORE}distributed_data_parallel_config.")
CORE_USUAL = {
    "bf16": True, "use_distributed_optimizer": True, "grad_reduce_in_bf16": True, "overlap_grad_reduce": True,
    "overlap_param_gather": True, "attention_backend": "flash", "moe_token_dispatcher_type": "alltoall",
    "moe_permute_fusion": True,
}  # fmt: skip
"""What ``grpo_math_1B.yaml`` has for Megatron-Core."""


def read(text: str, name: str) -> Imported:
    """The update of NeMo-RL's policy in a YAML or a command. Raises UserError."""
    if is_config(name):
        return _plan(_resolved(_based(text, name), [], name))
    words = command_of(text, name, _starts)
    script = next(PurePath(word).stem for word in words if PurePath(word).stem in CONFIG_OF)
    named = value_of(words, ("--config",))
    if not named and CONFIG_OF[script] not in USUAL:
        raise UserError(f"{name}: {script}.py without --config: allowed: --config FILE.yaml")
    data = _loaded(named, name) if named else _usual(CONFIG_OF[script])
    return _plan(_resolved(data, words, name))


def _usual(config: str) -> dict[str, Any]:
    return {f"{_POLICY}{key}": value for key, value in USUAL[config].items()}


def _loaded(path: str, source: str) -> dict[str, Any]:
    """A config with those that it builds on; configs of NeMo-RL's examples that are not here are known by name."""
    try:
        file = files.find_beside(path, source)
    except UserError:
        stem = PurePath(path).stem
        if stem in USUAL:
            return _usual(stem)
        raise
    return _based(files.read_text(file), str(file))


def _based(text: str, source: str, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A config over those that it builds on; ``above`` are the files that build on it."""
    data, above = mapping(text, source), (*above, Path(source).resolve())
    bases = data.get("defaults") or []
    result: dict[str, Any] = {}
    for base in bases if isinstance(bases, list) else [bases]:
        path = str(base)
        near = Path(source).parent / path
        if near.resolve() in above:
            line = text.count("\n", 0, text.find("defaults")) + 1
            raise UserError(f"{source}:{line}: defaults: {path} leads back to itself; allowed: configs that do not")
        if near.is_file():
            result = _over(result, _based(files.read_text(str(near)), str(near), above))
        else:
            result = _over(result, _loaded(path, source))
    return _over(result, flat({key: value for key, value in data.items() if key != "defaults"}))


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A config with another one over it: a value in place of a section removes that."""
    kept = {key: value for key, value in base.items() if not any(key.startswith(f"{name}.") for name in own)}
    return {**kept, **own}


def _resolved(data: Mapping[str, Any], words: Sequence[str], source: str) -> Options:
    """A config with the words of a command over it, and what refers to other options worked out."""
    return Options(resolved(_over(data, options_of(words, {}, source).values_)), source)


def _plan(given: Options) -> Imported:
    if not any(key.startswith(_POLICY) for key in given):
        raise UserError(
            f"{given.source}: no policy of NeMo-RL: it has a section policy with dtensor_cfg or megatron_cfg; the "
            "updates of GRPO and its kin by TRL are not modelled"
        )
    model, ask = find_policy(given.text(f"{_POLICY}model_name"), given.source)
    is_core = bool(given.get(f"{CORE}enabled"))
    given.take(*(key for key in given if key.startswith(DTENSOR if is_core else CORE)))  # the other has no effect
    engine = _core(given, model) if is_core else _dtensors(given)
    inside, ranks = int(engine.plan.mesh.sizes.replica_ranks), _ranks(given)
    if ranks and ranks % inside:
        raise UserError(f"{given.source}: cluster.num_nodes x cluster.gpus_per_node for training = {ranks}: allowed: a "
                        f"multiple of {inside}, the ranks of a replica")  # fmt: skip
    batch, longest = (
        given.whole(f"{_POLICY}train_global_batch_size"),
        given.whole(f"{_POLICY}max_total_sequence_length"),
    )
    own, micro = (
        batch * inside // ranks if batch and ranks else batch,
        given.whole(f"{_POLICY}train_micro_batch_size") or 1,
    )
    fills = [given.get(f"{_POLICY}{kind}.enabled") for kind in ("sequence_packing", "dynamic_batching")]
    kind = ("sequence_packing", "dynamic_batching")[not fills[0]]
    budget = given.whole(f"{_POLICY}{kind}.train_mb_tokens") or micro * (longest or 1)
    groups = groups_of(engine)
    fill: Callable[[int], int] | None = None
    if any(fills):
        fill = lambda length: samples_of_micro_batch(budget, length, own, groups)  # noqa: E731
    training = {"seq_len": longest, "global_batch": batch}
    values = {
        "model": model,
        "dp": ranks // inside if ranks else None,
        "micro_batch": fill(longest) if fill and longest else micro,
        "training": {key: size for key, size in training.items() if size} or None,
    }
    assumed = (open_lengths(longest, fill),) if longest else ()
    algorithm = next((each for each in ALGORITHMS if any(key.startswith(f"{each}.") for key in given)), "grpo")
    if algorithm in ("dpo", "rm", "distillation"):
        given.values_.setdefault(algorithm, True)  # decides: see the table of words
    notes = (NOTE, *_steps(given, algorithm, batch)) if algorithm in ("grpo", "ppo") else ()
    update = update_of(engine, values, given.words(), notes, assumed, ask)
    if model and is_core and f"{CORE}mtp_num_layers" in given:
        update, left = with_predictions(update, model, given.get(f"{CORE}mtp_num_layers"))
        unread = {} if left is None else {f"{CORE}mtp_num_layers": left}
        update = replace(update, words=update.words + ReadWords(unread=unread))
    generates = algorithm == "grpo" and any(key.startswith(("grpo.", f"{_POLICY}generation.")) for key in given)
    if not longest or not generates:
        return update
    return ImportedStep.of(update, side_of(lambda: rollout(given, longest), given.used))


def _steps(given: Options, algorithm: str, batch: int | None) -> Sequence[str]:
    prompts = given.whole(f"{algorithm}.num_prompts_per_step")
    samples = given.whole(f"{algorithm}.num_generations_per_prompt") or 1
    if not prompts or not batch:
        return ()
    return (
        f"A rollout of {prompts} prompts has {max(1, prompts * samples // batch)} such steps, of {batch} samples each.",
    )


def _ranks(given: Options) -> int | None:
    """Ranks that train: those of the cluster, without those that only generate."""
    nodes, each = given.whole("cluster.num_nodes"), given.whole("cluster.gpus_per_node")
    if nodes is None and each is None:
        return None
    nodes, each = nodes or 1, each or 1
    if given.get(f"{_POLICY}generation.colocated.enabled", True) is not False:
        return nodes * each
    section = f"{_POLICY}generation.colocated.resources."
    apart, devices = given.whole(f"{section}num_nodes") or 0, given.whole(f"{section}gpus_per_node") or 0
    return (nodes - apart) * each if nodes > 1 else each - devices


def _dtensors(given: Options) -> Imported:
    """The layout on DTensors: parameters are fp32, products of the precision (``automodel/setup.py``)."""
    sizes = {axis: given.whole(f"{DTENSOR}{name}_parallel_size") or 1
             for axis, name in (("tp", "tensor"), ("cp", "context"), ("ep", "expert"))}  # fmt: skip
    named = str(given.get(f"{_POLICY}optimizer.name") or "torch.optim.AdamW").rpartition(".")[2].lower()
    if named not in OPTIMIZERS:
        raise UserError(f"{given.source}: policy.optimizer.name = {named}: allowed: {', '.join(OPTIMIZERS)}")
    away = "cpu" if given.get(f"{DTENSOR}cpu_offload") else None
    named_dispatcher = "deepep" if given.get(f"{BACKEND}enable_deepep") else given.get(f"{BACKEND}dispatcher")
    tuned = bool(given.get(f"{DTENSOR}lora_cfg.enabled"))
    targets = given.get(f"{DTENSOR}lora_cfg.target_modules")
    whole = given.get(f"{DTENSOR}lora_cfg.match_all_linear", True)
    values: dict[str, Any] = {
        "stack": "automodel" if given.get(f"{DTENSOR}_v2", True) else "huggingface",
        "zero": 3,
        "defer_grad_reduce": False,
        **sizes,
        "etp": 1 if sizes["ep"] > 1 else None,
        "hsdp": given.whole(f"{DTENSOR}dp_replicate_size"),
        "precision": choice(given, f"{_POLICY}precision", DTYPES, "bf16"),
        "parameter_dtype": "fp32",
        "optimizer": OPTIMIZERS[named],
        "recompute": "full" if given.get(f"{DTENSOR}activation_checkpointing") else "none",
        "offload_parameters": away,
        "offload_optimizer": away,
        "dispatcher": DISPATCHERS.get(str(named_dispatcher)),
        "token_dispatch": "per_node" if named_dispatcher in DISPATCHERS else None,
        **({"sequence_parallel": bool(given.get(f"{DTENSOR}sequence_parallel"))} if sizes["tp"] > 1 else {}),
        **({"cp_method": "all_gather", "cp_balance": "zigzag"} if sizes["cp"] > 1 else {}),
        **(adapters_of(given.whole(f"{DTENSOR}lora_cfg.dim") or 8, None if whole else targets, given.source,
                       f"{DTENSOR}lora_cfg.target_modules") if tuned else {}),
    }  # fmt: skip
    return Imported(plan_said(values))


def _core(given: Options, model: str | None) -> Imported:
    """The layout on Megatron-Core: its section holds the fields of the model, of DDP and of the optimizer."""
    recomputes = bool(given.get(f"{CORE}activation_checkpointing"))
    kind = given.get(f"{CORE}recompute_granularity", "full")
    usual = dict(CORE_USUAL) | ({"recompute_granularity": kind} if recomputes else {})
    if recomputes and kind == "full":
        usual |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    left = {
        key: given.values_.pop(key)
        for key in list(given)
        if re.fullmatch(rf"{CORE}recompute_(granularity|modules)", key)
    }
    if recomputes and kind == "selective" and left.get(f"{CORE}recompute_modules"):
        usual["recompute_modules"] = left[f"{CORE}recompute_modules"]
    if given.get(f"{CORE}distributed_data_parallel_config.grad_reduce_in_fp32"):
        usual["grad_reduce_in_bf16"] = False
    if given.get(f"{CORE}fp8_cfg.enabled"):
        recipe = given.get(f"{CORE}fp8_cfg.fp8_recipe", "blockwise")
        usual |= {"fp8_format": given.get(f"{CORE}fp8_cfg.fp8", "e4m3"), "fp8_recipe": recipe}
    if given.get(f"{CORE}moe_enable_deepep"):
        usual["moe_token_dispatcher_type"] = "flex"
        given.values_.pop(f"{CORE}moe_token_dispatcher_type", None)
    if is_off(given.get(f"{CORE}optimizer.optimizer_cpu_offload")):
        given.values_.pop(f"{CORE}optimizer.optimizer_offload_fraction", None)
    half = choice(given, f"{_POLICY}precision", DTYPES, "bf16")
    usual |= {"bf16": half == "bf16", "fp16": half == "fp16"}
    known = {*given.used, *BETWEEN, f"{CORE}model_overrides"}
    result = of_megatron(given, CORE_SECTIONS, usual, model)
    unread = {word: value for word, value in result.words.unread.items() if word not in known}
    result = replace(result, words=replace(result.words, unread=unread))
    if not given.get(f"{CORE}peft.enabled"):
        return result
    key = f"{CORE}peft.target_modules"
    tuned = adapters_of(given.whole(f"{CORE}peft.dim") or 8, given.get(key), given.source, key)
    return update_of(result, tuned, type(result.words)(), (), (), "")


def _starts(words: Sequence[str]) -> bool:
    script = next((word for word in words if PurePath(word).stem in CONFIG_OF and word.endswith(".py")), None)
    command = split_command(words) if script is not None else None
    if command is None or command.launched_by in ("accelerate", "deepspeed", "torchrun"):  # it starts its ranks by Ray
        return False
    own = any(re.match(r"[+~]{0,2}(policy|cluster|grpo|sft|dpo|ppo|rm)\.", word) for word in words)
    return (
        own
        or "grpo" in command.script
        or "examples/run_" in command.script
        or "uv" in [PurePath(word).name for word in words]
    )


def _owns(data: Mapping[str, Any]) -> bool:
    policy, base = data.get("policy"), data.get("defaults")
    if isinstance(base, str) and base.endswith(".yaml"):
        return bool({*ALGORITHMS, *SECTIONS} & set(map(str, data)))
    keys = {"dtensor_cfg", "megatron_cfg", "train_global_batch_size", "max_total_sequence_length", "model_name"}
    return isinstance(policy, Mapping) and bool(keys & set(map(str, policy))) and bool(
        {*ALGORITHMS, "cluster", "defaults"} & set(map(str, data))
    )  # fmt: skip


IDLE = (
    "grpo.*", "ppo.*", "sft.*", "dpo.*", "rm.*", "distillation.*", "loss_fn.*", "run.*", "checkpointing.*", "data.*",
    "env.*",
    "logger.*", "cluster.*", "data_plane.*", "reward_penalties.*", "on_policy_distillation*", "policy.tokenizer.*",
    "policy.generation*", "policy.scheduler*", "policy.optimizer.*", "policy.max_grad_norm", "policy.logprob_*",
    "policy.draft.*", "policy.sequence_packing.*", "policy.dynamic_batching.*", "policy.make_sequence*",
    "policy.offload_optimizer_for_logprob", "policy.refit*", "policy.hf_config_overrides*", "policy.env_vars*",
    "policy.generation_batch_size", "policy.reward_model_cfg.*", "policy.dtensor_cfg.env_vars*", "teacher.*", "value.*",
    "policy.dtensor_cfg.lora_cfg.*", "policy.dtensor_cfg.enabled", "policy.dtensor_cfg.clear_cache*", "nemo_gym*",
    "policy.dtensor_cfg.*", "policy.megatron_cfg.scheduler.*", "policy.megatron_cfg.env_vars*", "policy.is_*",
    "policy.megatron_cfg.peft.*", "policy.megatron_cfg.checkpoint.*", "policy.megatron_cfg.fp8_cfg.*",
    *(f"policy.megatron_cfg.{name}" for name in (
        "enabled", "converter_type", "pipeline_dtype", "empty_unused_memory_level", "force_*", "use_gloo*",
        "cuda_graph_warmup_steps", "fused_linear_logprobs_chunk_size", "moe_per_layer_logging", "mtp_loss*",
        "mtp_detach*",
        "mtp_use*", "freeze_moe_router", "optimizer.*lr", "optimizer.weight_decay*", "optimizer.adam_*",
        "optimizer.params_dtype", "optimizer.sgd_*", "optimizer.clip_grad", "optimizer.use_*", "optimizer.optimizer_*",
        "distributed_data_parallel_config.average*", "distributed_data_parallel_config.use_custom_fsdp",
        "distributed_data_parallel_config.*", "bias_*_fusion", "moe_router_bias*", "train_iters", "offload_modules",
    )),
    "policy.quant*", "policy.train_micro*", "value_loss_fn.*", "policy.disable_*", "policy.router_replay.*",
    "policy.dequantize*",
    "policy.activation_*", "metadata*", "checkpoint*", "eval*", "policy.sglang*", "async*",
)  # fmt: skip
"""Options of the rollout, of rewards, of data and of logging, and those without effect on a step."""
READER = Reader(
    name="nemo-rl",
    description="NeMo-RL: the update of the policy in its YAML and commands (DTensors, Megatron-Core)",
    read=read,
    starts=_starts,
    owns=_owns,
    has_dotted_flags=False,
    devices=SPAWNS,
    words=core_words("policy.megatron_cfg.model_overrides", "policy.megatron_cfg")
    | WordTable(
        idle=IDLE,
        deciding={
            **dict.fromkeys(("dpo", "rm", "distillation"), PREFERENCE),
            "value.model_name": f"the value model: {BESIDE}",
            "policy.draft.enabled": "a drafting head that is trained beside: time and memory",
            "policy.dtensor_cfg.custom_parallel_plan": "which matrices are divided: time and memory",
            **dict.fromkeys(
                (f"{BACKEND}{part}" for part in ("attn", "linear", "rms_norm", "experts")),
                "kernels of Automodel: time and memory",
            ),
            "policy.dtensor_cfg.lora_cfg.exclude_modules": "which matrices have adapters: memory and time",
            "policy.megatron_cfg.peft.exclude_modules": "which matrices have adapters: memory and time",
            "policy.megatron_cfg.use_fused_linear_logprobs": "the loss in pieces: memory of logits and time",
            "policy.megatron_cfg.fine_grained_activation_offloading": "where saved activations wait: memory and time",
            "policy.megatron_cfg.distributed_data_parallel_config.use_custom_fsdp": "how states are sharded: memory",
            "policy.megatron_cfg.defer_fp32_logits": "where logits are widened: memory",
            "policy.quant_cfg": "products in fewer bits: time",
            "policy.megatron_cfg.freeze_config.*": "which parameters are trained: memory and time",
        },
    ),
)
