"""ms-swift on Hugging Face's Trainer: ``swift sft``, ``swift pt`` and ``swift rlhf``, with its names and defaults.

Defaults are those of ``swift/arguments`` and ``swift/trainers/arguments.py`` at modelscope/ms-swift 3602360.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import load_beside, mapping
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.rollout_side import side_of
from simpar.frameworks.shell_shared import script_of
from simpar.frameworks.shipped_configs import BY_WIDTH, of_deepspeed
from simpar.frameworks.swift_rollout import rollout, server_of_script
from simpar.frameworks.target import Imported, ImportedStep
from simpar.frameworks.trainer_arguments import CONFIGS, TrainerArguments, TrainerCommand, split_command, words_of
from simpar.frameworks.trainer_read import Adapters, Habits, plan_of
from simpar.frameworks.trainer_readers import flat_options
from simpar.frameworks.trainer_towers import has_tower
from simpar.frameworks.trainer_words import PREFERENCE, VISION, WORDS
from simpar.frameworks.words import ReadWords, WordTable
from simpar.plan.choices.tuning import Tuning

KINDS = ("sft", "pt", "rlhf")
OTHERS = ("export", "infer", "deploy", "eval", "app", "rollout", "sample", "web-ui", "merge-lora")
USUAL_BATCH = 16
"""Sequences that accumulation fills a step up to, where it is not given."""
ONLINE = ("grpo", "ppo", "gkd")
"""Kinds of rlhf whose sequences are a prompt of max_length and an answer."""
USUAL_ANSWER = 512
"""Default of max_completion_length (rlhf_args.py)."""


def _preset(stage: int, *, away: bool = False) -> Mapping[str, Any]:
    """A DeepSpeed config of ``swift/config``."""
    if stage < 3:
        sizes: dict[str, Any] = {"allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000}
        return of_deepspeed(stage, overlaps=False, offloads=("optimizer",) if away else (), **sizes)
    return of_deepspeed(stage, overlaps=False, offloads=("optimizer", "param") if away else (), **BY_WIDTH)


BEFORE_3 = {
    f"default-zero{stage}": of_deepspeed(stage, **sizes) for stage, sizes in (
        (2, {"allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000}), (3, BY_WIDTH),
    )
} | {"zero3-offload": of_deepspeed(3, offloads=("optimizer", "param"), **BY_WIDTH)}  # fmt: skip
"""Its configs before 3.0, which overlap (``swift/llm/ds_config`` at modelscope/swift d79f47f)."""
USUAL_TARGETS = ("q_proj", "k_proj", "v_proj")
"""What DEFAULT and AUTO meant before 3.0: queries, keys and values, of most families one matrix (``LoRATM``)."""
SWIFT = Habits(
    "swift",
    precision="bf16",
    recompute=True,
    states="low",
    attention="sdpa",
    adapters=Adapters(targets=Tuning().lora_targets, dropout=0.05),
    micro_batch=1,
    presets={f"zero{stage}": _preset(stage) for stage in range(4)}
    | {f"zero{stage}_offload": _preset(stage, away=True) for stage in (2, 3)}
    | BEFORE_3,
    of_towers=("freeze_vit", "freeze_aligner"),  # tuner_args.py
)
"""Weights in the dtype of the model's config (bf16 of nearly all), and products in it; adapters of all projections."""
OF_VISION = ("freeze_vit", "freeze_aligner", "vit_gradient_checkpointing", "vit_lr", "aligner_lr", "max_pixels")
OF_PIXELS = ("MAX_PIXELS", "VIDEO_MAX_PIXELS", "FPS_MAX_FRAMES", "IMAGE_MAX_TOKEN_NUM", "VIDEO_MAX_TOKEN_NUM")
"""Variables that say how many patches images and videos have."""
WORDS = WORDS | WordTable(
    idle=(
        "system", "model_author", "model_name", "model_type", "task_type", "num_labels", "template*", "agent_template",
        "use_chat_template", "response_prefix", "add_version", "create_checkpoint_symlink", "load_from_cache_file",
        "split_dataset_ratio", "columns", "interleave_prob", "stopping_strategy", "download_mode", "custom_*",
        "loss_scale", "external_plugins", "report_to", "swanlab*", "init_weights", "init_strategy", "lora_dtype",
        "use_ray", "lorap_lr_ratio", "acc_strategy", "check_model", "enable_channel_loss", "enable_dft_loss",
        "gradient_checkpointing_kwargs", "safe_serialization", "max_shard_size", "callbacks", "early_stop_interval",
        "router_aux_loss_coef", "cached_val_dataset", "packing_num_proc", "local_repo_path", "ignore_args_error",
        "add_non_thinking_prefix", "disable_*", "create_*", "max_model_len", "lazy_tokenize", "data_*",
        "galore_*", "lisa_step_interval", "is_binary_loss_scale", "norm_bbox", "use_flash_ckpt", "metric*", "moe_*",
        "cached_dataset", "train_dataloader_shuffle", "temperature", "top_*", "overlong_filter", "label_names",
        "epsilon*", "importance_sampling_level", "multi_turn_scheduler", "max_turns", "problem_type", "kl_in_reward",
        "advantage_estimator", "use_gym_env", "stop_words", "lora_ga_*", "chord_*", "tau_*", "scale_rewards",
        "sft_alpha", "loss_weights", "gkd_*", "predict_with_generate", "max_epochs", "max_new_tokens",
        "log_completions", "max_resample_times", "soft_*", "repetition_*", "reward_model_plugin", "log_entropy",
        "num_generations_eval", "top_entropy_quantile", "delta", "rollout_importance*", "log_rollout*", "max_grad_norm",
        "train_dataset*", "val_dataset*", "check_dataset_strategy", "self_cognition_sample", "model_revision",
        "ddp_backend", "use_self_cognition", "dataset_*", "preprocess_num_proc", "add_output_dir_suffix",
        "only_save_model", "neftune_backend",
        "cosine_*", "sync_ref_model", "ref_model_*", "vllm_server_group_port", "structured_outputs_regex",
    ),
    deciding={
        **dict.fromkeys((*OF_VISION, *(name.lower() for name in OF_PIXELS)), VISION),
        **dict.fromkeys(("rlhf_type", "ref_*", "vllm_*", "num_iterations", "teacher_*", "rpo_alpha", "offload_*",
                         "sleep_level", "move_model_batches", "steps_per_generation", "generation_batch_size",
                         "dynamic_sample", "lmbda", "num_infer_workers", "max_completion_length", "async_generate",
                         "response_length"), PREFERENCE),
        "task_type": "another head and loss than the next token's: time and memory",
        "quant_bits": "weights of layers in other bits than 4: memory and time",
        "quant_method": "weights of layers in other bits than 4: memory and time",
        "target_modules": "adapters of other matrices than a layer's projections: memory",
        "target_regex": "which matrices have adapters: memory and time",
        "target_parameters": "which matrices have adapters: memory and time",
        "freeze_llm": "which parameters are trained: memory and time",
        "freeze_parameters*": "which parameters are trained: memory and time",
        "trainable_parameters*": "which parameters are trained: memory and time",
        "tuner_backend": "another implementation of adapters: time and memory",
        "experts_impl": "kernels of experts: time",
        "lisa_activated_layers": "which layers are trained: memory and time",
        "zero_hpz_partition_size": "shards of a node beside those of all: memory and time",
        "deepspeed_autotp_size": "ranks that share layers: memory and time",
        "use_logits_to_keep": "of which tokens logits are computed: memory",
        "new_special_tokens": "a larger vocabulary, whose tables are trained: memory",
        "loss_type": "how the loss is computed: memory of logits",
        "train_type": "what of the model is trained",
        "group_by_length": "how even sequences are: time",
    },
)  # fmt: skip
"""Words of ``swift/arguments`` beside those of the Trainer."""


def read(text: str, name: str) -> Imported:
    """The plan in a command of ms-swift on the Trainer, or in its YAML or JSON. Raises UserError."""
    if name.endswith(CONFIGS):
        values = flat_options(mapping(text, name))
        return _plan(TrainerArguments(values, name), "sft", None, values.get("ENV.NPROC_PER_NODE"))
    script = script_of(text, name)
    own = [each for each in zip(script.commands, script.environments, strict=True) if _starts(each[0])]
    if not own:
        raise UserError(f"{name}: no command of ms-swift, such as swift sft --model Qwen/Qwen2.5-7B")
    words, environment = next((each for each in own if _trains(each[0])), own[0])
    command = split_command(words)
    if command is None or not _trains(words):
        raise UserError(
            f"{name}: ms-swift's {', '.join(OTHERS)} train nothing; allowed: swift sft, swift pt, swift rlhf"
        )
    return _of_command(replace(command, environment=environment), name, server_of_script(text, name))


def _of_command(command: TrainerCommand, name: str, server: TrainerArguments | None) -> Imported:
    environment = command.environment
    values: dict[str, Any] = {}
    for config in command.configs:
        values |= flat_options(load_beside(config, name))
    given = TrainerArguments({**values, **command.flags}, name, command.written)
    given.variables = command.environment
    ranks = environment.get("NPROC_PER_NODE") or values.get("ENV.NPROC_PER_NODE")
    _refuse_spread(command, {**environment, "NPROC_PER_NODE": ranks or ""}, name)
    world = _world(command, {**environment, "NPROC_PER_NODE": ranks or ""})
    return _plan(given, _kind(command), command, world, server)


def _refuse_spread(command: TrainerCommand, environment: Mapping[str, str], name: str) -> None:
    """Refuse processes that see several devices each: layers are spread over them (``is_mp``). Raises UserError.

    DeepSpeed shards in their place.
    """
    visible = (environment.get("CUDA_VISIBLE_DEVICES") or "0").split(",")
    told = value_of(command.before, ("--nproc_per_node", "--nproc-per-node")) or environment["NPROC_PER_NODE"]
    ranks = int(told) if told.isdecimal() else 0 if told or command.launched_by or environment.get("NNODES") else 1
    if not ranks or len(visible) < 2 * ranks or (told and "deepspeed" in command.flags):
        return
    said = f"beside NPROC_PER_NODE = {told}" if told else "without NPROC_PER_NODE"
    raise UserError(
        f"{name}: CUDA_VISIBLE_DEVICES = {','.join(visible)} {said}: {'each' if told else 'one'} process spreads the "
        "layers over the devices (device_map), which is not modelled; allowed: NPROC_PER_NODE, or one device"
    )


def _world(command: TrainerCommand, environment: Mapping[str, str]) -> int | None:
    """The ranks of a job; None if only running would tell."""
    if command.launched_by:
        told = [value_of(command.before, names) for names in (
            ("--nnodes", "--num_machines"), ("--nproc_per_node", "--nproc-per-node"), ("--num_processes",),
        )]  # fmt: skip
        counts = [int(each) if each and each.isdecimal() else 1 if each is None else None for each in told]
        return None if None in counts else max((counts[0] or 1) * (counts[1] or 1), counts[2] or 1)
    sizes = [environment.get(key) or "1" for key in ("NNODES", "NPROC_PER_NODE")]
    return int(sizes[0]) * int(sizes[1]) if all(each.isdecimal() for each in sizes) else None


def _plan(
    given: TrainerArguments,
    kind: str,
    command: TrainerCommand | None,
    world: Any,
    server: TrainerArguments | None = None,
) -> Imported:
    _rename(given)
    micro = given.number("per_device_train_batch_size") or SWIFT.micro_batch
    notes = list(_accumulate(given, micro, world if isinstance(world, int) else None))
    given.suppose(tuner_type=given.one("train_type", "sft_type") or "lora")  # base_args.py, and names of older releases
    if kind == "rlhf":
        given.values_.setdefault("rlhf_type", "dpo")  # rlhf_args.py
    dtype = str(given.get("torch_dtype")).removeprefix("torch.")
    habits = SWIFT
    if dtype in ("float16", "float32"):  # model_args.py: fp16 mixes with both
        given.suppose(**({} if given.on("bf16") else {"fp16": True}))
        habits = replace(SWIFT, states="fp32" if dtype == "float32" else "low")
    ranks, answer = given.number("sequence_parallel_size") or 1, given.number("max_completion_length")
    result = plan_of(given, habits, command)
    if ranks > 1:
        result = replace(result, plan=result.plan.with_values(cp=ranks, cp_method="ulysses", cp_balance="contiguous"))
    shape = result.plan.training
    if shape and kind == "rlhf" and given.get("rlhf_type") in ONLINE:
        longer = {**shape, "seq_len": shape["seq_len"] + (answer or USUAL_ANSWER)}
        result = replace(result, plan=result.plan.model_copy(update={"training": longer}), assumed=())
    words, variables = result.words, {} if command is None else command.environment
    if result.plan.model is not None and not has_tower(result.plan.model):
        spelt = {given.written.get(key, key) for key in OF_VISION}
        left = {word: value for word, value in words.unread.items() if word not in spelt}
        words = replace(words, used=(*words.used, *(word for word in words.unread if word in spelt)), unread=left)
    elif result.plan.model is not None:
        words += ReadWords((), {name: variables[name] for name in OF_PIXELS if variables.get(name)})
    result = replace(result, words=words, notes=(*result.notes, *notes), written_as="")
    if kind != "rlhf" or given.get("rlhf_type") != "grpo":
        return result
    texts = (shape["seq_len"], answer or USUAL_ANSWER) if shape and "seq_len" in shape else None
    return ImportedStep.of(result, side_of(lambda: rollout(given, micro, texts, server), given.used))


def _rename(given: TrainerArguments) -> None:
    """Values of ms-swift by the names that the Trainer and PEFT have for them."""
    own = given.get("model") or given.get("model_id_or_path") or given.get("model_type")  # the last two before 3.0
    named = str(own).replace("1half", "1.5") if own and own == given.get("model_type") else own
    given.suppose(model_name_or_path=named)  # its model_name is what the model calls itself
    targets = words_of(given.one("lora_target_modules") or ([] if "sft_type" not in given else ["DEFAULT"]))
    if {"DEFAULT", "AUTO"} & set(targets):
        others = [word for word in targets if word not in ("DEFAULT", "AUTO")]
        given.values_["lora_target_modules"] = [*USUAL_TARGETS, *others]
        given.supposed |= set() if "lora_target_modules" in given.written else {"lora_target_modules"}
    if given.told("tuner_backend") != "peft":
        given.leave("tuner_backend")
    bits = given.one("quant_bits") if given.one("quant_method") == "bnb" else None
    if bits in (4, 8):
        given.suppose(**{f"load_in_{bits}bit": True})
    else:
        given.leave("quant_method", "quant_bits")
    if given.get("optimizer") in ("multimodal", "lorap"):  # rates by part: AdamW
        given.suppose(optim="adamw_torch")
    if given.get("task_type") != "causal_lm":
        given.leave("task_type")
    fsdp = given.one("fsdp")
    if isinstance(fsdp, str) and fsdp.endswith(CONFIGS):
        config = load_beside(fsdp, given.source)
        given.suppose(fsdp_config=config.get("fsdp_config", {}))
        given.values_["fsdp"] = config.get("fsdp", "full_shard auto_wrap")
    elif fsdp == "fsdp2":
        given.values_["fsdp"] = "full_shard auto_wrap"
        given.suppose(fsdp_config={"activation_checkpointing": True})
    if not given.on("packing"):
        given.values_.pop("packing_length", None)


def _accumulate(given: TrainerArguments, micro: int, world: int | None) -> Iterator[str]:
    """Where accumulation is not given, steps are filled up (trainers/arguments.py)."""
    if given.one("gradient_accumulation_steps") is None:
        steps = max(1, -(-USUAL_BATCH // (micro * (world or 1))))
        given.suppose(gradient_accumulation_steps=steps)
        yield f"Accumulation is ms-swift's default, up to {USUAL_BATCH} sequences on {world or 1} ranks: {steps}."


def _kind(command: TrainerCommand) -> str:
    script = PurePath(command.script)
    if script.name == "swift":
        return command.loose[0] if command.loose else ""
    return script.stem.removeprefix("llm_") if script.suffix == ".py" else command.script.rpartition(".")[2]


def _trains(words: Sequence[str]) -> bool:
    command = split_command(words) if words else None
    if command is None:
        return False
    is_module = re.search(r"swift[./]cli[./](sft|pt|rlhf)(\.py)?$|(^|/)llm_sft\.py$", command.script) is not None
    return is_module or (PurePath(command.script).name == "swift" and _kind(command) in KINDS)


def _starts(words: Sequence[str]) -> bool:
    names = [PurePath(word).name for word in words]
    others = any(name in ("swift", "megatron") and after in OTHERS for name, after in pairwise(names))
    return others or _trains(words)


def _owns(data: Mapping[str, Any]) -> bool:
    is_core = any(key in data for key in ("tensor_model_parallel_size", "micro_batch_size", "global_batch_size"))
    return ("tuner_type" in data or "train_type" in data) and "model" in data and not is_core


READER = Reader(
    name="swift",
    description="ms-swift on the Trainer: swift sft, swift pt and swift rlhf, and their YAML",
    read=read,
    starts=_starts,
    owns=_owns,
    words=WORDS,
    has_dotted_flags=False,
    trains=_trains,
)
