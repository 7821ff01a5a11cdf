"""Megatron-LM's arguments by flag, from a shell script, a bare list of arguments or a YAML file."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from functools import wraps
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.match import layers_in
from simpar.frameworks.shell import NO_FILE
from simpar.frameworks.shell_calls import PRINTING
from simpar.frameworks.shell_shared import script_of
from simpar.frameworks.shell_untold import UntoldValue, how_to_give
from simpar.frameworks.shell_words import UNKNOWN, split
from simpar.frameworks.target import Imported, misspelt
from simpar.frameworks.words import RATES, ReadWords, rate_of

SIZES = {
    "--num-layers": "layers", "--hidden-size": "hidden", "--ffn-hidden-size": "ffn", "--num-attention-heads": "heads",
    "--num-query-groups": "kv_heads", "--vocab-size": "vocab", "--num-experts": "num_experts",
    "--moe-ffn-hidden-size": "expert_ffn",
}  # fmt: skip
AXES = {
    "--tensor-model-parallel-size": "tp", "--pipeline-model-parallel-size": "pp", "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
}  # fmt: skip
DROPOUT = {"--attention-dropout": "attention", "--hidden-dropout": "hidden"}
"""Arguments of dropout, by the rates of :func:`~simpar.architectures.dropout.with_dropout`."""
TELLING = (*AXES, "--micro-batch-size")
"""Flags by which a command of Megatron-LM is recognised: it has at least one."""
OF_TRAINERS = ("--model-name-or-path", "--base-model", "--per-device-train-batch-size")
"""Flags of trainers on Hugging Face's, whose scripts may have a micro-batch and a name with ``pretrain_``, too."""
CORE_NAMES = {
    "num_moe_experts": "num_experts", "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "layernorm_epsilon": "norm_epsilon", "gated_linear_unit": "swiglu", "fp8": "fp8_format", "fp4": "fp4_format",
    "activation_func": "", "init_method": "", "output_layer_init_method": "",
}  # fmt: skip
"""Fields of Megatron-Core's config, which ``--yaml-cfg`` takes, by the corresponding argument ("" for none)."""
ON_BY_DEFAULT = {
    **{name: f"--no-{name.replace('_', '-')}" for name in (
        "bias_gelu_fusion", "bias_swiglu_fusion", "bias_dropout_fusion", "masked_softmax_fusion",
        "gradient_accumulation_fusion", "persist_layer_norm",
    )},
    "apply_rope_fusion": "--no-rope-fusion", "add_bias_linear": "--disable-bias-linear",
}  # fmt: skip
"""Names by which a YAML turns off what is on by default, with the switches that do so in a command."""
_LOOP = re.compile(r"(?m)^\s*for\s|;\s*for\s")
OF_LAUNCHERS = ("torch.", "accelerate.", "deepspeed.")
"""How modules begin that start another one."""
MAX_LISTED = 6
"""Commands of which an error lists the values that differ."""
YAML_SECTIONS = ("ARGS", "MODEL_ARGS", "language_model", "model_parallel")
BESIDE = "--moe-shared-expert-overlap"
_ENDS = {"(", ")", "\\", ";", "&&", "||", "|", "&", "exec", "2>&1", ">", ">>"}


OF_FILES = re.compile(
    r"--(?:save|load|finetune|train-iters|exit-\S+|(?:save|log|eval)-(?:interval|iters)|tensorboard-\S+|wandb-\S+"
    r"|no-(?:load|save)-\S+|(?:data|train|valid|test)-(?:data-)?path|seed)"
)
"""Arguments about files and how often they are written."""
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*\w")


@dataclass
class Arguments:
    """Arguments by flag, and which of them have been asked for.

    ``names`` are their names in the file, if these differ from the flag; ``untold`` are switches that another file may
    have set. ``script`` is the Python file that is started, "" if it is not known; ``variables`` are those of a shell
    script, with their values.
    """

    values: Mapping[str, list[str]]
    source: str
    notes: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    untold: Set[str] = frozenset()
    used: set[str] = field(default_factory=set)
    script: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def has(self, flag: str) -> bool:
        """Whether a switch is present."""
        self.used.add(flag)
        return flag in self.values

    def switch(self, flag: str) -> bool | None:
        """Whether a switch is on; None if another file may have set it."""
        return self.has(flag) or (None if flag in self.untold else False)

    def name(self, flag: str) -> str:
        """The name of a flag in the file."""
        return self.names.get(flag, flag)

    def in_own_words(self, text: str) -> str:
        """A note or an error with the file's names of arguments in place of flags."""
        return FLAG.sub(lambda match: self.name(match[0]), text)

    def path(self, flag: str) -> str | None:
        """The value of an option as it stands, with variables that the file does not say; None if it is absent."""
        return next(iter(self.values[flag]), None) if self.has(flag) else None

    def text(self, flag: str) -> str | None:
        """The value of an option, None if it is absent. Raises UserError if it has no value."""
        if not self.has(flag):
            return None
        values = self.values[flag]
        if not values:
            raise UserError(f"{self.source}: {self.name(flag)} has no value")
        if UNKNOWN.search(values[0]):
            how = how_to_give(values[0], self.variables, self.source)
            told = f"{self.name(flag)} = {values[0]}: a value that the file does not say"
            raise UntoldValue(f"{self.source}: {told}; allowed: {how}")
        return values[0]

    def number(self, flag: str) -> int | None:
        """The value of an option as a positive integer. Raises UserError if it is not one."""
        text = self.text(flag)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or int(text) < 1:
            raise UserError(f"{self.source}: {self.name(flag)} = {text}: allowed: a positive integer")
        return int(text)

    def rate(self, flag: str) -> float | None:
        """The value of an option as a probability. Raises UserError if it is not one."""
        text = self.text(flag)
        if text is None:
            return None
        result = rate_of(text)
        if result is None:
            raise UserError(f"{self.source}: {self.name(flag)} = {text}: allowed: {RATES}")
        return result

    def dropout(self) -> dict[str, float]:
        """The rates of dropout that are said, where they are no variables. Raises UserError."""
        said = {flag: name for flag, name in DROPOUT.items() if not UNKNOWN.search("".join(self.values.get(flag, [])))}
        rates = {name: self.rate(flag) for flag, name in said.items()}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def words(self) -> ReadWords:
        """Arguments that were asked for, and the others with their values, by their names in the file."""
        left = {flag: values for flag, values in self.values.items() if flag not in self.used}
        used = tuple(dict.fromkeys(self.name(flag) for flag in self.values if flag in self.used))
        return ReadWords(used, {self.name(flag): " ".join(values) if values else True for flag, values in left.items()})

    def misspelt(self) -> tuple[str, ...]:
        """Notes on unused arguments that look like misspelt flags."""
        return misspelt((flag for flag in self.values if flag not in self.used), self.used - set(self.values))


def starts_megatron(words: Sequence[str]) -> bool:
    """Whether a command is Megatron-LM's or a relative's, by its flags or by the name of its script."""
    flags = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    if flags & set(OF_TRAINERS) and not flags & set(AXES):
        return False
    return bool(flags & set(TELLING)) or any(PurePath(word).name.startswith("pretrain_") for word in words)


def renamed(given: Arguments, names: Mapping[str, str]) -> Arguments:
    """The arguments with some by their name in Megatron-LM, which errors and accounts know by their own."""
    values = {names.get(flag, flag): value for flag, value in given.values.items()}
    own = {theirs: given.name(flag) for flag, theirs in names.items() if flag in given.values}
    return replace(given, values=values, names={**given.names, **own}, used=set())


def read_arguments(text: str, source: str) -> Arguments:
    """The arguments of the only command of Megatron-LM in a file. Raises UserError."""
    is_yaml = source.endswith((".yaml", ".yml"))
    given = _from_yaml(text, source) if is_yaml else _from_shell(text, source)
    if not any(flag in given.values for flag in TELLING):
        missing = [note.rstrip(".") for note in given.notes if NO_FILE in note]
        told = f"; they may be in a file that is not here: {missing[-1]}" if missing else ""
        raise UserError(f"{source}: no Megatron-LM arguments, such as --tensor-model-parallel-size 8{told}")
    return given


def _from_shell(text: str, source: str) -> Arguments:
    script = script_of(text, source)
    launched = [command for command in script.commands if command[:1] and command[0] not in PRINTING]
    telling = _telling(launched) or _telling(script.commands)
    if not telling:  # a file that is sourced by another one has the arguments in variables
        words = [word for variable in script.variables.values() for word in variable if word]
        telling = [_by_flag(_words(words))]
    if any(_that_decide(arguments) != _that_decide(telling[0]) for arguments in telling):
        raise UserError(f"{source}: {_differing(telling, is_loop=_LOOP.search(text) is not None)}")
    variables = {name: " ".join(words) for name, words in script.variables.items()}
    return Arguments(telling[0], source, tuple(script.notes), script=_started(launched), variables=variables)


def _started(commands: Sequence[Sequence[str]]) -> str:
    """The path of the script, or of the module, that is given Megatron-LM's arguments; "" if none is known."""
    own = [command for command in commands if _telling([list(command)])]
    scripts = [word for command in own or commands for word in command if word.endswith(".py")]
    modules = [
        after.replace(".", "/")
        for command in own
        for word, after in pairwise(command)
        if word == "-m" and not after.startswith(OF_LAUNCHERS)
    ]
    return next(iter((*scripts, *modules)), "")


def _that_decide(arguments: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The arguments that may change a step: two runs of which one goes on from the other's files are one launch."""
    return {flag: values for flag, values in arguments.items() if not OF_FILES.fullmatch(flag)}


def _differing(telling: Sequence[Mapping[str, Sequence[str]]], *, is_loop: bool) -> str:
    """The line on commands that differ: in which flags, the values of each, and how one of them is chosen."""
    given = dict.fromkeys(flag for each in telling for flag in each)
    flags = [flag for flag in given if any(each.get(flag) != telling[0].get(flag) for each in telling)]
    flags.sort(key=lambda flag: flag not in AXES)
    values = {flag: [" ".join(each.get(flag) or ()) or "-" for each in telling[:MAX_LISTED]] for flag in flags[:4]}
    rest = ", ..." if len(telling) > MAX_LISTED else ""
    told = ", ".join(f"{flag} ({', '.join(each)}{rest})" for flag, each in values.items())
    turns, one = (", of the turns of a loop", ", or a loop over one entry") if is_loop else ("", "")
    count = f"{len(telling)} commands of Megatron-LM{turns}, which differ in {told}"
    return f"{count}: allowed: one of them: simpar check -- COMMAND{one}"


def with_layers(given: Arguments, model: str | None) -> Arguments:
    """The arguments with the layers of a shipped model that is given by name: stages are counted in them.

    Both have the same account of what was asked for.
    """
    if model is None or "--num-layers" in given.values:
        return given
    return replace(given, values={**given.values, "--num-layers": [str(layers_in(model))]})


def _telling(commands: Iterable[list[str]]) -> list[dict[str, list[str]]]:
    """The arguments of the commands that are Megatron-LM's."""
    parsed = (_by_flag(_words(command)) for command in commands)
    return [arguments for arguments in parsed if any(flag in arguments for flag in TELLING)]


def flags_of(words: Iterable[str]) -> dict[str, list[str]]:
    """The arguments of a command, by flag with dashes."""
    return _by_flag(_words(words))


def _words(words: Iterable[str]) -> list[str]:
    """The words of a command; the text for another shell (``bash -c``) and flags quoted together are split again."""
    result: list[str] = []
    for word in words:
        if "--" in word and len(split(word)) > 1:
            try:
                inner = split(word, lambda text: shlex.split(text, comments=True))
            except ValueError:
                inner = split(word)
            result += inner if inner == [word] else _words(inner)
        else:
            result.append(word)
    return result


_VARIABLE = re.compile(r"\$\{?\w+\}?")


def _by_flag(words: Iterable[str]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        token = word.rstrip(";")
        if token.startswith("--") and len(token) > 2:
            flag, equals, value = token.partition("=")
            flag = flag.replace("_", "-")
            result[flag] = [value] if equals else []
        elif word in _ENDS or (flag and result[flag] and _VARIABLE.fullmatch(word)):
            flag = ""  # a variable behind a value stands for further options
        elif flag:
            result[flag].append(token)
        if token != word:
            flag = ""
    return result


def _from_yaml(text: str, source: str) -> Arguments:
    data = files.read_yaml(text, source, finite=False)
    if not isinstance(data, dict):
        raise UserError(f"{source}: no Megatron-LM arguments: allowed: a mapping")
    return of_mapping(data, source)


def in_own_words(reading: Callable[..., Imported]) -> Callable[..., Imported]:
    """What reads arguments, with notes and errors that name them as their file does."""

    @wraps(reading)
    def read(given: Arguments, model: str | None = None, **usual: Any) -> Imported:
        try:
            result = reading(given, model, **usual)
        except UserError as error:
            raise type(error)(given.in_own_words(str(error))) from None
        notes = tuple(map(given.in_own_words, result.notes))
        asks = {what: given.in_own_words(note) for what, note in result.asks.items()}
        assumed = tuple(replace(each, why=given.in_own_words(each.why)) for each in result.assumed)
        return replace(result, notes=notes, asks=asks, assumed=assumed)

    return read


def of_mapping(data: Mapping[str, Any], source: str) -> Arguments:
    """The arguments in a mapping of a YAML: ``true`` is a switch; false and null mean that an argument is absent.

    False of :data:`ON_BY_DEFAULT` is the switch that turns it off.
    """
    flat = {str(key): value for key, value in data.items() if not isinstance(value, dict)}
    if isinstance(data.get("ARGS"), dict) or isinstance(data.get("MODEL_ARGS"), dict):
        flat = {}
    for section in YAML_SECTIONS:
        if isinstance(part := data.get(section), dict):
            flat |= {str(key): value for key, value in part.items()}
    values: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for key, value in flat.items():
        plain = key.removeprefix("--").replace("-", "_")
        if value is False and plain in ON_BY_DEFAULT:
            values[ON_BY_DEFAULT[plain]] = []
            continue
        argument = CORE_NAMES.get(plain, plain)
        flag = f"--{argument.replace('_', '-')}"
        if not argument or value is None or value is False:
            continue
        values[flag], names[flag] = _scalars(value), key
    if "--num-query-groups" in values and "language_model" in data:  # Megatron-Core's own fields: no switch
        values.setdefault("--group-query-attention", [])
    return Arguments(values, source, names=names)


def _scalars(value: Any) -> list[str]:
    if value is True:
        return []
    if isinstance(value, str) and (listed := re.fullmatch(r"\[(\d+(?: \d+)+)\]", value)):  # of its functional tests
        value = listed[1]
    return [word for item in (value if isinstance(value, list) else [value])
            for word in re.split(r"\s+", str(item).strip())]  # fmt: skip
