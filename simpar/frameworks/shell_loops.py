"""Loops of a shell script, read once a turn while it is decided that they go on."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from simpar.dataclass import dataclass
from simpar.frameworks.shell_words import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tree_sitter import Node

    from simpar.frameworks.shell import Script

MAX_TURNS = 10_000
NO_ARGUMENTS = re.compile(r"\$[@*]|\$\{[@*](:[^}]*)?\}")
"""Arguments of a script that is started without any, as words of a loop over them."""
ENDS = ("break", "continue")
"""Commands that end a turn of a loop, or the loop."""


class TurnEnd(Exception):
    """The end of a turn before its last command, of so many loops; ``is_last`` if no other turn follows."""

    def __init__(self, levels: int, *, is_last: bool) -> None:
        super().__init__()
        self.levels, self.is_last = levels, is_last


@dataclass(frozen=True)
class MaybeEnd:
    """A ``break`` or ``continue`` of so many loops that is not decided, and the variables where it stands."""

    is_last: bool
    levels: int
    variables: Mapping[str, Sequence[str]]


def end_turn(words: Sequence[str]) -> NoReturn:
    """What ``break`` or ``continue`` does, of one loop or of as many as it says. Raises TurnEnd."""
    raise TurnEnd(_levels(words), is_last=words[0] == "break")


def may_end_turn(script: Script, words: Sequence[str]) -> None:
    """Note a ``break`` or ``continue`` that may be read, or not."""
    if script.loops:
        script.ends.append(MaybeEnd(words[0] == "break", _levels(words), dict(script.variables)))


def _levels(words: Sequence[str]) -> int:
    said = words[1] if len(words) > 1 else ""
    return max(int(said), 1) if re.fullmatch(r"\d{1,4}", said) else 1


def _goes_on(script: Script, body: Node) -> bool:
    """Read a body once; whether another turn may follow. Raises TurnEnd if a loop around this one ends its turn."""
    script.loops += 1
    try:
        script.read_statement(body)
    except TurnEnd as end:
        if end.levels > 1 and script.loops > 1:
            raise TurnEnd(end.levels - 1, is_last=end.is_last) from None
        return not end.is_last
    finally:
        script.loops -= 1
    return True


@contextmanager
def _ends_of(script: Script, variable: str = "") -> Iterator[None]:
    """Within, the ends of a loop's turns that are not decided; behind it, what they leave open is unknown.

    Variables that differ where the turn may have ended: ``variable``, which goes over words, by a last turn only.
    """
    outer, script.ends = script.ends, []
    try:
        yield
    finally:
        own, script.ends = script.ends, outer
        open_names = {
            name
            for end in own
            for name, value in script.variables.items()
            if re.fullmatch(r"[A-Za-z_]\w*", name) and end.variables.get(name) != value
            and (end.is_last or name != variable)
        }  # fmt: skip
        for name in open_names:
            script.variables[name] = [f"${{{name}}}"]
        script.ends += [replace(end, levels=end.levels - 1) for end in own if end.levels > 1 and script.loops]


def run_for(script: Script, node: Node) -> bool | None:
    """Read the body of a loop over words once a word."""
    name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    if name is None or body is None:
        return None
    parts = node.children_by_field_name("value")
    words = [word for part in parts for word in script.variables.words(part) if not NO_ARGUMENTS.fullmatch(word)]
    if not any(child.type == "in" for child in node.children):
        words = script.variables.get("@", [])
    with _ends_of(script, text_of(name)):
        for word in words:
            script.variables[text_of(name)] = [word]
            if not _goes_on(script, body):
                break
    return True


def run_while(script: Script, node: Node) -> bool | None:
    """Read the body of a loop as long as its condition holds, or until it does, and a turn changes something.

    None, with what it sets unknown, if only running would tell when it ends.
    """
    condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
    ends_with = node.children[0].type == "until"
    with _ends_of(script):
        for _ in range(MAX_TURNS):
            held = None if condition is None or body is None else script.read_statement(condition)
            if held is None or body is None:
                break
            if held == ends_with:
                return True
            before = dict(script.variables)
            if not _goes_on(script, body):
                return True
            if any(end.is_last for end in script.ends) or before == script.variables:
                break
    return script.leave_undecided(node, text_of(node).splitlines()[0])


def run_counted(script: Script, node: Node) -> bool | None:
    """Read the body of a loop once a turn; None if only running would tell how often that is."""
    first, condition, update, body = (
        node.child_by_field_name(name) for name in ("initializer", "condition", "update", "body")
    )
    if first is None or condition is None or update is None or body is None:
        return script.leave_undecided(node, text_of(node).splitlines()[0])
    _calculate(script, first)
    with _ends_of(script):
        for _ in range(MAX_TURNS):
            value = script.variables.calculate(text_of(condition))
            if value is None:
                break
            if not value:
                return True
            if not _goes_on(script, body):
                return True
            _calculate(script, update)
    return script.leave_undecided(node, text_of(node).splitlines()[0])


def _calculate(script: Script, node: Node) -> None:
    """What an expression sets: ``i++`` is ``i += 1``."""
    text = text_of(node).strip()
    step = re.fullmatch(r"(\w+)([+-])\2|([+-])\3(\w+)", text)
    if step is not None:
        text = f"{step[1] or step[4]} {step[2] or step[3]}= 1"
    script.variables.calculate(text)
