"""Chat templates of tokenizers: messages as one text, and which of it the model says.

Templates are Jinja in a sandbox, with what transformers gives them. What the model says stands between the tags
``generation`` if a template has these; otherwise it is what an assistant's message adds to the text before it, with the
prompt to generate at its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plain import printable
from simpar.runtime.tokenizer import TokenizerFiles, name_of

TEMPLATE, SPEAKER = "chat_template.jinja", "assistant"
BEGIN, END = "\x02", "\x03"
"""Around what stands between the tags of a template; no text of a chat has these."""
Spans = tuple[tuple[int, int], ...]


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

    def __call__(self, messages: Sequence[Mapping[str, Any]], place: str) -> tuple[str, Spans]:
        """The text of messages and the spans that the model says. Raises UserError."""
        if self.source is None:
            raise UserError(
                f"{place}: messages: tokenizer {self.tokenizer} has no chat template; allowed: one with {TEMPLATE}, or "
                "rows of text, or of prompt and completion"
            )
        whole = self._render(messages, place, prompt=False)
        if BEGIN in whole:
            return _marked(whole)
        spans = tuple(self._added(messages, at, whole, place) for at in _said_by_model(messages))
        if not spans:
            raise UserError(f"{place}: messages: none is of role {SPEAKER}; allowed: at least one, which is trained on")
        return whole, spans

    def _added(self, messages: Sequence[Mapping[str, Any]], at: int, whole: str, place: str) -> tuple[int, int]:
        """The span of a message: what it adds to the text of those before it."""
        before = self._render(messages[:at], place, prompt=True)
        until = self._render(messages[: at + 1], place, prompt=False)
        if not until.startswith(before) or not whole.startswith(until):
            raise UserError(
                f"{place}: messages[{at}]: the template writes the beginning of this conversation in another way than "
                "the whole, so that no part of it is this message; allowed: a template with generation tags"
            )
        return len(before), len(until)

    def _render(self, messages: Sequence[Mapping[str, Any]], place: str, *, prompt: bool) -> str:
        from jinja2 import TemplateError

        try:
            return str(_compiled(str(self.source)).render(
                messages=list(messages), add_generation_prompt=prompt, tools=None, documents=None, **self.tokens
            ))  # fmt: skip
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            said = printable(str(error).splitlines()[0] if str(error) else type(error).__name__)[:160]
            raise UserError(f"{place}: messages: the chat template of {self.tokenizer} refuses them ({said})") from None


def _said_by_model(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    return [number for number, message in enumerate(messages) if message["role"] == SPEAKER]


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
    made.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    made.globals["raise_exception"] = refuse
    # the same text on every day, so that data are a function of their files
    made.globals["strftime_now"] = lambda form: datetime(2026, 1, 1, tzinfo=UTC).strftime(form)
    return made.from_string(source)
