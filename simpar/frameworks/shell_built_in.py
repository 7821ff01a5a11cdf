"""What built-in commands of a shell change of a script that is read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from simpar.frameworks.shell_gaps import gaps_of_output
from simpar.frameworks.shell_output import printed
from simpar.frameworks.shell_words import UNKNOWN, names_of

if TYPE_CHECKING:
    from tree_sitter import Node

    from simpar.frameworks.shell import Script

_WITH_VALUE = "adinNptu"
"""Options of ``read`` that take a value."""
_PLACE = "getopts[place]"
"""The variable of the next letter in a word of several options, by a name that no script can have."""
_BLANKS = " \t\n"
"""What parts words where ``IFS`` does not say it."""


def _cd(script: Script, words: list[str], _: str | None) -> bool | None:
    if words and not UNKNOWN.search(words[-1]) and words[-1] != "-":
        script.folder = os.path.join(script.folder, words[-1])
        script.variables.implied["PWD"] = [os.path.abspath(script.folder)]
    return True if not words else None


def _unset(script: Script, words: list[str], _: str | None) -> bool:
    if "-f" in words:
        for word in words:
            script.functions.pop(word, None)
        return True
    for word in words:
        for name in [each for each in script.variables if each == word or each.startswith(f"{word}[")]:
            del script.variables[name]
        script.variables.implied.pop(word, None)
        script.exported.discard(word)
    return True


def unset(script: Script, node: Node) -> bool:
    """What a statement of ``unset`` does."""
    return _unset(script, [word for child in node.named_children for word in script.variables.words(child)], None)


def _set(script: Script, words: list[str], _: str | None) -> bool:
    if words[:1] in (["-a"], ["+a"]):
        script.exports_all = words[0] == "-a"
    if "--" in words:
        script.variables.bind(words[words.index("--") + 1 :])
    return True


def _shift(script: Script, words: list[str], _: str | None) -> bool:
    count = words[0] if words else "1"
    if "@" in script.variables and count.isdecimal():
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
    separators = script.variables.get("IFS", [_BLANKS])[0]
    if is_list:
        script.variables |= {name: _parted(read, separators) for name in names}
    else:
        result = _parted(read, separators, len(names))
        script.variables |= {name: [word] for name, word in zip_longest(names, result, fillvalue="")}
    return not whole  # the text ends before the delimiter


def _parted(text: str, separators: str, most: int = 0) -> list[str]:
    """The words of a text: at most so many (0: all), of which the last has the rest.

    Separators that are blanks part words together with those around them; each of the others parts two words.
    """
    blanks = "".join(each for each in separators if each in _BLANKS)
    marks = "".join(each for each in separators if each not in _BLANKS)
    text = text.rstrip("\n").strip(blanks) if blanks else text.rstrip("\n")
    if not separators or not text:
        return [text] if text else []
    around = f"[{re.escape(blanks)}]*" if blanks else ""
    kinds = [f"{around}[{re.escape(marks)}]{around}"] if marks else []
    pattern = "|".join([*kinds, *([f"[{re.escape(blanks)}]+"] if blanks else [])])
    words = [text] if most == 1 else re.split(pattern, text, maxsplit=max(0, most - 1))
    one = re.fullmatch(f"([^{re.escape(separators)}]*)({pattern})", words[-1])  # what ends a word parts it from nothing
    words[-1] = one[1] if one else words[-1]
    return words if most or words[-1] else words[:-1]


def _printf(script: Script, words: list[str], _: str | None) -> bool | None:
    """``printf -v NAME FORMAT VALUES`` sets a variable."""
    if words[:1] != ["-v"] or len(words) < 3:
        return None
    text = None if any(map(UNKNOWN.search, words[2:])) else printed(["printf", *words[2:]])
    script.variables[words[1]] = [f"${{{words[1]}}}" if text is None else text]
    return text is not None


def _getopts(script: Script, words: list[str], _: str | None) -> bool | None:
    """``getopts LETTERS NAME`` sets a variable to the next option, and OPTARG to its value; False behind the last."""
    known, name = script.variables, words[1] if len(words) > 1 else ""
    given = words[2:] or known.get("@")
    at, place = (int(known.get(key, [first])[0]) for key, first in (("OPTIND", "1"), (_PLACE, "1")))
    word = given[at - 1] if given is not None and at <= len(given) else ""
    if not name or given is None or UNKNOWN.search(word):
        return None
    if not word.startswith("-") or word in ("-", "--"):
        known["OPTIND"] = [str(at + (word == "--"))]
        return False
    letter, rest = word[place], word[place + 1 :]
    takes_value, is_known = f"{letter}:" in words[0], letter in words[0] and letter != ":"
    value = (rest or (given[at] if at < len(given) else "")) if takes_value else "" if is_known else letter
    used = 1 + (takes_value and not rest) if takes_value or not rest else 0
    known |= {name: [letter if is_known else "?"], "OPTARG": [value], "OPTIND": [str(at + used)]}
    known[_PLACE] = ["1" if used else str(place + 1)]
    return True


def set_by_words(script: Script, words: Sequence[str], program: str) -> set[str]:
    """Variables that an expanded ``NAME=VALUE`` sets; the names that are exported. What it sets may not be known."""
    exported = set[str]()
    for word in words:
        name, sign, value = word.partition("=")
        if sign and name.isidentifier():
            script.variables[name] = [value]
        elif UNKNOWN.search(name):
            script.gaps |= gaps_of_output([word])
        if program == "export" and name.isidentifier():
            exported.add(name)
    return exported


BUILT_IN: dict[str, Callable[[Script, list[str], str | None], bool | None]] = {
    "set": _set, "shift": _shift, "let": _let, "read": _read, "cd": _cd, "unset": _unset,
    "printf": _printf, "getopts": _getopts,
}  # fmt: skip
"""Built-ins that set variables or the folder; they take their words and their input."""


def run_built_in(script: Script, words: list[str], text: str | None, given: Sequence[Node]) -> bool | None:
    """What a built-in does with its input; ``given`` are variables for it alone, as in ``IFS=, read A B``."""
    hidden = {name: script.variables.get(name) for name in names_of(given)}
    for each in given:
        script.read_statement(each)
    try:
        return BUILT_IN[words[0]](script, words[1:], text)
    finally:
        script.variables.restore(hidden)
