"""Rows of training data as documents: what fields a row may have, and which of its text counts in the loss. No torch.

A row has a ``text``; or chat ``messages`` (also ``conversations`` of ``from`` and ``value``), which the tokenizer's
template renders; or a ``prompt`` and a ``completion``, both strings or both lists of messages, as TRL has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plain import printable

KEYS = ("text", "messages", "conversations", "prompt")
"""Fields by which a row is a document of a kind, the first one that it has."""
TEMPLATE_TAKES = {"tools": list, "chat_template_kwargs": dict}
"""Further fields of a row, which its template is given."""
COLUMNS = (*KEYS, "completion", *TEMPLATE_TAKES)
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""From who speaks in ``conversations`` to the roles of messages."""
ALLOWED = "text, or messages, or prompt and completion"
EMPTY, UNCOUNTED, BLANK = "empty documents", "documents without a token in the loss", "blank lines"
"""What is left out of training data, by what it is."""
Message = Mapping[str, Any]
Spans = tuple[tuple[int, int], ...]


def tell_counts(left_out: Mapping[str, int]) -> str:
    """What was left out, in words: ``empty documents: 3, blank lines: 1``."""
    return ", ".join(f"{what}: {count:,}" for what, count in left_out.items())


class Unusable(UserError):
    """A document with nothing to train on; ``what`` of the above it is."""

    def __init__(self, message: str, what: str = EMPTY) -> None:
        super().__init__(message)
        self.what = what


@dataclass(frozen=True)
class TextDocument:
    """A ``text`` from a place (file:line); ``counted`` are the spans of characters in the loss (None: all).

    ``special``: the tokenizer's own tokens at the beginning and the end belong to it, which a template writes itself.
    ``goes_on``: the next one is more of the same document. ``left_out``: why nothing of it is trained on.
    """

    text: str
    place: str
    counted: Spans | None = None
    special: bool = True
    goes_on: bool = False
    left_out: str = ""

    @property
    def is_piece(self) -> bool:
        """Whether it is a part of a plain text."""
        return self.goes_on or (self.counted is None and not self.special)


@dataclass(frozen=True)
class Chat:
    """Messages, with the ``tools`` and further ``variables`` that a template is given.

    Of them ``prompt`` are given, and the others are to be said; None: the assistant's are.
    """

    messages: Sequence[Message]
    prompt: int | None = None
    tools: Sequence[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


Render = Callable[[Chat, str], tuple[str, Spans]]
"""From a chat and its place: a text, and the spans that the model says. Raises UserError."""


def document_of(row: Any, place: str, render: Render) -> TextDocument:
    """The document of a row. Raises UserError with its place."""
    document = _document_of(row, place, render)
    try:
        document.text.encode()
    except UnicodeEncodeError as error:  # JSON can say one, UTF-8 cannot
        said = f"half of a surrogate pair (\\u{ord(document.text[error.start]):04x})"
        raise UserError(f"{place}: has {said}, which is no character; allowed: text in UTF-8") from None
    return document


def _document_of(row: Any, place: str, render: Render) -> TextDocument:
    if not isinstance(row, Mapping):
        raise UserError(f"{place}: is {type(row).__name__}; allowed: an object with {ALLOWED}")
    kind = next((key for key in KEYS if row.get(key) is not None), None)
    if kind is None or (kind == "prompt" and row.get("completion") is None):
        said = ", ".join(f"{key} (null)" if value is None else str(key) for key, value in row.items()) or "nothing"
        fault = Unusable if any(key in row and row[key] is None for key in (*KEYS, "completion")) else UserError
        raise fault(f"{place}: has {printable(said)[:160]}; allowed: {ALLOWED}")
    if kind == "text":
        return TextDocument(_filled(row[kind], kind, place), place)
    if kind == "prompt" and not isinstance(row[kind], list):
        prompt, completion = _string(row[kind], kind, place), _filled(row["completion"], "completion", place)
        return TextDocument(prompt + completion, place, ((len(prompt), len(prompt) + len(completion)),))
    text, counted = render(_chat(row, kind, place), place)
    return TextDocument(text, place, counted, special=False)


def _chat(row: Mapping[str, Any], kind: str, place: str) -> Chat:
    messages: list[Message] = []
    prompt = None
    for key in (kind, "completion") if kind == "prompt" else (kind,):
        prompt = len(messages) if key == "completion" else None
        messages += _turns(row[key], place) if key == "conversations" else _messages(row[key], key, place)
    given = {key: _given(row.get(key), key, made, place) for key, made in TEMPLATE_TAKES.items()}
    return Chat(messages, prompt, given["tools"], given["chat_template_kwargs"] or {})


def _given(value: Any, key: str, kind: type, place: str) -> Any:
    """What a template is given: ``value``, or the JSON that it is as a string. Raises UserError."""
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except ValueError as error:
            raise UserError(f"{place}: {key} is not JSON ({error}); allowed: a {kind.__name__}") from None
    if value is not None and value != "" and not isinstance(value, kind):
        raise UserError(f"{place}: {key} is {type(value).__name__}; allowed: a {kind.__name__}")
    return value or None


def _string(value: Any, key: str, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place}: {key} is {type(value).__name__}; allowed: a string")
    return value


def _filled(value: Any, key: str, place: str) -> str:
    if not _string(value, key, place).strip():
        raise Unusable(f"{place}: {key} is empty; allowed: some text")
    return str(value)


def _list(value: Any, key: str, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"{place}: {key} is {type(value).__name__}; allowed: a list")
    if not value:
        raise Unusable(f"{place}: {key} is empty; allowed: a list")
    return value


def _messages(value: Any, key: str, place: str) -> list[Message]:
    for number, message in enumerate(_list(value, key, place)):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UserError(f"{place}: {key}[{number}] has no role; allowed: objects with role and content")
    return list(value)


def _turns(value: Any, place: str) -> list[Message]:
    """Messages of ``conversations``: a ``value`` each and ``from`` whom, or with roles. Raises UserError."""
    turns = _list(value, "conversations", place)
    if isinstance(turns[0], Mapping) and "role" in turns[0]:
        return _messages(turns, "conversations", place)
    result: list[Message] = []
    for number, turn in enumerate(turns):
        at = f"{place}: conversations[{number}]"
        if not isinstance(turn, Mapping) or not isinstance(turn.get("value"), str):
            raise UserError(f"{at} has no value; allowed: objects with from and value")
        if turn.get("from") not in ROLES:
            raise UserError(f"{at} is from {turn.get('from')}; allowed: {', '.join(ROLES)}")
        result.append({"role": ROLES[turn["from"]], "content": turn["value"]})
    return result
