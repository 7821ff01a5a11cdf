"""Edits of options in the text that contains them, and nothing else: shell, YAML, JSON and TOML.

A value is replaced where it is, also in the variable that holds it; a new option is inserted after a similar one. The
caller reads the result again (:mod:`simpar.preflight.flags`): a text that does not mean what it should is never shown.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import unified_diff
from functools import lru_cache
from typing import Any

from simpar.dataclass import dataclass

SWITCH = None
"""The value of a flag without a value."""
NO_NEW_LINE = "\\ No newline at end of file"
"""What a patch has below a last line that does not end."""
LAUNCHED = re.compile(r"\baccelerate\s+launch\b")
"""Behind which the flags of Accelerate's launcher stand."""
OF_LAUNCHER = ("--fsdp_", "--parallelism_config_")
"""How those of its flags begin that say how states are shared out."""
_WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'();|&\\]+)"""


@dataclass(frozen=True)
class Edit:
    """One option: its name, and its value as text (SWITCH for none); ``is_gone`` if it is removed."""

    name: str
    value: str | None = SWITCH
    is_gone: bool = False

    def __str__(self) -> str:
        if self.is_gone:
            return f"without {self.name}"
        return self.name if self.value is SWITCH else f"{self.name} {self.value}"


Patcher = Callable[[str, Edit], str | None]
"""Applies an edit to a text; None if the text has no certain place for it."""


def shell(text: str, edit: Edit) -> str | None:
    """A flag of a command: replaced, removed, or inserted after the last similar one."""
    places = [match for match in _flags(text, edit.name) if not _in_comment(text, match.start())]
    if edit.is_gone:
        for match in reversed(places):
            text = _without(text, match)
        return text
    if not places:
        return _behind_its_like(text, edit)
    if len(places) > 1 or edit.value is SWITCH:
        return text if edit.value is SWITCH else None
    match = places[0]
    old = match.group("value")
    if old is None:
        if edit.value not in ("true", "false"):
            return None
        return f"{text[: match.end()]} {edit.value}{text[match.end() :]}"
    variable = re.fullmatch(r'"?\$\{?(\w+)(?::-[^}]*)?\}?"?', old)
    if variable is None:
        quote = old[:1] if old[:1] in "\"'" else ""
        return f"{text[: match.start('value')]}{quote}{edit.value}{quote}{text[match.end('value') :]}"
    return _assigned(text, variable.group(1), str(edit.value))


def is_switched(text: str, flag: str) -> bool:
    """Whether a command has a flag whose value is true or false."""
    return any(str(match.group("value")).lower() in ("true", "false") for match in _flags(text, flag))


def _flags(text: str, name: str) -> Iterator[re.Match[str]]:
    """Occurrences of a flag, in either spelling, with its value if it has one."""
    spelt = "--" + re.sub(r"[-_]", "[-_]", re.escape(name.removeprefix("--")).replace(r"\-", "-"))
    pattern = rf"(?<![\w-]){spelt}(?![\w-])(?:(?:=|(?:[ \t]|\\\n)+)(?!-)(?P<value>{_WORD}))?"
    return re.finditer(pattern, text)


def _in_comment(text: str, at: int) -> bool:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return re.match(r"\s*#", line) is not None


def _without(text: str, match: re.Match[str]) -> str:
    """The text without a flag and its value; a line that then is empty is removed."""
    start, end = match.span()
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last
    rest = (text[first:start] + text[end:last]).replace("\\", "").strip()
    if not rest and "\n" in text:
        return text[:first] + text[last + 1 :]
    before = text[:start].rstrip(" \t")
    return before + text[end:]


def _behind_its_like(text: str, edit: Edit) -> str | None:
    """Insert a new flag after the one whose name begins most like it, on the same line."""
    if edit.name.startswith(OF_LAUNCHER):
        launched = [match for match in LAUNCHED.finditer(text) if not _in_comment(text, match.start())]
        at = launched[0].end() if len(launched) == 1 else None
        return None if at is None else f"{text[:at]} {edit}{text[at:]}"
    known = [
        match
        for match in re.finditer(rf"(?<![\w-])--[A-Za-z][\w.-]*(?:(?:=|[ \t]+)(?!-){_WORD})?", text)
        if not _in_comment(text, match.start())
    ]
    arguments = [match for match in known if _is_argument(match)]
    if not arguments:
        return None
    like = max(arguments, key=lambda match: (_alike(match.group(0), edit.name), match.start()))
    return f"{text[: like.end()]} {edit}{text[like.end() :]}"


ARGUMENTS = (
    "--tensor-model", "--micro-batch", "--pipeline-model", "--use-", "--recompute", "--sequence-par", "--overlap",
    "--context-par", "--num-virtual", "--expert-model", "--num-layers-per", "--global-batch", "--job.",
    "--parallelism.", "--training.", "--activation_checkpoint.", "--per_device", "--gradient_",
)  # fmt: skip
"""Beginnings of flags that are a training script's, not its launcher's."""


def _is_argument(match: re.Match[str]) -> bool:
    """Whether a flag belongs to the training script: Megatron-LM has a flag with a similar name."""
    return match.group(0).startswith(ARGUMENTS)


def _alike(one: str, other: str) -> int:
    """The length of the common prefix of two names."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _assigned(text: str, name: str, value: str) -> str | None:
    """The text with another value of a variable that is set exactly once."""
    pattern = rf"(?m)^(?P<before>[ \t]*(?:export[ \t]+|readonly[ \t]+)?{name}=)(?P<value>{_WORD})"
    matches = list(re.finditer(pattern, text))
    if len(matches) != 1:
        return None
    old = matches[0].group("value")
    default = re.fullmatch(rf'("?)\$\{{{name}:-[^}}]*\}}("?)', old)
    new = f"{default.group(1)}${{{name}:-{value}}}{default.group(2)}" if default else value
    if not default and old[:1] in "\"'":
        new = f"{old[0]}{value}{old[0]}"
    return text[: matches[0].start("value")] + new + text[matches[0].end("value") :]


def toml(text: str, edit: Edit) -> str | None:
    """A key of a TOML section: its value replaced, its line removed, or a line added at the end of its section."""
    section, _, key = edit.name.rpartition(".")
    lines = text.splitlines(keepends=True)
    head = [at for at, line in enumerate(lines) if re.match(rf"\s*\[\s*{re.escape(section)}\s*\]", line)]
    if not head:
        return text if edit.is_gone else None
    end = next((at for at in range(head[0] + 1, len(lines)) if re.match(r"\s*\[", lines[at])), len(lines))
    own = [at for at in range(head[0] + 1, end) if re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", lines[at])]
    if edit.is_gone:
        return "".join(line for at, line in enumerate(lines) if at not in own)
    if own:
        match = re.match(r"(\s*[\w\"'-]+\s*=\s*)(\"[^\"]*\"|'[^']*'|[^#\n]*?)(\s*(?:#.*)?\n?)$", lines[own[0]])
        if match is None:
            return None
        lines[own[0]] = f"{match.group(1)}{edit.value}{match.group(3)}"
        return "".join(lines)
    while end > head[0] + 1 and not lines[end - 1].strip():
        end -= 1
    if end and not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    return "".join([*lines[:end], f"{key} = {edit.value}\n", *lines[end:]])


def tree(text: str, edit: Edit) -> str | None:
    """A key of YAML or JSON by its dotted name: its value replaced, its entry removed, or an entry added at the end."""
    node = _nodes(text)
    parents = edit.name.split(".")
    for at, part in enumerate(parents):
        entries = {key.value: (key, value) for key, value in node.value} if _is_mapping(node) else {}
        if part not in entries:
            if edit.is_gone:
                return text
            return _entry(text, node, parents[at:], str(edit.value)) if _is_mapping(node) else None
        key, inner = entries[part]
        if at == len(parents) - 1:
            return _taken_out(text, node, key, inner) if edit.is_gone else _replaced(text, inner, edit)
        node = inner
    return None


def keys_of(text: str) -> Iterator[str]:
    """The dotted names of all values of YAML or JSON, in their order."""
    yield from _paths(_nodes(text), ())


@lru_cache(maxsize=64)
def _nodes(text: str) -> Any:
    """The nodes of a YAML or JSON text, shared: many edits of one text are tried, and parsing it takes longest."""
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).compose(text)


def _paths(node: Any, before: tuple[str, ...]) -> Iterator[str]:
    for key, inner in node.value if _is_mapping(node) else ():
        own = (*before, str(key.value))
        yield from _paths(inner, own) if _is_mapping(inner) else (".".join(own),)


def value_of(text: str, name: str, syntax: str | None) -> str | None:
    """The value of a flag, or of a key by its dotted name, as it is written; None if there is none."""
    if syntax == "shell":
        places = (match for match in _flags(text, name) if not _in_comment(text, match.start()))
        return next((match.group("value") for match in places if match.group("value")), None)
    if syntax not in ("yaml", "json"):
        return None
    node = _nodes(text)
    for part in name.split("."):
        node = next((inner for key, inner in node.value if key.value == part), None) if _is_mapping(node) else None
    return node.value if node is not None and isinstance(node.value, str) else None


def _is_mapping(node: Any) -> bool:
    return node is not None and node.id == "mapping"


def _replaced(text: str, node: Any, edit: Edit) -> str | None:
    if not isinstance(node.value, str):
        return None
    return text[: node.start_mark.index] + str(edit.value) + text[node.end_mark.index :]


def _taken_out(text: str, mapping: Any, key: Any, value: Any) -> str | None:
    start, end = key.start_mark.index, value.end_mark.index
    if mapping.flow_style:
        behind = re.match(r"\s*,\s*", text[end:])
        if behind:
            return text[:start] + text[end + behind.end() :]
        return re.sub(r",\s*$", "", text[:start]) + text[end:]
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    return text[:first] + (text[last + 1 :] if last >= 0 else "")


def _entry(text: str, mapping: Any, names: list[str], value: str) -> str | None:
    """Add an entry after the last of a mapping, with the same indentation."""
    if not mapping.value:
        return None
    key, last = mapping.value[-1]
    column, end = key.start_mark.column, last.end_mark.index
    if mapping.flow_style:
        inner = value
        for name in reversed(names[1:]):
            inner = f"{{{json.dumps(name)}: {inner}}}"
        line = "\n" + " " * column if "\n" in text[mapping.start_mark.index : mapping.end_mark.index] else " "
        return f"{text[:end]},{line}{json.dumps(names[0])}: {inner}{text[end:]}"
    lines = [
        f"{' ' * (column + 2 * at)}{name}:" + (f" {value}" if at == len(names) - 1 else "")
        for at, name in enumerate(names)
    ]
    before = text[:end].rstrip("\n")
    return before + "\n" + "\n".join(lines) + "\n" + text[len(before) :].lstrip("\n")


PATCHERS: Mapping[str, Patcher] = {"shell": shell, "toml": toml, "yaml": tree, "json": tree}
"""Patchers by the syntax of the text."""


def unified(old: str, new: str, name: str) -> str:
    """The unified diff of a file of a ``name`` whose text changes; its end stays as it is, without a new line, too."""
    end = old[len(old.rstrip()) :]
    before, after = (list(filter(None, re.split(r"(?<=\n)", text))) for text in (old, f"{new.rstrip()}{end}"))
    changed = unified_diff(before, after, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEW_LINE}\n" for line in changed)
