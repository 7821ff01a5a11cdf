"""Loops of a shell script that count: ``for ((i = 0; i < N; i++))``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simpar.frameworks.shell_words import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

    from simpar.frameworks.shell import Script

MAX_TURNS = 10_000


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
        script.read_statement(body)
        _calculate(script, update)
    return script.leave_undecided(node, text_of(node).splitlines()[0])


def _calculate(script: Script, node: Node) -> None:
    """What an expression sets: ``i++`` is ``i += 1``."""
    text = text_of(node).strip()
    step = re.fullmatch(r"(\w+)([+-])\2|([+-])\3(\w+)", text)
    if step is not None:
        text = f"{step[1] or step[4]} {step[2] or step[3]}= 1"
    script.variables.calculate(text)
