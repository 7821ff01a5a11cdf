"""ms-swift's ``megatron sft`` and ``megatron pt``: names of Megatron-LM's arguments with other defaults and more.

Defaults are those of ``swift/megatron/arguments/megatron_args.py`` at modelscope/ms-swift 3602360.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar.architectures.catalogue import find_model
from simpar.errors import UserError
from simpar.frameworks.data_sets import pack_documents
from simpar.frameworks.megatron_arguments import Arguments, flags_of, renamed, with_layers
from simpar.frameworks.megatron_execution import execution_notes, with_loss
from simpar.frameworks.megatron_read import plan_of
from simpar.frameworks.megatron_words import MEGATRON_WORDS, OTHER_LOOP
from simpar.frameworks.overrides import command_of, is_config, load_beside, mapping
from simpar.frameworks.reader import Reader
from simpar.frameworks.target import Imported
from simpar.frameworks.trainer_towers import OF_TOWERS, frozen_parts, has_tower, word_of_tower
from simpar.frameworks.words import Assumed, WordTable, is_off

KINDS = ("sft", "pt", "rlhf")
DEFAULTS: Mapping[str, list[str]] = {
    "--use-distributed-optimizer": [], "--micro-batch-size": ["1"], "--global-batch-size": ["16"],
    "--recompute-granularity": ["selective"], "--attention-backend": ["flash"], "--cross-entropy-loss-fusion": [],
    "--data-parallel-sharding-strategy": ["optim_grads_params"], "--moe-token-dispatcher-type": ["alltoall"],
}  # fmt: skip
"""What ms-swift takes where nothing is said, and Megatron-LM something else."""
TUNERS = ("--tuner-type", "--train-type")
"""How much is trained, by the present name and by that of versions before 4."""
CONVERTED = ("--mcore-model", "--load")
"""Checkpoints in Megatron-LM's format, by the present name and by that of versions before 4."""
FREEZING = ("--freeze-vit", "--freeze-aligner")
"""Switches, on by default, that leave a tower and its projector as they are."""
TARGETS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"), "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"), "linear_fc2": ("down_proj",),
}  # fmt: skip
"""Products of adapters by Megatron-Core's modules."""
WORDS = MEGATRON_WORDS | WordTable(
    idle=(
        "dataset*", "val_dataset*", "split_dataset_ratio", "system", "model_author", "model_name", "model_type",
        "template*", "output_dir", "add_version", "merge_lora", "save_safetensors", "num_train_epochs", "max_epochs",
        "report_to", "swanlab*", "use_hf", "hub_token", "dataloader*", "loss_scale", "truncation_strategy", "streaming",
        "shuffle*", "strict", "lora_alpha", "use_rslora", "lora_bias", "mcore_model", "mcore_adapter",
        "ddp_timeout", "ddp_backend", "test_convert*", "bridge_backend", "check_model", "finetune", "padding_free",
        "freeze_vit", "freeze_aligner", "logging_steps", "eval_steps", "packing_num_proc", "cached_dataset",
        "enable_channel_loss", "train_dataloader_shuffle", "columns", "remove_unused_columns", "lazy_tokenize",
        "vit_lr", "aligner_lr", "torch_dtype", "agent_template", "response_prefix", "enable_dft_loss",
        "attn_impl", "add_non_thinking_prefix", "interleave_prob", "new_special_tokens", "ignore_args_error",
        "cached_val_dataset", "external_plugins", "use_ray", "model_kwargs",
        # of another loop, which other words ask for
        "advantage_estimator", "beta", "center_rewards*", "colocate_groups", "*desirable_weight", "epsilon*", "gkd_*",
        "gym_env", "use_gym_env", "importance_sampling_level", "lmbda", "loss_type", "max_turns",
        "multi_turn_scheduler", "num_labels", "overlong_filter", "rpo_alpha", "sft_alpha", "sleep_level",
        "steps_per_generation", "tau_*", "temperature", "teacher_kl_coef", "top_k", "top_p",
    ),
    deciding={
        **OF_TOWERS,
        "rlhf_type": OTHER_LOOP,
        "use_vllm": OTHER_LOOP,
        "vllm_*": OTHER_LOOP,
        "num_generations": OTHER_LOOP,
        **dict.fromkeys(("reward_funcs", "teacher_model*", "max_completion_length", "offload_*"), OTHER_LOOP),
        "task_type": "another head and loss than the next token's: time and memory",
        "freeze_llm": "what is trained: memory and time",
        "freeze_parameters*": "what is trained: memory and time",
        "trainable_parameters*": "what is trained: memory and time",
        "modules_to_save": "matrices that are trained whole beside adapters: memory",
        "target_regex": "which products have adapters: memory and time",
        "group_by_length": "how even sequences are: time",
        "vit_gradient_checkpointing": "what of the vision tower is recomputed: memory and time",
        "megatron_extra_kwargs": "further settings of Megatron-LM: memory and time",
        "quant_*": "matrices that are stored in fewer bits: memory and time",
    },
)  # fmt: skip


def read(text: str, name: str) -> Imported:
    """The plan of a command of ms-swift on Megatron-LM. Raises UserError naming file, argument and value."""
    pretrains = False  # a YAML is of sft or pt: of the more common
    if is_config(name):
        words = _of_config(mapping(text, name), name)
    else:
        words = command_of(text, name, _starts)
        pretrains = "pt" in words
        files = [word for word in words if is_config(word) and not word.startswith("-")][:1]
        words = [word for file in files for word in _of_config(load_beside(file, name), file)] + words
    given = _arguments(words, name)
    if given.values.get("--task-type") == ["causal_lm"]:
        given.text("--task-type")
    asked = given.path("--model") or _converted(given)
    model = find_model(asked) if asked else None
    result = plan_of(with_layers(given, model), model, dropout=0.0)
    result = replace(result, plan=with_loss(result.plan, given))
    notes = [*(note for note in result.notes if note != result.asks.get("model")), *execution_notes(given)]
    asks = dict(result.asks)
    if model is None:
        asks["model"] = f"{asked or 'The model'} is not a shipped model: give --model." if asked else "Give --model."
        notes.insert(0, asks["model"])
    values: dict[str, Any] = {**_tuning(given)}
    length = given.number("--packing-length") or given.number("--max-length")
    assumed: tuple[Assumed, ...] = ()
    if length:
        training = {**(result.plan.training or {}), "seq_len": length}
        if not given.has("--packing"):
            why = "examples are not packed: sequences are as long as they are, at most --max_length"
            assumed = (Assumed("seq_len", length, why, (max(length // 2, 1), max(length // 4, 1))),)
        else:
            data_sets = given.values.get("--dataset", []) if given.has("--dataset") else []
            training, of_data = pack_documents(training, data_sets)
            assumed = (of_data,)
        result = replace(result, plan=result.plan.model_copy(update={"training": training}))
    plan = result.plan.with_values(**values)
    told, own = given.words(), set(given.names.values())
    left = {word: value for word, value in told.unread.items() if word in own}
    told = replace(told, used=tuple(word for word in told.used if word in own), unread=left)
    if has_tower(plan.model):
        said = flags_of(words)
        are_trained = [is_off((said.get(flag) or ["true"])[0]) for flag in FREEZING]
        if "lora_rank" in values:
            told += word_of_tower(are_trained)
        else:
            plan = plan.with_values(**frozen_parts(are_trained))
    if result.expert_balance == "loss" and not pretrains:
        result = replace(result, expert_balance="tuned")
    return replace(result, plan=plan, words=told, notes=tuple(notes), asks=asks, assumed=assumed)


def _converted(given: Arguments) -> str | None:
    """The model of a checkpoint in Megatron-LM's format, as ms-swift names it: ``Qwen2.5-7B-Instruct-mcore``."""
    named = next((name for flag in CONVERTED if (name := given.path(flag)) and name.endswith("-mcore")), None)
    return None if named is None else named.removesuffix("-mcore")


def _of_config(data: Mapping[str, Any], source: str) -> list[str]:
    """The words that a YAML or JSON stands for: ``megatron sft FILE``; a mapping is one word in JSON.

    Raises UserError for a model that is a section, as other frameworks have it.
    """
    if isinstance(data.get("model"), dict):
        raise UserError(f"{source}: model is a section: allowed: a name, as YAML of ms-swift has it")
    words: list[str] = []
    for key, value in data.items():
        listed = value if isinstance(value, list) else [value]
        if value is not None:
            words += [
                f"--{key}",
                *(json.dumps(each, default=str) if isinstance(each, dict) else str(each) for each in listed),
            ]
    return words


def _arguments(words: Sequence[str], source: str) -> Arguments:
    """The arguments of a command by Megatron-LM's names, with ms-swift's defaults; switches have words there."""
    said = flags_of(words)
    off = {flag for flag, value in said.items() if value and is_off(value[0])}
    told = {flag: [] if value[:1] in (["true"], ["True"]) else value for flag, value in said.items() if flag not in off}
    precise = "--fp16" in told or "--bf16" in told or told.get("--torch-dtype", ["bfloat16"])[0] != "bfloat16"
    usual = {**DEFAULTS, **({} if precise else {"--bf16": []})}
    if told.get("--torch-dtype", [""])[0] == "float16":
        usual["--fp16"] = []
    values = {**{flag: value for flag, value in usual.items() if flag not in off}, **told}
    names = {
        flag: word.partition("=")[0] for word in words if (flag := word.partition("=")[0].replace("_", "-")) in values
    }
    given = Arguments(values, source, names=names)
    return renamed(given, {"--virtual-pipeline-model-parallel-size": "--num-virtual-stages-per-pipeline-rank"})


def _tuning(given: Arguments) -> dict[str, Any]:
    """Adapters: a PEFT run is never answered as full training. Raises UserError."""
    kind = next((text for flag in TUNERS if (text := given.text(flag))), "full")
    if kind == "full" and not given.has("--adapters"):
        return {}
    if kind not in ("lora", "full"):
        raise UserError(f"{given.source}: --tuner_type = {kind}: allowed: full, lora")
    targets = given.values.get("--target-modules", ["all-linear"]) if given.has("--target-modules") else ["all-linear"]
    unknown = [each for each in targets if each not in (*TARGETS, "all-linear")]
    if unknown:
        raise UserError(f"{given.source}: --target_modules = {unknown[0]}: allowed: all-linear, {', '.join(TARGETS)}")
    chosen = tuple(TARGETS) if "all-linear" in targets else tuple(targets)
    products = tuple(product for each in chosen for product in TARGETS[each])
    dropout = given.rate("--lora-dropout")
    return {
        "lora_rank": given.number("--lora-rank") or 8, "lora_targets": products,
        "lora_dropout": 0.05 if dropout is None else dropout,
    }  # fmt: skip


def _starts(words: Sequence[str]) -> bool:
    names = [PurePath(word).name for word in words]
    is_program = any(name == "megatron" and names[at + 1 : at + 2] in ([kind] for kind in KINDS)
                     for at, name in enumerate(names))  # fmt: skip
    return is_program or any("swift/cli/_megatron/" in word for word in words)


def _owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a file of arguments of ms-swift's on Megatron-LM."""
    own = {"tuner_type", "train_type", "mcore_model", "mcore_adapter", "rlhf_type"} & set(map(str, data))
    return bool(own) and bool(
        {"tensor_model_parallel_size", "micro_batch_size", "global_batch_size"} & set(map(str, data))
    )


READER = Reader(
    name="megatron-swift",
    description="ms-swift on Megatron-LM: megatron sft, megatron pt",
    read=read,
    starts=_starts,
    owns=_owns,
    words=WORDS,
)
