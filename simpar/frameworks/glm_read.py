"""GLM-4 and ChatGLM3: the nested YAML of their ``finetune.py``, and commands that start it, as a plan.

The script trains with Hugging Face's Trainer, whose arguments are a section of the YAML: bf16 weights, checkpointing,
texts cut at the sum of two lengths (zai-org/GLM-4 3f79b54, ``finetune/finetune.py``).
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import is_config, load_beside, mapping
from simpar.frameworks.reader import Reader
from simpar.frameworks.recipes import flat
from simpar.frameworks.target import Imported
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand, commands_of, split_command
from simpar.frameworks.trainer_read import Adapters, Habits, plan_of
from simpar.frameworks.trainer_words import VISION, WORDS
from simpar.frameworks.words import WordTable

SCRIPTS = ("finetune.py", "finetune_hf.py", "finetune_vision.py")
SECTION, LENGTHS = "training_args", ("max_input_length", "max_output_length")
GLM = Habits("GLM-4's finetune.py", recompute=True, states="low", attention="sdpa", adapters=Adapters(dropout=0.0))
ADAPTERS = {"peft_config.r": "lora_r", "peft_config.lora_dropout": "lora_dropout",
            "peft_config.target_modules": "lora_target_modules", "peft_config.peft_type": "peft_type",
            "peft_config.num_virtual_tokens": "num_virtual_tokens"}  # fmt: skip


def read(text: str, name: str) -> Imported:
    """The plan in a config, or in a command with one. Raises UserError naming file, option and value."""
    if is_config(name):
        return _plan(_checked(mapping(text, name), name), name, None, None)
    command = next((each for each in commands_of(text, name) if _is_own(each)), None)
    if command is None:
        raise UserError(f"{name}: no command of GLM-4, such as python finetune.py data/ MODEL configs/lora.yaml")
    _, model, config = command.loose[:3]
    return _plan(_checked(load_beside(config, name), config), name, model, command)


def _checked(data: Mapping[str, Any], config: str) -> Mapping[str, Any]:
    """The config itself. Raises UserError if it is another script's."""
    if not owns(data):
        raise UserError(f"{config}: no config of GLM-4: it has training_args, max_input_length and max_output_length")
    return data


def _plan(data: Mapping[str, Any], source: str, model: str | None, command: TrainerCommand | None) -> Imported:
    written: dict[str, str] = {}
    values: dict[str, Any] = {} if model is None else {"model_name_or_path": model}
    for key, value in flat(data).items():
        ours = ADAPTERS.get(key) or key.removeprefix(f"{SECTION}.")
        values[ours], written[ours] = value, key
    given = TrainerArguments(values, source, written)
    given.variables = {} if command is None else command.environment
    given.suppose(torch_dtype="bfloat16", max_seq_length=sum(given.number(each) or 0 for each in LENGTHS) or None)
    if command is not None and PurePath(command.script).name == "finetune_vision.py":
        given.values_["vision_script"] = True
        written["vision_script"] = command.script
    return plan_of(given, GLM, command)


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of GLM-4's script."""
    return isinstance(data.get(SECTION), Mapping) and LENGTHS[0] in data


def _is_own(command: TrainerCommand) -> bool:
    return PurePath(command.script).name in SCRIPTS and len(command.loose) >= 3 and is_config(command.loose[2])


def _starts(words: Sequence[str]) -> bool:
    command = split_command(words) if words else None
    return command is not None and _is_own(command)


READER = Reader(
    name="glm",
    description="GLM-4 and ChatGLM3: the nested YAML of finetune.py, and commands that start it",
    read=read,
    starts=_starts,
    owns=owns,
    words=WORDS | WORDS.under(SECTION) | WordTable(
        idle=("data_config.*", "combine", "freezev", "swanlab", f"{SECTION}.generation_config*", "peft_config.*"),
        deciding={"finetune_vision.py": VISION},
    ),
    has_dotted_flags=False,
)  # fmt: skip
