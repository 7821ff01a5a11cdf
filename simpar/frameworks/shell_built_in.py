"""What built-in commands of a shell change of a script that is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import zip_longest
from typing import TYPE_CHECKING

from simpar.frameworks.shell_output import printed
from simpar.frameworks.shell_words import UNKNOWN

if TYPE_CHECKING:
    from simpar.frameworks.shell import Script

_WITH_VALUE = "adinNptu"
"""Options of ``read`` that take a value."""


def _cd(script: Script, words: list[str], _: str | None) -> bool | None:
    if words and not UNKNOWN.search(words[-1]) and words[-1] != "-":
        script.folder = os.path.join(script.folder, words[-1])
        script.variables.implied["PWD"] = [os.path.abspath(script.folder)]
    return True if not words else None


def _unset(script: Script, words: list[str], _: str | None) -> bool:
    for word in words:
        script.variables.pop(word, None)
    return True


def _set(script: Script, words: list[str], _: str | None) -> bool:
    if words[:1] in (["-a"], ["+a"]):
        script.exports_all = words[0] == "-a"
    if "--" in words:
        script.variables.bind(words[words.index("--") + 1 :])
    return True


def _shift(script: Script, words: list[str], _: str | None) -> bool:
    count = words[0] if words else "1"
    if "@" in script.variables and count.isdigit():
        script.variables.bind(script.variables["@"][int(count) :])
    return True


def _let(script: Script, words: list[str], _: str | None) -> bool | None:
    value: int | None = None
    for word in words:
        value = script.variables.calculate(word)
    return None if value is None else bool(value)


def _read(script: Script, words: list[str], text: str | None) -> bool | None:
    """Variables from a here-document or a here-string; other input is unknown."""
    names: list[str] = []
    whole = is_list = False
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or len(word) < 2:
            names.append(word)
            continue
        is_list |= "a" in word
        if word[-1] in _WITH_VALUE:
            value = next(rest, "")
            whole |= word[-1] == "d" and value == ""
            names += [value] if word[-1] == "a" else []
    if text is None:
        script.variables |= {name: [f"${{{name}}}"] for name in names}
        return None
    read = text if whole else text.partition("\n")[0]
    if is_list:
        script.variables |= {name: read.split() for name in names}
    else:
        result = read.strip().split(None, len(names) - 1)
        script.variables |= {name: [word] for name, word in zip_longest(names, result, fillvalue="")}
    return not whole  # the text ends before the delimiter


def _printf(script: Script, words: list[str], _: str | None) -> bool | None:
    """``printf -v NAME FORMAT VALUES`` sets a variable."""
    if words[:1] != ["-v"] or len(words) < 3:
        return None
    text = None if any(map(UNKNOWN.search, words[2:])) else printed(["printf", *words[2:]])
    script.variables[words[1]] = [f"${{{words[1]}}}" if text is None else text]
    return text is not None


BUILT_IN: dict[str, Callable[[Script, list[str], str | None], bool | None]] = {
    "set": _set, "shift": _shift, "let": _let, "read": _read, "cd": _cd, "unset": _unset,
    "printf": _printf,
}  # fmt: skip
"""Built-ins that set variables or the folder; they take their words and their input."""
