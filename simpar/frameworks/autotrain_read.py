"""AutoTrain back to a plan: the YAML of ``autotrain --config``, and commands of ``autotrain llm``.

Source: huggingface/autotrain-advanced b5c98fb (``parser.py``, ``commands.py``, ``trainers/clm``): it starts Accelerate
on all devices of the machine, and trains by TRL's SFTTrainer or by transformers' Trainer on texts that are joined and
cut into blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import command_of, is_config, load_beside, mapping
from simpar.frameworks.reader import SPAWNS, Reader, why_refused
from simpar.frameworks.target import Imported
from simpar.frameworks.trainer_arguments import TrainerArguments, split_command
from simpar.frameworks.trainer_read import Adapters, Habits, plan_of
from simpar.frameworks.trainer_words import WORDS
from simpar.frameworks.words import WordTable
from simpar.plan.choices.tuning import Tuning

PROGRAM = "autotrain"
STAGES = ("sft", "default", "generic")
"""What of ``trainer`` (``task: llm-STAGE``) trains on the next token."""
TASKS = ("llm", "lm_training", *(f"llm-{stage}" for stage in ("sft", "generic")))
OF_TRAINER = {
    "batch_size": "per_device_train_batch_size", "train_batch_size": "per_device_train_batch_size",
    "gradient_accumulation": "gradient_accumulation_steps", "optimizer": "optim", "peft": "use_peft",
    "target_modules": "lora_target_modules", "unsloth": "use_unsloth", "disable_gc": "disable_gradient_checkpointing",
}  # fmt: skip
"""Its parameters, by the names that arguments of trainers have."""
BITS = {"int4": "load_in_4bit", "int8": "load_in_8bit"}
"""How frozen weights are loaded, by ``quantization``, which has no effect where there are no adapters."""
USUAL_BITS, USUAL_BLOCK, USUAL_LENGTH, USUAL_STEPS = "int4", 1024, 2048, 4
"""``quantization``, ``block_size``, ``model_max_length`` and ``gradient_accumulation`` where nothing is said."""
HABITS = Habits(
    "autotrain", recompute=True, states="fp32", attention="sdpa", micro_batch=2,
    adapters=Adapters(16, Tuning().lora_targets, frozen="fp32", dropout=0.05),
)  # fmt: skip
"""``trainers/clm/params.py``; weights are loaded as transformers 4.48 does where nothing is said, in fp32."""
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3},
}  # fmt: skip
"""What the words say that it gives Accelerate for ``distributed_backend: deepspeed``."""
BACKENDS = ("ddp", "deepspeed")
OF_PREFERENCES = ("max_prompt_length", "max_completion_length", "model_ref", "dpo_beta")
"""Parameters without effect on other losses than those of preferences."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of AutoTrain, or in a command of it. Raises UserError naming file, option and value."""
    values, written = (_of_config(mapping(text, name), name), {}) if is_config(name) else _of_command(text, name)
    spelt = {OF_TRAINER.get(key, key): told for key, told in {**{key: key for key in values}, **written}.items()}
    spelt |= {"model": "base_model"} if is_config(name) else {}
    given = TrainerArguments({OF_TRAINER.get(key, key): value for key, value in values.items()}, name, spelt)
    _check_stage(given)
    _check_backend(given)
    _suppose(given)
    return replace(plan_of(given, HABITS), written_as="")


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of AutoTrain."""
    return {"task", "base_model"} <= set(data) and ("params" in data or "backend" in data)


def _of_config(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The parameters of a config by their own names, as ``parser.py`` collects them. Raises UserError."""
    if not owns(data):
        raise UserError(f"{name}: no config of AutoTrain: it has task, base_model and params")
    task = str(data["task"])
    stage = task.partition("-")[2]
    if task not in TASKS and task.startswith("llm-"):
        raise UserError(f"{name}: task = {task}: allowed: {', '.join(TASKS)}; {why_refused(stage)}")
    if task not in TASKS:
        raise UserError(f"{name}: task = {task}: allowed: {', '.join(TASKS)}; others are not modelled")
    params, sets = data.get("params") or {}, data.get("data") or {}
    if not isinstance(params, dict):
        raise UserError(f"{name}: params = {params!r}: allowed: a section")
    named = {"dataset_name": sets["path"]} if isinstance(sets, dict) and "path" in sets else {}
    return {"model": data["base_model"], **({"trainer": stage} if stage else {}), **named, **params}


def _of_command(text: str, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The parameters of the first command, or of the config that it names, and how they are spelt. Raises UserError."""
    command = split_command(command_of(text, name, _starts, _trains))
    if command is None or not (command.configs or command.loose[:1] == ("llm",)):
        raise UserError(f"{name}: no command of autotrain that trains: allowed: autotrain llm, autotrain --config FILE")
    if command.configs:
        return _of_config(load_beside(command.configs[0], name), command.configs[0]), {}
    return {key: value for key, value in command.flags.items() if value is not None}, dict(command.written)


def _check_stage(given: TrainerArguments) -> None:
    """Refuse training on preferences and rewards. Raises UserError."""
    stage = given.one("trainer")
    if stage is not None and stage not in STAGES:
        raise given.refused("trainer", f"{', '.join(STAGES[:2])}; {why_refused(str(stage))}")
    for word in OF_PREFERENCES:
        given.told(word)


def _check_backend(given: TrainerArguments) -> None:
    """Put in what shards the states. Raises UserError."""
    backend = given.one("distributed_backend")
    if backend not in (None, *BACKENDS):
        raise given.refused("distributed_backend", ", ".join(BACKENDS))
    if backend == "deepspeed":
        given.suppose(deepspeed=DEEPSPEED)


def _suppose(given: TrainerArguments) -> None:
    """Put in what AutoTrain makes of its parameters: bits, blocks and accumulation. Raises UserError."""
    bits = given.one("quantization") if "quantization" in given else USUAL_BITS
    if bits not in (None, "none", *BITS):
        raise given.refused("quantization", f"{', '.join(BITS)}, null")
    if given.on("use_peft") and bits in BITS:
        given.suppose(**{BITS[str(bits)]: True})
    if isinstance(given.values_.get("block_size"), list):
        raise given.refused("block_size", "a number")
    most = given.number("model_max_length") or USUAL_LENGTH
    given.values_["block_size"] = min(given.number("block_size") or USUAL_BLOCK, most)
    given.values_.pop("model_max_length", None)
    given.suppose(gradient_accumulation_steps=USUAL_STEPS, group_texts=True)


def _starts(words: Sequence[str]) -> bool:
    return bool(words) and words[0].rpartition("/")[2] == PROGRAM


def _trains(words: Sequence[str]) -> bool:
    return "llm" in words or "--config" in words


OWN_WORDS = WordTable(
    idle=("padding", "train", "deploy", "inference", "backend", "log", "add_eos_token", "username", "token",
          "merge_adapter", "valid_split", "quantization"),
    deciding={"unsloth": "kernels of Unsloth, and activations that wait on the host: time and memory"},
)  # fmt: skip
"""Its own parameters, beside those that arguments of trainers have."""

READER = Reader(
    name="autotrain",
    description="AutoTrain: the YAML of autotrain --config, and commands of autotrain llm",
    read=read,
    starts=_starts,
    trains=_trains,
    owns=owns,
    words=OWN_WORDS | WORDS,
    has_dotted_flags=False,
    devices=SPAWNS,
    takes_files=True,
)
