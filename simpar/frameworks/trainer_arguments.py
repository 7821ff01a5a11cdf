"""The arguments of trainers on Hugging Face's: those of a command line, of a file, and of the files that they name."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import PurePath
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.named import names_other
from simpar.frameworks.overrides import OF_ARGUMENTS
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.shell_calls import PRINTING
from simpar.frameworks.shell_shared import script_of
from simpar.frameworks.shell_untold import UntoldValue, how_to_give
from simpar.frameworks.shell_words import ALL_ARGUMENTS, UNKNOWN
from simpar.frameworks.words import OFF, RATES, ReadWords, WordTable, plain, rate_of

PROGRAMS = ("llamafactory-cli", "trl", "axolotl", "unsloth", "swift", "litgpt", "autotrain")
"""Programs that start a training script themselves; their first word says what they do."""
INSTALLS = ("install", "uninstall", "download", "activate", "load", "workon", "pull")
"""Words of managers of packages, environments and modules, behind which names are those of such."""
ABOUT_ITSELF = ("--version", "--help", "-h", "version", "help", "env")
"""What a program says of itself."""
ABOUT_FILES = ("git", "cd", "ls", "cp", "mv", "rm", "mkdir", "ln", "chmod", "wget", "curl", "tar", "rsync", "which")
"""Programs that start none: names behind them are those of files and folders."""
CONFIGS = (".yaml", ".yml", ".json")
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "2>&1", "2>", "&>", "<"}


LAUNCHERS = ("accelerate", "deepspeed", "torchrun", "srun", "mpirun")
"""Launchers, those that others start first."""
LAUNCHED_AS = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed", "ds": "deepspeed",
    **dict.fromkeys(("composer", "fabric", "lightning"), "torchrun"),
    **dict.fromkeys(("mpiexec", "mpiexec.hydra", "horovodrun", "ibrun"), "mpirun"),
    **dict.fromkeys(("jsrun", "aprun", "flux"), "srun"),
}  # fmt: skip
"""Modules that are launchers, and others that start as many processes as they are told."""


@dataclass(frozen=True)
class TrainerCommand:
    """A command that starts a trainer: the launcher's ``before``, the ``script`` or program, its words and flags.

    ``flags`` are by plain name, ``written`` maps these to the words as they stand there; ``loose`` are words that
    belong to no flag. ``environment`` are the variables that it is started with.
    """

    before: tuple[str, ...]
    script: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    loose: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def launched_by(self) -> str:
        """The launcher, "" for none; behind one that starts a launcher on every node, the one that it starts."""
        names = {LAUNCHED_AS.get(name, name) for name in (PurePath(word).name for word in self.before)}
        return next((name for name in LAUNCHERS if name in names), "")

    @property
    def configs(self) -> tuple[str, ...]:
        """Files of arguments that it names: the value of ``--config``, and loose words."""
        told = (self.flags.get(plain(flag)) for flag in OF_ARGUMENTS)
        named = (each for each in told if isinstance(each, str))
        return (*named, *(word for word in self.loose if word.endswith(CONFIGS)))


def split_command(words: Sequence[str]) -> TrainerCommand | None:
    """The parts of a command; None if it starts neither a script nor a program of a trainer."""
    at = _script_at(words)
    if (
        at is None
        or PurePath(words[0]).name in (*PRINTING, *ABOUT_FILES)
        or set(words[at + 1 : at + 2]) & set(ABOUT_ITSELF)
    ):
        return None
    flags, written, loose = _flags(words[at + 1 :])
    return TrainerCommand(tuple(words[:at]), words[at], flags, written, loose)


def _script_at(words: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        name = PurePath(word).name
        if word in INSTALLS:
            return None
        if name.endswith(".py") or (name in PROGRAMS and not names_other(words, at)):
            return at
        if word in ("-m", "--module") and at + 1 < len(words) and words[at + 1] not in (*LAUNCHED_AS, *LAUNCHERS):
            return at + 1
    return None


def _flags(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    values: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    loose: list[str] = []
    key = ""
    for word in words:
        if word in _ENDS:
            break
        if key and word in ALL_ARGUMENTS:  # those of the text itself, which is started without
            key = ""
            continue
        own = re.match(r"--?([A-Za-z][\w.-]*)(=.*)?$", word, re.DOTALL)
        override = None if own or key else re.match(r"([A-Za-z_][\w.]*)(=.*)$", word, re.DOTALL)
        if match := own or override:
            key = plain(match[1])
            written[key] = f"--{match[1]}" if own else match[1]
            values[key] = [match[2][1:]] if match[2] else []
            key = key if own and not match[2] else ""
        elif key:
            values[key].append(word)
        else:
            loose.append(word)
    flags = {key: _value(words) for key, words in values.items()}
    negated = {
        key.removeprefix("no_"): False for key, value in flags.items() if key.startswith("no_") and value is True
    }
    return {**negated, **flags}, {**{key: written[f"no_{key}"] for key in negated}, **written}, tuple(loose)


def _value(words: Sequence[str]) -> Any:
    """The value of a flag: true for none, a list for several words."""
    if not words:
        return True
    if len(words) > 1:
        return [*words]
    return typed(words[0])


def typed(word: str) -> Any:
    """A word as the value that it spells: JSON, a number, true or false, none, or text."""
    text = word.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("none", "null"):
        return None
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?", text):
        return float(text)
    if text[:1] == "{":
        try:
            return json.loads(text.replace("'", '"'))
        except (json.JSONDecodeError, RecursionError):
            return text
    return text


def commands_of(text: str, source: str) -> list[TrainerCommand]:
    """The commands of a text that start scripts or trainers' programs. Raises UserError if it is not shell text."""
    script = script_of(text, source)
    pairs = zip(script.commands, script.environments, strict=True)
    split = ((split_command(words), own) for words, own in pairs if words)
    return [replace(command, environment=own) for command, own in split if command is not None]


class TrainerArguments(ConfigReader):
    """Arguments by plain name; what is asked for is known by the name it has in the text.

    ``variables`` are those of the script by then, on which values may stand.
    """

    def __init__(self, values: Mapping[str, Any], source: str, written: Mapping[str, str] | None = None) -> None:
        super().__init__(values, source)
        self.written = written or {}
        self.supposed: set[str] = set()
        self.left = set[str]()
        self.variables: Mapping[str, str] = {}

    def one(self, *keys: str) -> Any:
        """The first value that is given under one of these names; None if there is none. Raises UserError."""
        result = None
        for key in keys:
            value = self.get(key)
            if _is_untold(value):
                how = how_to_give(" ".join(words_of_value(value)), self.variables, self.source)
                raise UntoldValue(str(self.refused(key, how)))
            result = value if result is None else result
        return result

    def told(self, *keys: str) -> Any:
        """The first value that the text tells under one of these names; None where only running would."""
        values = (self.get(key) for key in keys)
        told = [value for value in values if not _is_untold(value)]
        return next((value for value in told if value is not None), None)

    def rate(self, *keys: str, usual: float | None = None) -> float | None:
        """The first probability under one of these names; the ``usual`` one if there is none. Raises UserError."""
        value = self.one(*keys)
        if value is None:
            return usual
        result = rate_of(value)
        if result is None:
            raise self.refused(next(each for each in keys if self.values_.get(each) is not None), RATES)
        return result

    def number(self, *keys: str) -> int | None:
        """The first number under one of these names; None if there is none or it is "auto". Raises UserError."""
        value = self.one(*keys)
        if value in (None, "auto", -1):
            return None
        key = next(each for each in keys if self.values_.get(each) is not None)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refused(key, "a positive integer")
        return value

    def on(self, *keys: str) -> bool | None:
        """Whether one of these names is on; None if none is given."""
        value = self.one(*keys)
        return None if value is None or value == "auto" else str(value).lower() not in OFF

    def on_any(self, *keys: str) -> bool | None:
        """Whether one of these names is on, whatever the others say; None if none is given."""
        told = [self.on(key) for key in keys]
        return True if True in told else None if set(told) == {None} else False

    def suppose(self, **values: Any) -> None:
        """Take values that the text does not say, where it gives none."""
        new = {key: value for key, value in values.items() if self.values_.get(key) is None}
        self.values_ |= new
        self.supposed |= set(new)

    def leave(self, *keys: str) -> None:
        """Take names as not read: a table of words says what they could change."""
        self.left.update(keys)

    def refused(self, key: str, allowed: str) -> UserError:
        """The error for a value that is not allowed."""
        return UserError(f"{self.source}: {self.written.get(key, key)} = {self.values_[key]!r}: allowed: {allowed}")

    def new_words(self, table: WordTable, speaks: re.Pattern[str]) -> Iterator[tuple[str, Any]]:
        """Unread words that no ``table`` has and whose plain names have a pattern, as the text spells them; values."""
        unread = self.words().unread
        return ((word, unread[word]) for word in table.sort((), unread).unknown if speaks.search(plain(word)))

    def refused_as_new(self, word: str, what: str, allowed: str) -> UserError:
        """The error for a word that speaks of what decides, by a name that no reader knows."""
        value = self.words().unread[word]
        said = f"{word} = {value!r}: speaks of {what}, by a name that is not known here"
        return UserError(f"{self.source}: {said}; allowed: {allowed}")

    def words(self) -> ReadWords:
        """The words that were asked for, and the others with their values, as the text spells them."""
        self.used.difference_update(self.left)
        self.used |= {f"no_{key}" for key in self.used if self.values_.get(f"no_{key}") is True}  # --no_KEY says it
        read, spelt = super().words(), self.written
        return ReadWords(
            tuple(spelt.get(key, key) for key in read.used if key not in self.supposed),
            {spelt.get(key, key): value for key, value in read.unread.items() if key not in self.supposed},
        )


def _is_untold(value: Any) -> bool:
    """Whether only running would tell a value; a sum of variables without quotes is several words."""
    return any(UNKNOWN.search(word) for word in words_of_value(value))


def words_of_value(value: Any) -> list[str]:
    """The texts in a value: one, or those of several words."""
    return [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]


def words_of(value: Any) -> list[str]:
    """The words of an option that takes several: a list, or text with spaces or commas between them."""
    parts: Iterable[Any] = value if isinstance(value, list) else [value]
    return [word for part in parts for word in re.split(r"[\s,\[\]\"']+", str(part)) if word]
