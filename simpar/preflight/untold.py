"""Values of a command that its script leaves to what starts it: asked for together, not one by one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simpar.errors import UserError
from simpar.frameworks import load_reader
from simpar.frameworks.recipes import flat
from simpar.frameworks.shell_untold import UntoldValue, how_to_give, untold_names
from simpar.frameworks.shell_words import UNKNOWN
from simpar.frameworks.words import ReadWords, plain
from simpar.preflight.launcher import LaunchCommand, without_launchers

DECIDE = ("model_max_length", "config_file")
"""Options that decide, but for texts that say the same by another one: in tables of words without effect."""


def asked_of_command(error: UntoldValue, launch: LaunchCommand, source: str, target: str) -> UserError:
    """The error for one value that a script leaves open, with all others of its command that decide something."""
    return _asked(error, untold_values(launch.words), launch.environment, (source, target))


def asked_of_config(error: UntoldValue, data: Any, source: str, target: str) -> UserError:
    """The same of a YAML that another program fills in."""
    values = {key: value for key, value in flat(data).items() if isinstance(value, str) and UNKNOWN.search(value)}
    return _asked(error, values, {}, (source, target))


def _asked(error: UntoldValue, values: Mapping[str, str], known: Mapping[str, str], of: tuple[str, str]) -> UserError:
    """The error with all ``values`` that decide something; ``of`` are the text's name and its reader's."""
    source, target = of
    own, of_launchers = without_launchers(ReadWords((), values))
    idle = {*load_reader(target).words.sort((), own.unread).idle, *of_launchers}
    asked = {flag: each for flag, each in values.items() if flag not in idle or plain(flag) in DECIDE}
    others = [flag for flag in asked if flag not in str(error) and _is_open(asked[flag], known)]
    if not others:
        return error
    return error.beside(others, how_to_give(" ".join(asked.values()), known, source))


def _is_open(value: str, known: Mapping[str, str]) -> bool:
    """Whether a value stands on variables that nobody has set, or on arguments."""
    return bool(untold_names(value, known)[0]) or how_to_give(value, known, "x.sh").startswith("arguments")


def untold_values(words: Sequence[str]) -> dict[str, str]:
    """The values of a command's flags that only running would tell, by flag."""
    return dict(_untold(words))


def _untold(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if not flag.startswith("-"):
            continue
        after = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else ""
        if UNKNOWN.search(value if equals else after):
            yield flag, value if equals else after
