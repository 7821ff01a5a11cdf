"""Readers of Hugging Face's Trainer and of what is built on it: TRL, LLaMA-Factory, Axolotl, Unsloth's scripts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import OF_ARGUMENTS, load_beside, mapping
from simpar.frameworks.reader import NOT_READ, Reader, trains_on_preferences, why_refused
from simpar.frameworks.recipes import flat
from simpar.frameworks.target import Imported
from simpar.frameworks.trainer_arguments import CONFIGS, TrainerArguments, TrainerCommand, commands_of, split_command
from simpar.frameworks.trainer_habits import (
    ALPACA_LORA,
    BY_SWITCH,
    EVERY,
    LLM_ADAPTERS,
    OF_TRLS_OPTIONS,
    SCRIPTS,
    SFT,
    TRANSFORMERS,
    TRL,
)
from simpar.frameworks.trainer_read import Adapters, Habits, plan_of
from simpar.frameworks.trainer_words import HEAD, WORDS
from simpar.frameworks.words import ReadWords, plain

TELLING = ("per_device_train_batch_size", "gradient_checkpointing", "model_max_length", "per_gpu_train_batch_size")
"""Arguments that a script has only if it is started as Hugging Face's Trainer is."""
BESIDE = (
    "gradient_accumulation_steps", "max_seq_length", "max_length", "learning_rate", "output_dir", "lora_r",
    "cutoff_len", "micro_batch_size", "block_size", "fsdp", "use_peft", "load_in_4bit", "num_train_epochs",
)  # fmt: skip
"""Arguments of its scripts that tell beside the name of a model."""
NAMES = ("model_name_or_path", "base_model", "model_name", "model_id")
OF_MEGATRON = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
"""Arguments of Megatron-LM and its forks, whose scripts may have a trainer's name (``finetune.py``)."""
OF_SFT = ("packing", "dataset_text_field", "completion_only_loss", "assistant_only_loss", "use_peft", "max_length",
          "dataset_mixer", "dataset_mixture", "dataset_name")  # fmt: skip
OF_OTHERS = ("max_length", "dataset_name")
"""Those of them that other scripts have."""
KEEPS_SECTIONS = ("gradient_checkpointing_kwargs", "liger_kernel_config", "deepspeed", "model_init_kwargs")
"""Options whose value is a mapping."""
OF_ADAPTERS = "lora_config"
"""The flag of scripts that names a file with PEFT's options."""
OF_PREFERENCES = ("rl", "ref_model", "gamma_beta_ratio", "reward_funcs", "num_generations", "loss_type")
"""Options that only trainers on preferences and rewards have, but for some of their losses."""
OF_GENERATION = ("reward_funcs", "num_generations")
"""Those of trainers that generate."""
PREFERENCE_LOSSES = ("sigmoid", "hinge", "ipo", "simpo", "dpo", "orpo", "cpo", "kto", "kto_pair", "bco_pair", "robust",
                     "apo_zero", "apo_down", "sppo_hard", "exo_pair", "nca_pair", "grpo", "dr_grpo", "bnpo", "dapo",
                     "dpo_norm")  # fmt: skip
OF_CLASSES = re.compile(
    r"run_(flax_)?(glue|swag|ner|pos|qa|squad|xnli|race|hans|cola|mnli|multiple_choice)(_\w+)?\.py"
    r"|\w*(classif|multiple_choice|question_answering)\w*\.py",
    re.IGNORECASE,
)
"""Scripts whose model has a head of classes (transformers, ``examples/pytorch``, and those named after them)."""
OF_LATER_STEPS = re.compile(r"step_?[23]\b|step_?[23]_|(dpo|reward_model|rlhf)_finetuning")
"""Folders of DeepSpeed-Chat's steps after supervised fine-tuning."""
OF_TRAINING = (
    "do_train",
    "per_device_train_batch_size",
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "train_file",
)
"""Arguments of scripts that train, beside ``do_eval`` too."""
USES = frozenset(
    ("infer", "inference", "eval", "evaluate", "evaluation", "generate", "generation", "predict", "chat", "demo",
     "serve", "server", "deploy", "merge", "convert", "export", "quantize", "quant", "gptq", "awq", "tokenize",
     "preprocess", "prepare", "download", "upload", "push", "benchmark")
)  # fmt: skip
"""Words of the name of a script that uses, converts or prepares something."""
TRL_STAGES = ("sft",)
SERVES = ("vllm-serve", "vllm_serve")
"""Those of TRL that start an engine of generation, and train nothing."""
OF_MEGATRON_CORE = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size", "use_mca",
)  # fmt: skip
"""Options of LLaMA-Factory that only its trainer on Megatron-Core has (``hparams/training_args.py``)."""
FACTORY_TRAINS = ("stage", "dataset", "train_dataset", "output_dir", "cutoff_len", "gradient_accumulation_steps",
                  "micro_batch_size", "global_batch_size", "deepspeed", "bf16", "fp16")  # fmt: skip
"""Options of LLaMA-Factory of which those of its inference, merges and exports have none."""
FACTORY_STAGES = ("sft", "pt", "None")
OTHER_COMMANDS = ("dpo", "rm", "api", "chat", "eval", "export", "webchat", "webui", "merge", "help", "env", "version")
"""Commands of ``llamafactory-cli`` that train on something else than the next token, or not at all."""
OF_AXOLOTL = ("preprocess", "inference", "merge-lora", "merge-sharded-fsdp-weights", "evaluate", "quantize", "lm-eval",
              "fetch", "vllm-serve", "delinearize-llama4", "config-schema", "agent-docs")  # fmt: skip
"""Commands of Axolotl (``cli/main.py``) that train nothing."""
UNTRAINED = "preferences and rewards are not modelled, and others train nothing"

LLAMA_FACTORY = Habits(
    "llama-factory", recompute=True, length=2048, states="fp32", attention="sdpa",
    adapters=Adapters(targets=EVERY, precision="bf16", dropout=0.0),
    of_towers=("freeze_vision_tower", "freeze_multi_modal_projector"),  # hparams/finetuning_args.py
)  # fmt: skip
"""Checkpoints, adapts all projections, and widens what is trained (``hparams``, ``model/adapter.py``); products beside
adapters are in the dtype of the checkpoint (``model/patcher.py``)."""
FACTORY_1 = {
    "model": "model", "peft_config.name": "finetuning_type", "peft_config.r": "lora_rank",
    "peft_config.target_modules": "lora_target", "peft_config.freeze_trainable_layers": "freeze_trainable_layers",
    "peft_config.modules_to_save": "modules_to_save", "peft_config.use_dora": "use_dora",
    "quant_config.quantization_bit": "quantization_bit", "dist_config.config_file": "deepspeed",
    "dist_config.name": "fsdp",
    "enable_activation_checkpointing": "gradient_checkpointing",
}  # fmt: skip
"""Options of LLaMA-Factory 1 (``v1/config``) by their earlier names."""
USUAL_1 = {"finetuning_type": "full", "bf16": True, "micro_batch_size": 1}
AXOLOTL = Habits(
    "axolotl", precision="bf16", length=512, states="low", attention="sdpa", adapters=Adapters(dropout=0.0)
)
"""bf16 where nothing is said (``bf16: auto``, ``schemas/config.py``), and weights in it (``loaders/model.py``)."""
UNSLOTH = Habits("unsloth", precision="bf16", recompute=True, length=2048, states="low", attention="flash2",
                 adapters=Adapters(16, EVERY, dropout=0.0))  # fmt: skip
"""``unsloth-cli.py``: adapters of all projections, checkpointing to the host."""


def flat_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name: sections become dotted names, but for options whose value is a mapping."""
    kept = {key: data[key] for key in KEEPS_SECTIONS if isinstance(data.get(key), dict)}
    return {**flat({key: value for key, value in data.items() if key not in kept}), **kept}


def _reading(
    habits: Habits,
    is_own: Callable[[TrainerCommand], bool],
    owns: Callable[[Mapping[str, Any]], bool],
    check: Callable[[TrainerArguments, TrainerCommand | None], None],
    trains: Callable[[TrainerCommand], bool],
) -> Callable[[str, str], Imported]:
    """A reader's ``read``: of a file, or of the first command in a text that is its own."""

    def read(text: str, name: str) -> Imported:
        given, command = arguments_in(text, name, habits.name, is_own, owns, trains)
        check(given, command)
        _check_loss(given)
        if command is None:
            return plan_of(given, _habits_of(given, habits))
        result = plan_of(given, _habits_of(given, habits, command.script), command)
        if OF_CLASSES.fullmatch(PurePath(command.script).name):
            result = replace(result, words=result.words + ReadWords((), {HEAD: True}))
        return replace(result, written_as="") if len(command.configs) > 1 else result

    return read


def arguments_in(
    text: str,
    name: str,
    trainer: str,
    is_own: Callable[[TrainerCommand], bool],
    owns: Callable[[Mapping[str, Any]], bool],
    trains: Callable[[TrainerCommand], bool] = lambda _: True,
) -> tuple[TrainerArguments, TrainerCommand | None]:
    """The arguments of a file, or of the first command in a text that is a trainer's own, with the files it names.

    Of those, one that ``trains`` goes before others. Raises UserError where no command is one.
    """
    if name.endswith(CONFIGS):
        return _arguments(flat_options(mapping(text, name)), name), None
    commands = sorted(commands_of(text, name), key=lambda each: is_own(each) and not trains(each))
    command = next((each for each in commands if is_own(each)), None) or next(
        (each for each in commands if any(owns(load_beside(file, name)) for file in each.configs)), None
    )
    if command is None:
        raise UserError(f"{name}: no command of {trainer}, such as one with --per_device_train_batch_size 4")
    values: dict[str, Any] = {}
    for config in command.configs:
        values |= flat_options(load_beside(config, name))
    of_adapters = _of_adapters(command, name)
    given = _arguments({**values, **of_adapters, **command.flags}, name, command.written)
    given.variables = command.environment
    if of_adapters:
        given.get(OF_ADAPTERS)
    return given, command


def _of_adapters(command: TrainerCommand, name: str) -> dict[str, Any]:
    """What a file says that a command names for its adapters alone. Raises UserError."""
    file = command.flags.get(OF_ADAPTERS)
    return flat_options(load_beside(file, name)) if isinstance(file, str) and file.endswith(CONFIGS) else {}


def _check_loss(given: TrainerArguments) -> None:
    """Refuse configs whose words only trainers of preferences and rewards have. Raises UserError."""
    for key in OF_PREFERENCES:
        value = given.told(key)
        is_other = key == "loss_type" and str(value).lower() not in PREFERENCE_LOSSES
        if value not in (None, False, "", 0) and not is_other:
            reason = NOT_READ if key in OF_GENERATION else UNTRAINED.partition(",")[0]
            raise given.refused(key, f"none: {reason}")


def _arguments(values: Mapping[str, Any], source: str, written: Mapping[str, str] | None = None) -> TrainerArguments:
    """The arguments by the names that are asked for."""
    if not any(key in values for key in ("model_class", "dist_config.name", "peft_config.name", "quant_config.name")):
        return TrainerArguments(values, source, written)
    named = {FACTORY_1.get(key, key): value for key, value in values.items()}
    if named.get("fsdp") == "fsdp2":
        named["fsdp"] = "full_shard auto_wrap"
    else:
        named["dist_config.name"] = named.pop("fsdp", None)
    spelt = {ours: theirs for theirs, ours in FACTORY_1.items() if theirs in values}
    result = TrainerArguments(named, source, {**spelt, **(written or {})})
    result.suppose(**USUAL_1)
    return result


def _habits_of(given: TrainerArguments, habits: Habits, script: str = "") -> Habits:
    """A script of the Trainer with arguments of TRL's SFTConfig has its habits, and some have their own."""
    if habits is TRL and script and not _is_of_trl(script):  # which is given a file of options that TRL has, too
        of_script = _habits_of(given, TRANSFORMERS, script)
        return OF_TRLS_OPTIONS if of_script is SFT else of_script
    if habits is TRANSFORMERS and PurePath(script).name == "finetune.py" and "base_model" in given:
        given.suppose(batch_size=128)
        return LLM_ADAPTERS if given.get("adapter_name") else ALPACA_LORA
    if habits is TRANSFORMERS and (own := SCRIPTS.get(PurePath(script).name)) is not None:
        return own
    if habits is TRANSFORMERS and (switch := next((key for key in BY_SWITCH if given.on(key)), None)):
        given.leave("low_rank_training")  # its other parameters are trained as well
        return BY_SWITCH[switch]
    return SFT if habits is TRANSFORMERS and _has_words_of_sft(given, script) else habits


def _has_words_of_sft(given: TrainerArguments, script: str) -> bool:
    """Whether arguments are TRL's: by words of its own, or by its script's name beside those that others have, too.

    transformers' ``run_clm.py`` and its kin have data sets by name, and none of TRL's defaults.
    """
    name = PurePath(script).name
    telling = [key for key in OF_SFT if key in given]
    return bool(set(telling) - set(OF_OTHERS)) or (bool(telling) and (not name or "sft" in name.lower()))


def _check_script(given: TrainerArguments, command: TrainerCommand | None) -> None:
    """Refuse scripts that train on preferences or rewards, by their names."""
    script = PurePath(command.script).name if command is not None else ""
    if given.on("do_predict") or (given.on("do_eval") and not any(key in given for key in OF_TRAINING)):
        _check_training(given)
    if trains_on_preferences(script):
        raise UserError(f"{given.source}: {script}: {why_refused(script)}; allowed: other scripts")
    if given.get("deepspeed") is True and "zero_stage" in given and given.get("dtype") is None:
        given.suppose(fp16=True, per_device_train_batch_size=16, max_seq_len=512, lora_dropout=0.0)
        _check_chat(given, script)


def _check_chat(given: TrainerArguments, script: str) -> None:
    """Refuse the second step of DeepSpeed-Chat (rewards, DPO), whose script has the name of the first one's."""
    file, folder = given.source, str(given.get("output_dir") or "")
    later = OF_LATER_STEPS.search(file) or OF_LATER_STEPS.search(folder)
    told = later[0] if later else "--num_padding_at_beginning" * ("num_padding_at_beginning" in given)
    if told:  # the argument says where a reward's sequences begin
        raise UserError(
            f"{file}: {script} ({told}): {why_refused('reward')}; allowed: the first step of DeepSpeed-Chat"
        )


def _unchecked(given: TrainerArguments, command: TrainerCommand | None) -> None:
    """Nothing to refuse."""


def _check_trl(given: TrainerArguments, command: TrainerCommand | None) -> None:
    stage = stage_of_trl(command)
    if stage and stage not in TRL_STAGES:
        raise UserError(f"{given.source}: trl {stage}: allowed: trl sft; {why_refused(stage)}")
    _check_script(given, command)
    if stage is not None and not given.on("use_peft"):  # without it all others of adapters have no effect
        given.suppose(finetuning_type="full")
    elif given.one("use_peft") is None:
        given.leave("lora_r")  # of a script's own, or of TRL's, whose switch is off


def stage_of_trl(command: TrainerCommand | None) -> str | None:
    """What a command of TRL does ("sft", "grpo", ...), "" where it does not say; None for another program's."""
    if command is None:
        return None
    if command.script.startswith("trl.scripts."):
        return command.script.rpartition(".")[2]
    if _is_script_of_trl(command.script):
        return PurePath(command.script).stem
    return next(iter(command.loose), "") if PurePath(command.script).name == "trl" else None


def _check_training(given: TrainerArguments) -> None:
    """Refuse a run that only evaluates or predicts."""
    if not given.on("do_train"):
        raise UserError(f"{given.source}: do_train is off: nothing is trained; allowed: true")


def _check_factory(given: TrainerArguments, command: TrainerCommand | None) -> None:
    if command is not None and (stage := next(iter(command.loose), "train")) in OTHER_COMMANDS:
        raise UserError(f"{given.source}: llamafactory-cli {stage}: allowed: train, sft; {UNTRAINED}")
    if (
        given.on("do_predict")
        or given.on("do_eval")
        or not any(key in given for key in (*OF_TRAINING, *FACTORY_TRAINS))
    ):
        _check_training(given)
    if axes := [key for key in OF_MEGATRON_CORE if given.get(key) is not None]:
        raise UserError(
            f"{given.source}: {axes[0]}: LLaMA-Factory on Megatron-Core (USE_MCA) is not read; allowed: its trainers"
        )
    stage = str(given.one("stage"))
    if stage not in FACTORY_STAGES:
        raise given.refused("stage", "sft, pt; preferences and rewards are not modelled")
    given.suppose(finetuning_type="lora", packing=stage == "pt" or None)  # hparams/finetuning_args.py, parser.py


def _check_unsloth(given: TrainerArguments, _: TrainerCommand | None) -> None:
    if given.one("r", "lora_r") is None:
        given.suppose(r=UNSLOTH.adapters.rank)
    given.suppose(use_gradient_checkpointing="unsloth")


def _is_trl(command: TrainerCommand) -> bool:
    return stage_of_trl(command) is not None and stage_of_trl(command) not in SERVES


def _is_of_trl(script: str) -> bool:
    """Whether a program or script is TRL's."""
    return PurePath(script).name == "trl" or script.startswith("trl.scripts.") or _is_script_of_trl(script)


def _is_script_of_trl(script: str) -> bool:
    """Whether a path is one of TRL's own scripts."""
    return PurePath(script).parent.parts[-2:] == ("trl", "scripts")


def _is_factory(command: TrainerCommand) -> bool:
    program = PurePath(command.script).name
    return (
        program == "llamafactory-cli"
        or command.script.startswith("llamafactory.")
        or ("finetuning_type" in command.flags and not _is_trl(command))
    )


def _stage_of_axolotl(command: TrainerCommand) -> str:
    """What a command of Axolotl does: ``train`` where it does not say."""
    script = command.script
    told = script.rpartition(".")[2] if script.startswith("axolotl.cli.") else next(iter(command.loose), "")
    return (
        told.replace("_", "-") if script.startswith("axolotl.cli.") or PurePath(script).name == "axolotl" else "train"
    )


def _check_axolotl(given: TrainerArguments, command: TrainerCommand | None) -> None:
    """Accumulate up to ``batch_size``, the sequences of one rank (``utils/config/__init__.py``).

    Refuse commands that train nothing. Raises UserError.
    """
    if command is not None and not _trains_axolotl(command):
        raise UserError(
            f"{given.source}: axolotl {_stage_of_axolotl(command)}: it trains nothing; allowed: axolotl train"
        )
    given.suppose(adapter="full")  # whatever is said of adapters beside it
    batch, micro = given.number("batch_size"), given.number("micro_batch_size")
    if batch and micro and batch < micro:
        raise given.refused("batch_size", f"at least micro_batch_size, {micro}: sequences of a rank")
    if batch and micro:
        given.suppose(gradient_accumulation_steps=batch // micro)


def _is_axolotl(command: TrainerCommand) -> bool:
    return PurePath(command.script).name == "axolotl" or command.script.startswith("axolotl.cli")


def _trains_axolotl(command: TrainerCommand) -> bool:
    return _stage_of_axolotl(command) not in OF_AXOLOTL


def _trains_factory(command: TrainerCommand) -> bool:
    return next(iter(command.loose), "train") not in OTHER_COMMANDS


def _is_unsloth(command: TrainerCommand) -> bool:
    return "unsloth" in PurePath(command.script).name


def _is_trainers(command: TrainerCommand) -> bool:
    flags = set(command.flags)
    if "swift" in command.script or "megatron" in command.script.lower() or _only_uses(command):
        return False
    if any(key in flags for key in OF_MEGATRON) and not any(key in flags for key in (*NAMES[:2], TELLING[0])):
        return False
    is_known = PurePath(command.script).name in SCRIPTS or any(key in flags for key in BESIDE)
    return any(key in flags for key in TELLING) or (any(key in flags for key in NAMES) and is_known)


def _only_uses(command: TrainerCommand) -> bool:
    """Whether a script is one that uses or converts a model, by its name, and has no argument of training."""
    name = PurePath(command.script).name.lower()
    return not USES.isdisjoint(re.split(r"[^a-z]+", name)) and not any(key in command.flags for key in OF_TRAINING)


def starts_where(is_own: Callable[[TrainerCommand], bool]) -> Callable[[Sequence[str]], bool]:
    """A reader's ``starts``: whether the words of a command are such a one."""

    def starts(words: Sequence[str]) -> bool:
        command = split_command(words) if words else None
        return command is not None and is_own(command)

    return starts


def _config(words: Sequence[str]) -> str | None:
    """The file of arguments that a command names, if all that decides is in it."""
    command = split_command(words)
    if (
        command is None
        or len(command.configs) != 1
        or set(command.flags) - {plain(flag) for flag in OF_ARGUMENTS}
        or command.launched_by == "accelerate"
    ):
        return None
    return command.configs[0]


def _owns(*telling: str, names: Sequence[str] = ()) -> Callable[[Mapping[str, Any]], bool]:
    return lambda data: any(key in data for key in telling) and (not names or any(key in data for key in names))


def _reader(
    habits: Habits,
    description: str,
    is_own: Callable[[TrainerCommand], bool],
    owns: Callable[[Mapping[str, Any]], bool],
    check: Callable[[TrainerArguments, TrainerCommand | None], None] = _unchecked,
    trains: Callable[[TrainerCommand], bool] = lambda _: True,
) -> Reader:

    def is_training(words: Sequence[str]) -> bool:
        return (command := split_command(words)) is None or trains(command)

    return Reader(
        name=habits.name,
        description=description,
        read=_reading(habits, is_own, owns, check, trains),
        trains=is_training,
        takes_files=True,
        starts=starts_where(is_own),
        config=lambda words: _config(words) if is_training(words) else None,
        owns=owns,
        words=WORDS,
        written_as="" if habits is UNSLOTH else habits.name,
        has_dotted_flags=False,
    )


TRANSFORMERS_READER = _reader(
    TRANSFORMERS,
    "Hugging Face's Trainer: arguments of a script, as words, YAML or JSON",
    _is_trainers,
    lambda data: _owns(*TELLING)(data) and "tokenizer_class" not in data,  # which has lengths, too
    _check_script,
)
TRL_READER = _reader(TRL, "TRL: trl sft and its YAML", _is_trl, _owns(*OF_SFT, names=NAMES), _check_trl)
LLAMA_FACTORY_READER = _reader(
    LLAMA_FACTORY, "LLaMA-Factory: llamafactory-cli train and its YAML", _is_factory,
    _owns("finetuning_type", "cutoff_len"), _check_factory, _trains_factory,
)  # fmt: skip
AXOLOTL_READER = _reader(
    AXOLOTL, "Axolotl: its YAML", _is_axolotl,
    _owns("sequence_len", "micro_batch_size", "adapter", "sample_packing", names=("base_model",)), _check_axolotl,
    _trains_axolotl,
)  # fmt: skip
UNSLOTH_READER = _reader(UNSLOTH, "Unsloth: arguments of unsloth-cli.py", _is_unsloth, lambda _: False, _check_unsloth)
