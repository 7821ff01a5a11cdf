"""What a Makefile or a Dockerfile starts, as shell text: their variables are not the shell's."""

import itertools
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import PurePath

from simpar.errors import UserError
from simpar.frameworks.shell_output import tree_of

MAKEFILES, DOCKERFILES = ("makefile", "gnumakefile"), ("dockerfile", "containerfile")
_ASSIGNED = re.compile(
    r"(?:override +|export +)*([A-Za-z_][\w.-]*)\s*(\?=|:{0,3}=|\+=)\s*(.*?)\s*(?:(?<![\\\w])#.*)?$", re.DOTALL
)
_RULE = re.compile(r"([\w./%$(){} -]+?)\s*:(?!=)\s*([^=;]*)$")
_NAME = re.compile(r"\$(?:\(([A-Za-z_][\w.-]*)\)|\{([A-Za-z_][\w.-]*)\})")
_SHELL = re.compile(r"\$\(shell\s+")
_DEFINED = re.compile(r"^define\b.*?^endef\b", re.DOTALL | re.MULTILINE)
_HELD = "\0"
"""Stands for a dollar of the shell while those of make are replaced."""
DEPTH = 20
"""Variables that stand on others are followed so far."""


def is_build_file(name: str) -> bool:
    """Whether a file is a Makefile or a Dockerfile, by its name."""
    return _is_make(name) or _is_docker(name)


def _is_make(name: str) -> bool:
    own = PurePath(name).name.lower()
    return own in MAKEFILES or own.endswith(".mk")


def _is_docker(name: str) -> bool:
    own = PurePath(name).name.lower()
    starts = own.startswith(tuple(f"{each}." for each in DOCKERFILES))
    return own in DOCKERFILES or starts or own.endswith(".dockerfile")


def shell_of(text: str, name: str, values: Mapping[str, str]) -> str:
    """The commands of a Makefile, on the lines where they stand, or of a Dockerfile, with ``values`` of variables.

    Raises UserError for a Dockerfile that starts nothing.
    """
    return _of_make(text, values) if _is_make(name) else _of_docker(text, name, values)


def without_broken(shell: str) -> tuple[str, tuple[int, ...]]:
    """The commands of a Makefile without recipes that are no shell text, and the lines where these begin."""
    if not tree_of(shell).has_error:
        return shell, ()
    lines, broken = shell.splitlines(), list[int]()
    for is_recipe, run in itertools.groupby(enumerate(lines), lambda each: bool(each[1])):
        recipe = list(run)
        if is_recipe and tree_of("\n".join(line for _, line in recipe)).has_error:
            broken.append(recipe[0][0] + 1)
            lines[recipe[0][0] : recipe[-1][0] + 1] = [""] * len(recipe)
    return "\n".join(lines) + "\n", tuple(broken)


def _of_make(text: str, values: Mapping[str, str]) -> str:
    """The lines of all recipes, with make's variables replaced; other lines are empty."""
    variables = dict(values)
    result, target, first, goes_on = list[str](), "", "", False
    for line in re.sub(r"\\\n(?!\t)[ ]*", " ", _DEFINED.sub(_as_lines, text)).splitlines():  # the shell joins recipes
        if line.startswith("\t") or goes_on:
            held = line.strip("\t").replace("$$", _HELD)
            held = held.replace("$@", target).replace("$<", first)
            told = _replaced(held if goes_on else re.sub(r"^\s*[@+-]+\s*", "", held), variables)
            result.append(told.replace(_HELD, "$"))
            goes_on = line.rstrip().endswith("\\")
            continue
        if (match := _ASSIGNED.fullmatch(line)) is not None:
            if match[1] not in values:  # which win, as those of make's command do
                _assign(variables, *match.groups())
        elif (rule := _RULE.fullmatch(line.partition("#")[0].rstrip())) is not None:
            target, first = rule[1].split(" ")[0], next(iter(rule[2].split()), "")
        result.append("")
    return "\n".join(result) + "\n"


def _as_lines(match: re.Match[str]) -> str:
    """As many empty lines: texts of several are not read."""
    return "\n" * match[0].count("\n")


def _assign(variables: dict[str, str], name: str, how: str, value: str) -> None:
    if how == "+=":
        variables[name] = f"{variables.get(name, '')} {value}".strip()
    elif how != "?=" or name not in variables:
        variables[name] = value


def _replaced(text: str, variables: dict[str, str]) -> str:
    """A line with variables by their values; one that nobody sets is the shell's."""
    for _ in range(DEPTH):
        told = _NAME.sub(lambda match: variables.get(match[1] or match[2], match[0]), text)
        if told == text:
            break
        text = told.replace("$$", _HELD)
    return _SHELL.sub("$(", _NAME.sub(lambda match: f"${{{match[1] or match[2]}}}", text))


def _of_docker(text: str, name: str, values: Mapping[str, str]) -> str:
    """What the image starts: its last ENTRYPOINT, and CMD behind it, with the variables of ENV and ARG."""
    before, parts = list[str](), dict[str, str]()
    for line in re.sub(r"\\[ \t]*\n(?:[ \t]*#[^\n]*\n)*", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if (kind := word.upper()) in ("CMD", "ENTRYPOINT"):
            parts[kind] = _words(rest.strip())
            if kind == "ENTRYPOINT":
                parts.pop("CMD", None)  # of what the image is made from
        elif kind == "ENV" and rest.strip():
            told = rest.strip()
            before.append(f"export {told}" if "=" in told.split()[0] else f"export {told.replace(' ', '=', 1)}")
        elif kind == "ARG" and "=" in rest:
            key, _, value = rest.strip().partition("=")
            before.append(f"{key}=${{{key}:-{value}}}")
    before += [f"export {key}={shlex.quote(value)}" for key, value in values.items()]
    if not parts:
        raise UserError(f"{name}: has no CMD or ENTRYPOINT, and starts nothing; allowed: what is started")
    return "\n".join([*before, " ".join(parts[kind] for kind in ("ENTRYPOINT", "CMD") if kind in parts)]) + "\n"


def _words(text: str) -> str:
    """A list of words as shell text; what is that already as it is."""
    try:
        words = json.loads(text) if text.startswith("[") else None
    except (json.JSONDecodeError, RecursionError):
        return text
    return shlex.join(map(str, words)) if isinstance(words, list) else text
