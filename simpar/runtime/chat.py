"""Chat templates of tokenizers: messages as one text, and which of it the model says.

Templates are Jinja in a sandbox, with what transformers gives them. What the model says is what the messages of a
completion add to the text of its prompt; in a chat without one what stands between the tags ``generation`` if a
template has these, otherwise what an assistant's message adds to the text before it, with the prompt to generate at its
end. Contents that are lists of texts, of which a template writes no parts, are given as one text, as servers do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plain import printable
from simpar.runtime.rows import UNCOUNTED, Chat, Message, Spans, Unusable
from simpar.runtime.tokenizer import TokenizerFiles, name_of

TEMPLATE, SPEAKER = "chat_template.jinja", "assistant"
BEGIN, END = "\x02generation begins\x03", "\x02generation ends\x03"
"""Around what stands between the tags of a template; no text of a chat has these."""


@dataclass(frozen=True)
class ChatTemplate:
    """A tokenizer's template (None: it has none) and the special tokens that it may write."""

    tokenizer: str
    source: str | None
    tokens: Mapping[str, str]

    @staticmethod
    def of(name: str, files: TokenizerFiles | None) -> ChatTemplate:
        """The template beside a tokenizer, in a file of its own or in its settings. Raises UserError."""
        if files is None:
            return ChatTemplate(name, None, {})
        own = next((path for path in files.beside if path.name == TEMPLATE), None)
        source: Any = files.settings.get("chat_template") if own is None else _text(own)
        if isinstance(source, list):  # several by name
            source = next((each.get("template") for each in source if each.get("name") == "default"), None)
        tokens = {key: name_of(value) for key, value in files.settings.items() if key.endswith("_token")}
        return ChatTemplate(name, source, {key: text for key, text in tokens.items() if text})

    def __call__(self, chat: Chat, place: str) -> tuple[str, Spans]:
        """The text of a chat and the spans that the model says. Raises UserError."""
        if self.source is None:
            raise UserError(
                f"{place}: messages: tokenizer {self.tokenizer} has no chat template; allowed: one with {TEMPLATE}, or "
                "rows of text, or of prompt and completion as strings"
            )
        chat, count = self._readable(chat, place), len(chat.messages)
        whole, marked = _marked(self._render(chat, count, place, prompt=False))
        if chat.prompt is not None:
            return whole, (self._added(chat, (chat.prompt, count), whole, place),)
        if marked:
            return whole, marked
        said = [at for at, message in enumerate(chat.messages) if message["role"] == SPEAKER]
        if not said:
            fault = f"{place}: messages: none is of role {SPEAKER}; allowed: at least one, which is trained on"
            raise Unusable(fault, UNCOUNTED)
        return whole, tuple(self._added(chat, (at, at + 1), whole, place) for at in said)

    def _readable(self, chat: Chat, place: str) -> Chat:
        """The chat as the template reads it: with lists of texts joined, line by line, if it writes no parts of them.

        [vLLM, chat_template_content_format "string"]
        """
        if not any(_is_parts(message.get("content")) for message in chat.messages):
            return chat
        try:
            self._render(chat, len(chat.messages), place, prompt=False)
        except UserError:
            return replace(chat, messages=[_joined(message) for message in chat.messages])
        return chat

    def _added(self, chat: Chat, added: tuple[int, int], whole: str, place: str) -> tuple[int, int]:
        """The span of some messages, from the first to before the last: what they add to the text of those before."""
        first, last = added
        before, _ = _marked(self._render(chat, first, place, prompt=True))
        until, _ = _marked(self._render(chat, last, place, prompt=False))
        if not until.startswith(before) or not whole.startswith(until):
            raise UserError(
                f"{place}: messages[{first}]: the template writes the beginning of this conversation in another way "
                "than the whole, so that no part of it is this message; allowed: a template with generation tags"
            )
        return len(before), len(until)

    def _render(self, chat: Chat, count: int, place: str, *, prompt: bool) -> str:
        """The first ``count`` messages, with marks around what tags say, and a ``prompt`` to generate."""
        from jinja2 import TemplateError

        given = {"tools": chat.tools, "documents": None, **self.tokens, **chat.variables}
        given |= {"messages": list(chat.messages[:count]), "add_generation_prompt": prompt}
        try:
            return str(_compiled(str(self.source)).render(given))
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            said = printable(str(error).splitlines()[0] if str(error) else type(error).__name__)[:160]
            raise UserError(f"{place}: messages: the chat template of {self.tokenizer} refuses them ({said})") from None


def _is_parts(content: Any) -> bool:
    """Whether a content is a list of parts, each with a type."""
    return isinstance(content, list) and all(isinstance(part, Mapping) and "type" in part for part in content)


def _joined(message: Message) -> Message:
    """A message whose parts, if they are all texts, are one."""
    content = message.get("content")
    if not _is_parts(content) or any(not isinstance(part.get("text"), str) for part in content or ()):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content or ())}


def _written(value: Any) -> Any:
    """A value that a template writes. Raises jinja2.TemplateError for what stands for no text."""
    from jinja2 import TemplateError

    if value is None or (value and _is_parts(value)):
        what = "null" if value is None else "a list of parts"
        raise TemplateError(f"it would write {what} where text stands")
    return value


def _marked(text: str) -> tuple[str, Spans]:
    """A text without marks, and the spans between them."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    for number, part in enumerate(text.split(BEGIN)):
        said, _, rest = part.partition(END) if number else ("", "", part)
        if number:
            spans.append((length, length + len(said)))
        pieces += [said, rest]
        length += len(said) + len(rest)
    return "".join(pieces), tuple(spans)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


@cache
def _compiled(source: str) -> Any:
    """A template, ready to render. Raises jinja2.TemplateError."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tags around what the model says."""

        tags = {"generation"}  # noqa: RUF012 - as the library declares it

        def parse(self, parser: Any) -> Any:
            """Put marks around the body."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return f"{BEGIN}{caller()}{END}"

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.finalize = _written
    made.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    made.globals["raise_exception"] = refuse
    # the same text on every day, so that data are a function of their files
    made.globals["strftime_now"] = lambda form: datetime(2026, 1, 1, tzinfo=UTC).strftime(form)
    return made.from_string(source)
