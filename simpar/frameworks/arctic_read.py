"""ArcticTraining back to a plan: its YAML, and commands of ``arctic_training`` with one.

Source: snowflakedb/ArcticTraining b28638e (``arctic_training/config``, ``model``, ``trainer``): transformers' models in
bf16 on DeepSpeed, with sequences shared by Ulysses (ALST), activations on the host and the MLP in tiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import command_of, is_config, load_beside, mapping
from simpar.frameworks.reader import Reader, why_refused
from simpar.frameworks.recipes import flat
from simpar.frameworks.target import Imported
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand
from simpar.frameworks.trainer_read import Adapters, Habits, plan_of
from simpar.frameworks.trainer_words import WORDS
from simpar.frameworks.words import ReadWords, WordTable

PROGRAM = "arctic_training"
TYPES, USUAL_TYPE, PREFERENCES = ("sft", "causal"), "sft", "dpo"
OF_TRAINER = {
    "model.name_or_path": "model_name_or_path", "model.dtype": "torch_dtype",
    "model.attn_implementation": "attn_implementation", "micro_batch_size": "per_device_train_batch_size",
    "model.disable_activation_checkpoint": "disable_gradient_checkpointing", "data.max_length": "max_length",
    "model.peft_config.r": "lora_r", "model.peft_config.lora_dropout": "lora_dropout",
    "model.peft_config.target_modules": "lora_target_modules",
    "model.peft_config.modules_to_save": "lora_modules_to_save", "data.always_max_length": "group_texts",
}  # fmt: skip
"""Its options, by the names that arguments of trainers have."""
OPTIMIZERS = {"": "adamw_apex_fused", "fused_adam": "adamw_apex_fused", "cpu_adam": "adamw_torch"}
"""Its optimizers by ``optimizer.type`` (``optimizer/*_factory.py``)."""
HABITS = Habits("arctic-training", precision="bf16", recompute=True, length=8192, states="low", attention="sdpa",
                micro_batch=1, adapters=Adapters(dropout=0.0))  # fmt: skip
LIGER = "liger"
KEPT, SENT = "deepspeed", "seq_parallel_communication_data_type"
LENGTHS = {"k": 1_000, "m": 1_000_000, "b": 1_000_000_000}


def read(text: str, name: str) -> Imported:
    """The plan in a config of ArcticTraining, or in a command with one. Raises UserError naming file and option."""
    if is_config(name):
        return _plan(mapping(text, name), name)
    words = command_of(text, name, _starts)
    return _plan(load_beside(next(filter(is_config, words)), name), name)


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of ArcticTraining."""
    model, sets = data.get("model"), data.get("data")
    named = isinstance(model, Mapping) and "name_or_path" in model
    return named and isinstance(sets, Mapping) and "sources" in sets


def _plan(data: Mapping[str, Any], name: str) -> Imported:
    if not owns(data):
        raise UserError(f"{name}: no config of ArcticTraining: it has model.name_or_path and data.sources")
    kind = str(data.get("type") or USUAL_TYPE)
    if kind not in TYPES:
        why = why_refused(kind) if kind == PREFERENCES else "others train something else than the next token"
        raise UserError(f"{name}: type = {kind}: allowed: {', '.join(TYPES)}; {why}")
    config = data.get(KEPT) or {}
    if not isinstance(config, dict):
        raise UserError(f"{name}: {KEPT} = {config!r}: allowed: a section")
    values = flat({key: value for key, value in data.items() if key != KEPT})
    named = {key: OF_TRAINER.get(key, key) for key in values}
    given = TrainerArguments(
        {named[key]: _number(value) if named[key] == "max_length" else value for key, value in values.items()}, name,
        {ours: theirs for theirs, ours in named.items()},
    )  # fmt: skip
    if config.get(SENT) == HABITS.precision:  # what is sent anyway
        config = {key: value for key, value in config.items() if key != SENT}
    given.suppose(deepspeed={"zero_optimization": {"stage": 0}, "bf16": {"enabled": True}, **config})
    _suppose(given, kind)
    ranks = given.number("sequence_parallel_size") or 1
    result = plan_of(given, HABITS, TrainerCommand((), PROGRAM))
    plan = result.plan
    if ranks > 1:
        plan = plan.with_values(cp=ranks, cp_method="ulysses", cp_balance="contiguous")
    if given.on("activation_checkpoint_cpu_offload"):
        plan = plan.with_values(offload_activations=1.0)
    words = given.words()
    used = {word for word in words.used if word not in result.words.used}
    left = {word: value for word, value in result.words.unread.items() if word not in used}
    told = ReadWords((*result.words.used, *used), left)
    return replace(result, plan=plan, words=told, written_as="")


def _suppose(given: TrainerArguments, kind: str) -> None:
    """Put in what follows from types of factories. Raises UserError."""
    if given.get("model.peft_config.peft_type") not in (None, "Lora", "LORA"):
        raise given.refused("model.peft_config.peft_type", "Lora")
    adapts = any(key.startswith("model.peft_config.") for key in given.values_) or "lora_r" in given
    given.suppose(use_peft=adapts)
    told = str(given.one("optimizer.type") or "")
    optimizer = OPTIMIZERS.get(told)
    if optimizer is None:
        given.leave("optimizer.type")
    given.suppose(optim=optimizer or OPTIMIZERS[""])
    if given.one("model.type") == LIGER:
        given.suppose(use_liger_kernel=True)
    if kind == "causal":  # texts are joined and cut
        given.suppose(group_texts=True)


def _number(value: Any) -> Any:
    """A number that may be written as 4_000_000 or 128k (``HumanInt``)."""
    text = str(value).replace("_", "").lower()
    if text[-1:] in LENGTHS and text[:-1].replace(".", "", 1).isdecimal():
        return int(float(text[:-1]) * LENGTHS[text[-1]])
    return int(text) if text.isdecimal() else value


def _starts(words: Sequence[str]) -> bool:
    return any(PurePath(word).name == PROGRAM for word in words[:2]) and any(map(is_config, words))


OWN_WORDS = WordTable(
    idle=(
        "type", "code", "skip_validation", "model.type", "model.save_name", "model.peft_config.*", "tokenizer*",
        "data.*", "logger*", "wandb*", "scheduler*", "optimizer.*", "epochs", "loss_log_interval", "train_log_*",
        "checkpoint*", "train_iters", "exit_iteration*", "min_iterations", "overfit_first_batch", "mem_profiler*",
        "kill_switch_path", "eval_*", "seed",
    ),
    deciding={
        "tiled_mlp_compute": "the MLP in pieces: memory",
        "optimizer.type": "states of other sizes: memory, and the time of the update",
        "expert_parallel_size": "where experts are: memory and time",
        "arctic_moe": "kernels and places of experts: memory and time",
        "enable_arctic_moe_custom_optimization": "kernels of experts: time",
        "enable_routing_replay": "routes that are kept: memory",
        "model.hf_config_kwargs*": "sizes of the model: memory and time",
        SENT: "bits of what is sent: time between devices",
    },
)  # fmt: skip
"""Its own options, beside those that arguments of trainers have."""

READER = Reader(
    name="arctic-training",
    description="ArcticTraining: its YAML, and commands of arctic_training with one",
    read=read,
    starts=_starts,
    owns=owns,
    words=WORDS | OWN_WORDS,
    has_dotted_flags=False,
    takes_files=True,
)
