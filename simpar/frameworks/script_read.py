"""Scripts and notebooks that write the arguments of Hugging Face's trainers in their code, and commands of them."""

from collections.abc import Sequence
from dataclasses import replace

from simpar.errors import UserError
from simpar.frameworks.overrides import text_beside
from simpar.frameworks.reader import ONE_PROCESS, Reader, why_refused
from simpar.frameworks.script_branches import OF_BRANCHES
from simpar.frameworks.script_code import OTHERS, CodeArguments, arguments_of_code, code_of_notebook, has_trainer
from simpar.frameworks.script_starts import OF_STARTS, Starts
from simpar.frameworks.script_statements import IN_CODE
from simpar.frameworks.target import Imported
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand, commands_of, split_command
from simpar.frameworks.trainer_habits import SFT, TRANSFORMERS
from simpar.frameworks.trainer_read import Habits, plan_of
from simpar.frameworks.trainer_readers import UNSLOTH
from simpar.frameworks.trainer_words import WORDS
from simpar.frameworks.words import ReadWords, WordTable, plain

DECIDES = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "model_name_or_path", "max_length", "max_seq_length",
    "lora_r", "r", "load_in_4bit", "load_in_8bit", "gradient_checkpointing", "use_gradient_checkpointing", "packing",
    "lora_target_modules", "target_modules", "optim", "torch_dtype", "dtype",
)  # fmt: skip
"""Arguments without which there is no plan."""
OF_2023 = {"recompute": "TrainingArguments do not checkpoint unless told to; TRL of 2023 did beside 4 and 8 bits"}
NOTEBOOK = ".ipynb"
OF_PEFT = {"lora_r": 8, "lora_dropout": 0.0}
"""What LoraConfig is where its call says nothing (peft, ``tuners/lora/config.py``)."""
_PLACED = "{'':"
"""How a device_map begins that puts a whole model on the device of its process."""
USUAL_LENGTH = 1024
"""Tokens of a sequence that SFTTrainer cuts where nothing is said (sft_config.py; earlier at most the tokenizer's)."""


def read(text: str, name: str) -> Imported:
    """The plan in a script's code, in a notebook's, or in a command that starts such a script. Raises UserError."""
    if name.endswith((".py", NOTEBOOK)):
        return _plan(text, name, None)
    command = next((each for each in commands_of(text, name) if _code(each, name) is not None), None)
    code = None if command is None else _code(command, name)
    if command is None or code is None:
        raise UserError(
            f"{name}: no command of a script that calls a trainer with its arguments, such as SFTConfig(...)"
        )
    return _plan(code[1], code[0], command)


def _code(command: TrainerCommand, source: str) -> tuple[str, str] | None:
    """(Path, text) of the script of a command that is here and calls a trainer."""
    beside = text_beside(command.script, source) if command.script.endswith(".py") else None
    return beside if beside is not None and has_trainer(beside[1]) else None


def _plan(text: str, name: str, command: TrainerCommand | None) -> Imported:
    flags = {} if command is None else dict(command.flags)
    code = arguments_of_code(code_of_notebook(text, name) if name.endswith(NOTEBOOK) else text, name, flags)
    if OTHERS.match(code.trainer):
        kind = code.trainer.removesuffix("Trainer").removesuffix("Config")
        raise UserError(f"{name}: {code.trainer}: {why_refused(kind.lower())}; allowed: SFTTrainer, Trainer")
    if missing := next((key for key in DECIDES if key in code.untold), None):
        raise _untold(code, missing, name)
    if other := next(iter(code.does.adapters), None):
        raise UserError(
            f"{name}:{code.does.adapters[other]}: {other}: adapters whose kind is not modelled, or whose rank is not "
            "in the code; allowed: LoraConfig(r=...), or none"
        )
    own = {key: command.written[key] for key in flags if code.parsed.get(key)} if command is not None else {}
    flags = {key: value for key, value in flags.items() if key not in own}
    given = TrainerArguments({**code.values, **flags}, name, None if command is None else command.written)
    if "LoraConfig" in code.classes and not any(key.startswith("**") for key in code.untold):
        given.suppose(**{key: value for key, value in OF_PEFT.items() if key not in code.untold})
    result = plan_of(given, _habits(given, code), command)
    untold = {key: text for key, text in code.untold.items() if key not in flags and not text.startswith(_PLACED)}
    words = ReadWords(tuple(own.values()), {**untold, **code.does.words, **code.starts.words, **code.conditions})
    defaults = f"{name} is read as started without arguments (simpar check -- python {name} ARGUMENTS)."
    notes = (*result.notes, *([defaults] if command is None and any(code.parsed.values()) else []))
    result = replace(result, words=result.words + words, written_as="", notes=notes)
    is_alone = command is None or not command.launched_by
    return _started(result, code.starts) if code.starts.is_any and is_alone else result


def _untold(code: CodeArguments, missing: str, name: str) -> UserError:
    """The error for an argument that only running tells, or a flag that the script's command has not."""
    text, flag = code.untold[missing], code.untold[missing].rpartition(".")[2]
    how = "a value that the code writes out"
    if plain(flag) in code.parsed:
        how = f"--{flag} in the command: simpar check -- python {name} --{flag} VALUE"
    return UserError(f"{name}:{code.lines[missing]}: {missing} = {text}: only running tells; allowed: {how}")


def _started(result: Imported, starts: Starts) -> Imported:
    """The plan on the processes that the code starts, which are left open where only running tells."""
    plan, mesh = result.plan, result.plan.mesh
    plan = plan.model_copy(update={"mesh": mesh.model_copy(update={"dp": None})})
    if starts.processes:
        plan = plan.with_values(dp=starts.processes)
    notes = tuple(note for note in result.notes if note != ONE_PROCESS)
    return replace(result, plan=plan, notes=notes, sized=replace(result.sized, alone="", several=True))


def _habits(given: TrainerArguments, code: CodeArguments) -> Habits:
    """What the trainer of a script does where its code says nothing."""
    if code.of_unsloth:
        if not given.on("full_finetuning"):
            given.suppose(r=UNSLOTH.adapters.rank)
        if not given.on("full_finetuning", "load_in_8bit", "load_in_16bit", "load_in_fp8"):
            given.suppose(load_in_4bit=True)  # of from_pretrained
        given.suppose(use_gradient_checkpointing="unsloth")
        return UNSLOTH
    if code.trainer != "SFTTrainer":
        return TRANSFORMERS
    length = None if "max_length" in code.emptied else USUAL_LENGTH
    if "SFTConfig" not in code.classes and "TrainingArguments" in code.classes:  # which SFTTrainer takes as they are
        return replace(SFT, precision="fp32", recompute=False, told=OF_2023, length=length)
    return replace(SFT, length=length)


def _starts(words: Sequence[str]) -> bool:
    command = split_command(words) if words else None
    return command is not None and _code(command, "") is not None


READER = Reader(
    name="script",
    description="Scripts and notebooks with arguments of Hugging Face's trainers in their code (TRL, PEFT, Unsloth)",
    read=read,
    starts=_starts,
    words=WORDS | WordTable(
        idle=("use_exact_model_name", "finetune_*_layers", "finetune_*_modules", "train_on_*", "dataset_text_field",
              "assistant_only_loss", "max_steps", "report_to", "device_map", "padding_side", "disable_log_stats"),
        deciding={"target_modules": WORDS.deciding["lora_target_modules"],
                  "finetune_vision_layers": "adapters of an encoder of images: memory and time",
                  **IN_CODE, **OF_STARTS, **OF_BRANCHES},
    ),
)  # fmt: skip
