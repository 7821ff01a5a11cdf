"""Texts that another shell reads as its input: here-documents, and what a pipe prints into it."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from simpar.frameworks.named import SHELLS
from simpar.frameworks.shell_calls import JOBS, Call, without_env
from simpar.frameworks.shell_output import printed
from simpar.frameworks.shell_words import names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from simpar.frameworks.shell import Script

_UNCHANGED = ("tee", "tr")
"""Commands that pass a text on, or mend its line ends (``tr -d '\\r'``)."""


def run_pipeline(script: Script, node: Node) -> bool | None:
    """Read what the last part of a pipeline, a shell, is given by the first: ``echo "$JOB" | ssh host bash``."""
    first, *others = node.named_children
    text = _text_of(script, script.words_of(first))
    between = [script.words_of(part)[:1] for part in others[:-1]]
    if text is not None and others and all(part and part[0] in _UNCHANGED for part in between):
        words = script.words_of(others[-1])
        given = [part for part in others[-1].named_children if part.type == "variable_assignment"]
        outside = {name: script.variables.get(name) for name in names_of(given)}
        for part in given:
            script.read_statement(part)
        is_read = _shell_at(words) is not None and hand_over(script, words, text)
        script.variables.restore(outside)
        if is_read:
            return None
    done: bool | None = True
    for part in node.named_children:
        done = script.read_statement(part)
    return done


def hand_over(script: Script, words: Sequence[str], text: str) -> bool:
    """Read the text that a command gives to a shell or a batch system; False if it starts neither, or is no text."""
    names = [PurePath(word).name for word in words]
    if not any(name in (*SHELLS, *JOBS, "cat") for name in names):
        return False
    at = _shell_at(words)
    before = [word for word, name in zip(words[:at], names, strict=False) if name not in (*SHELLS, "cat", "-", "-s")]
    if "--" in before:
        script.notes.append(f"{names[0]} starts what stands after --: its own options are not read.")
        before = before[before.index("--") + 1 :]
    before, own = without_env(before)
    script.variables |= {name: [value] for name, value in own.items()}
    return script.read_child(Call(before, "", _arguments(words, at), text, is_text=True))


def _arguments(words: Sequence[str], at: int | None) -> list[str]:
    """What stands behind ``bash -s``, which the text takes as its arguments."""
    if at is None or "-s" not in words[at:]:
        return []
    behind = list(words[words.index("-s", at) + 1 :])
    return behind[1:] if behind[:1] == ["--"] else behind


def _text_of(script: Script, words: Sequence[str]) -> str | None:
    """What a command prints: words, or a file that is there; None if only running would tell."""
    if words[:1] == ["cat"] and len(words) == 2:
        named = script.text_of_file(words[1])
        return None if named is None else named[1]
    return printed(words) if words else None


def _shell_at(words: Sequence[str]) -> int | None:
    """Where a command starts a shell without a text or a file of its own; None if it does not."""
    at = next((i for i in reversed(range(len(words))) if PurePath(words[i]).name in SHELLS), None)
    if at is None:
        return None
    rest = words[at + 1 :]
    is_flag = all(word.startswith("-") and (word.startswith("--") or "c" not in word) for word in rest)
    return at if is_flag or rest[0] == "-s" else None
