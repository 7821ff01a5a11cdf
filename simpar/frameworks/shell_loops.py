"""Loops of a shell script, read once a turn while it is decided that they go on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from simpar.frameworks.shell_words import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from simpar.frameworks.shell import Script

MAX_TURNS = 10_000
ENDS = ("break", "continue")
"""Commands that end a turn of a loop, or the loop."""


class TurnEnd(Exception):
    """The end of a turn before its last command; ``is_last`` if no other follows."""

    def __init__(self, *, is_last: bool) -> None:
        super().__init__()
        self.is_last = is_last


def end_turn(words: Sequence[str]) -> NoReturn:
    """What ``break`` or ``continue`` does. Raises TurnEnd."""
    raise TurnEnd(is_last=words[0] == "break")


def _goes_on(script: Script, body: Node) -> bool:
    """Read a body once; whether another turn may follow."""
    script.loops += 1
    try:
        script.read_statement(body)
    except TurnEnd as end:
        return not end.is_last
    finally:
        script.loops -= 1
    return True


def run_for(script: Script, node: Node) -> bool | None:
    """Read the body of a loop over words once a word."""
    name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    if name is None or body is None:
        return None
    parts = node.children_by_field_name("value")
    words = [word for part in parts for word in script.variables.words(part)]
    if not any(child.type == "in" for child in node.children):
        words = script.variables.get("@", [])
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
    for _ in range(MAX_TURNS):
        held = None if condition is None or body is None else script.read_statement(condition)
        if held is None or body is None:
            break
        if held == ends_with:
            return True
        before, script.may_end = dict(script.variables), False
        if not _goes_on(script, body):
            return True
        if script.may_end or before == script.variables:
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
