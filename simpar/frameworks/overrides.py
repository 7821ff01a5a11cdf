"""Configs in YAML with options of a command laid over them: ``key=value`` words, or ``--section.key value`` flags."""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks.recipes import ConfigReader, flat, nest_names
from simpar.frameworks.references import is_untold, resolved
from simpar.frameworks.shell import Script
from simpar.frameworks.shell_shared import script_of

SUFFIXES = (".yaml", ".yml", ".json")
BEFORE = "a value, or variables before the command: simpar check -- NAME=VALUE ./script.sh"
"""What is allowed in place of a value that refers to what the text does not say."""
_ASSIGNED = re.compile(r"[+~]{0,2}([A-Za-z_][\w.\-/]*)=(.*)", re.DOTALL)
OF_ARGUMENTS = ("--config", "--train_args_file")
"""Flags of scripts whose value is a file of their arguments."""
_CONFIG = (*OF_ARGUMENTS, "--config_file", "--config-file")
_IN_PLACE: ContextVar[Mapping[str, str]] = ContextVar("in_place", default={})  # noqa: B039


def is_config(name: str) -> bool:
    """Whether a text is a config file, by its name; else it is a command."""
    return name.endswith(SUFFIXES)


def command_of(
    text: str,
    source: str,
    starts: Callable[[Sequence[str]], bool],
    trains: Callable[[Sequence[str]], bool] = lambda _: True,
) -> list[str]:
    """The first command of a script that ``starts`` a framework, and ``trains`` if one does. Raises UserError."""
    started = [words for words in script_of(text, source).commands if starts(words)]
    if not started:
        raise UserError(f"{source}: no command of the framework that was asked for")
    return next(filter(trains, started), started[0])


def assigned(words: Sequence[str]) -> dict[str, Any]:
    """The ``key=value`` words after a script or a module, as YAML values; of Hydra's prefixes, + and ++ are read."""
    matches = [match for word in words[1:] if not word.startswith("-") and (match := _ASSIGNED.fullmatch(word))]
    return {match[1]: read_value(match[2]) for match in matches}


def flagged(words: Sequence[str]) -> dict[str, Any]:
    """The ``--section.key value`` and ``--section.key=value`` words of a command, as YAML values."""
    result: dict[str, Any] = {}
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and "." in flag:
            after = words[at + 1] if at + 1 < len(words) else "true"
            result[flag.removeprefix("--")] = read_value(
                value if equals else "true" if after.startswith("--") else after
            )
    return result


def flagged_by_tyro(words: Sequence[str]) -> dict[str, Any]:
    """As :func:`flagged`, of a command that tyro parses: dashes for underscores, ``--section.no-key``, and None."""
    result: dict[str, Any] = {}
    for key, value in flagged(words).items():
        section, _, name = key.replace("-", "_").rpartition(".")
        is_off = name.startswith("no_") and value is True
        result[f"{section}.{name.removeprefix('no_') if is_off else name}"] = (
            False if is_off else None if value == "None" else value
        )
    return result


def files_of_script(words: Sequence[str]) -> tuple[str, ...]:
    """The configs that a command gives to its script, as a loose word or by ``--config``."""
    at = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
    result = []
    for before, word in zip(words[at:], words[at + 1 :], strict=False):
        name, equals, value = word.partition("=")
        file = value if equals and name in _CONFIG else word if before in _CONFIG or not before.startswith("-") else ""
        result += [file] if is_config(file) else []
    return tuple(result)


def read_value(text: str) -> Any:
    """A word's value as YAML has it; itself if it is none."""
    try:
        return files.read_yaml(text, "a value", finite=False) if text else None
    except UserError:
        return text


def load_beside(path: str, source: str) -> dict[str, Any]:
    """A config that a text names: where a command would find it, or beside the text. Raises UserError."""
    result = text_beside(path, source)
    if result is None:
        raise UserError(f"{source}: {path}: no such file; allowed: a file here, beside the text or above it")
    return mapping(result[1], result[0])


def text_beside(path: str, source: str) -> tuple[str, str] | None:
    """(Path, text) of a file that a text names or writes itself; None if there is none. Raises UserError."""
    if (text := _IN_PLACE.get().get(os.path.realpath(path))) is not None:
        return path, text
    places = (source, *_IN_PLACE.get())  # a file that a command names may name others beside it
    file = next(filter(None, (files.look_beside(path, place) for place in places)), None)
    if file is None:
        return None
    text = _IN_PLACE.get().get(os.path.realpath(file))
    return str(file), files.read_text(file) if text is None else text


def script_in(text: str, source: str) -> Script | None:
    """A text as a script; None for configs and recipes, and what is no shell text."""
    if is_config(source) or source.endswith((".py", ".toml")) or ".py:" in source:
        return None
    try:
        return script_of(text, source)
    except UserError:  # a reader of other texts than scripts says what is wrong with it
        return None


@contextmanager
def with_texts(texts: Mapping[str, str]) -> Iterator[None]:
    """Texts in place of files that another text names, by path."""
    token = _IN_PLACE.set({**_IN_PLACE.get(), **{os.path.realpath(path): text for path, text in texts.items()}})
    try:
        yield
    finally:
        _IN_PLACE.reset(token)


def mapping(text: str, source: str) -> dict[str, Any]:
    """The mapping in a YAML or JSON. Raises UserError if it is none."""
    read: Any = files.read_json if source.endswith(".json") else files.read_yaml
    data = read(text, source, finite=False)
    if not isinstance(data, dict):
        raise UserError(f"{source}: no config: allowed: a mapping")
    return {str(key): value for key, value in data.items()}


def laid_over(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config with values by dotted name in place of its own; a value gives way to a section in its place."""
    changes = {key: value for key, value in changes.items()
               if isinstance(value, dict) or not any(at.startswith(f"{key}.") for at in changes)}  # fmt: skip
    replaced = {
        key: value
        for key, value in flat(data).items()
        if not any(key.startswith(f"{at}.") or at.startswith(f"{key}.") for at in changes)
    }
    return nest_names(replaced | {key: value for key, value in changes.items() if not isinstance(value, dict)}
                      | {f"{key}.{inner}": each for key, value in changes.items() if isinstance(value, dict)
                         for inner, each in flat(value).items()})  # fmt: skip


class ToldReader(ConfigReader):
    """Values by dotted name; one that only running would tell (``${...}``) is refused where it is needed.

    So is a number where a section with the name that is asked for would stand.
    """

    def __getitem__(self, key: str) -> Any:
        if key not in self.values_:
            self._check_sections(key)
        value = super().__getitem__(key)
        if is_untold(value):
            told = f"{key} = {value}: a value that the text does not say"
            raise UserError(f"{self.source}: {told}; allowed: {BEFORE}")
        return value

    def __contains__(self, key: object) -> bool:
        self.used.add(str(key))
        return key in self.values_

    def _check_sections(self, key: str) -> None:
        for at in (match.start() for match in re.finditer(r"\.", key)):
            value = self.values_.get(key[:at])
            if isinstance(value, int | float) and not isinstance(value, bool):
                raise UserError(f"{self.source}: {key[:at]} = {value!r}: allowed: a mapping, with {key[at + 1 :]}")

    def name_of(self, key: str) -> str | None:
        """A name; None if there is none, or if only running would tell it."""
        self.used.add(key)
        value = self.values_.get(key)
        return None if value is None or is_untold(value) else str(value)


def reader_of(data: Mapping[str, Any], source: str) -> ToldReader:
    """The values of a config by dotted name, with those that they refer to (``${...}``) in their place."""
    return ToldReader(resolved(flat(data)), source)


def choice(given: ConfigReader, key: str, known: Mapping[Any, Any], usual: Any = None) -> Any:
    """What a word of an option means; ``usual`` if it is absent. Raises UserError for an unknown word."""
    value = given.get(key)
    if value is None:
        return usual
    word = value.lower() if isinstance(value, str) else value
    if isinstance(word, list | dict) or word not in known:
        raise UserError(f"{given.source}: {key} = {value!r}: allowed: {', '.join(map(str, known))}")
    return known[word]


def real(given: ConfigReader, key: str) -> float | None:
    """A finite number; None if it is absent. Raises UserError if it is none."""
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{given.source}: {key} = {value!r}: allowed: a number")
    return float(value)
