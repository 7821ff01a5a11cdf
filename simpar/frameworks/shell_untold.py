"""Values that a script leaves to what starts it: which variables they stand on, and how these are given."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from simpar.errors import UserError
from simpar.frameworks.shell_words import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CALCULATED = re.compile(r"\$\(\((.*?)\)\)", re.DOTALL)
_PROGRAM = re.compile(r"\$\((?!\()[^()]*\)|`[^`]*`")
_NAMED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_BARE = re.compile(r"(?<![\w$])[A-Za-z_]\w*")
_ARGUMENT = re.compile(r"\$\{?(\d+)")
OF_COMMAND = " (its command)"
"""What stands behind the name of a file in that of the command which it starts."""
SHELL = (".sh", ".bash", ".slurm", ".sbatch")
MAX_VALUES = 100
"""Variables that are followed to those that they stand on."""


def untold_names(value: str, known: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The variables that nobody has set, in the order in which a value stands on them; those that a program prints.

    ``known`` are the values of variables by then: those that stand on others are followed to these. One that a script
    sets to what only running would tell has itself as its value, ``${NAME}``, and is the last of its kind.

    >>> untold_names("$((RANKS / BATCH))", {"RANKS": "${JOB_GPUS:?not set}", "BATCH": "$(cat batch)"})
    (['JOB_GPUS'], ['BATCH'])
    """
    left, seen, result, printed = [value], set[str](), list[str](), list[str]()
    while left and len(seen) < MAX_VALUES:
        text = left.pop(0)
        for name in _names_in(text):
            told = known.get(name, "")
            if name in seen or (told and not UNKNOWN.search(told)):
                continue
            seen.add(name)
            if told and name not in _NAMED.findall(told):
                left.append(told)
                if not _names_in(told):
                    printed.append(name)
            else:
                result.append(name)
    return result, printed


def _names_in(text: str) -> list[str]:
    """The variables of a value: of a calculation also those without a dollar, not the words of a program in it."""
    inner = " ".join(_PROGRAM.sub(" ", each) for each in _CALCULATED.findall(text))
    return list(dict.fromkeys([*_NAMED.findall(text), *_BARE.findall(inner)]))


def how_to_give(value: str, known: Mapping[str, str], source: str) -> str:
    """What is allowed in place of values that a script, ``source``, does not say, by the names of its variables."""
    (names, printed), source = untold_names(value, known), source.removesuffix(OF_COMMAND)
    most = max(map(int, _ARGUMENT.findall(value)), default=0)
    if most and not names:
        return (
            "arguments in the command: simpar check -- ./script.sh ARGUMENT ..., or simpar import ./script.sh --from "
            "NAME -- ARGUMENT ..."
        )
    if printed and not names:
        return f"{' and '.join(printed)} with a value in the text, in place of what a program prints"
    if not names or any(each.isspace() for each in source):  # a command has no place for variables
        return f"{value.partition(':')[0] if names else 'it'} replaced by its value"
    given = " ".join(f"{name}=VALUE" for name in names)
    path = source if "/" in source or "." in source else f"./{source}"
    behind = f" {'ARGUMENT ' * most}".rstrip()
    imports = f", or simpar import {path} --from NAME -- {given}{behind}" if path.endswith(SHELL) else ""
    where = f"before the command and {most} arguments behind it" if most else "before the command"
    return f"{given} {where}: simpar check -- {given} {path}{behind}{imports}"


class UntoldValue(UserError):
    """A value that a script leaves to what starts it; what is allowed in its place says how to give it."""

    def beside(self, others: Sequence[str], how: str) -> UserError:
        """The same of more values, whose options are ``others``, and how to give them all."""
        return UserError(f"{str(self).partition('allowed: ')[0]}allowed: {how} (also for {', '.join(others)})")


def shell_before(variables: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Shell text before a script's first line, on that line, so that it runs as it is started with these."""
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    bound = f"set -- {shlex.join(arguments)};"
    return f"export {given}; {bound} " if given else f"{bound} "
