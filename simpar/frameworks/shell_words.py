"""The expansion of words of a shell script: variables, arithmetic and function arguments, with nothing run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simpar.frameworks.shell_numbers import number

if TYPE_CHECKING:
    from tree_sitter import Node

UNKNOWN = re.compile(r"\$[({\w@*#?!]")
"""Remains of a value that only running would tell."""
_IN_TEXT = re.compile(r"(?<!\\)\$(?:\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|(\w+|[@*#]))")
_EXPANSION = re.compile(r"(\w+|[@*#])(?:\[[@*]\])?(?:(:?[-=+])(.*))?", re.DOTALL)
_PART = re.compile(r"(?:(\w+)\[[@*]\]|[@*]):\s*(\d+)(?::\s*(\d+))?")
_LISTS = re.compile(r"\$\{(\w+\[@\](?::[\s\d:]+)?|@(?::[\s\d:]+)?)\}|\$(@)")
"""Expansions to several words, also inside quotes."""
_ALL = ("$@", "$*", "${@}", "${*}")
_ASSIGNED = re.compile(r"\s*(\w+)\s*([-+*/%]?)=(?!=)(.+)", re.DOTALL)


class Variables(dict[str, list[str]]):
    """A list of words for every name; a value that only running would tell is the name itself, ``${NAME}``.

    A function's arguments exist while it is read: as ``1``, ``@`` and, if all of them are known, ``#``.
    """

    def arithmetic(self, text: str) -> int | None:
        """The integer value of an expression; None if it is not known."""
        return number(text, {name: words[0] for name, words in self.items() if words})

    def value(self, node: Node) -> list[str]:
        """The words of an assignment's right side; one word unless it is an array."""
        if node.type == "array":
            return [word for child in node.named_children for word in self.words(child)]
        return [" ".join(self.words(node, is_split=False))]

    def words(self, node: Node, *, is_split: bool = True) -> list[str]:
        """The words to which a word of the script expands."""
        kind, text = node.type, text_of(node)
        if kind in ("comment", "heredoc_body"):
            return []
        if kind == "raw_string":
            return [text[1:-1]]
        if kind == "string":
            return self._string(node)
        if kind in ("simple_expansion", "expansion"):
            expanded = self.expand(text.removeprefix("$").removeprefix("{").removesuffix("}"), text)
            return [part for word in expanded for part in word.split()] if is_split else [" ".join(expanded)]
        if kind == "arithmetic_expansion":
            value = self.arithmetic(text.removeprefix("$((").removesuffix("))"))
            return [text if value is None else str(value)]
        if kind in ("concatenation", "command_name"):
            return self._concatenated(node, is_split=is_split)
        return [text if kind in ("command_substitution", "process_substitution") else _unescaped(text)]

    def _concatenated(self, node: Node, *, is_split: bool) -> list[str]:
        words: list[str] = []
        for child in node.children:
            first, *more = self.words(child, is_split=is_split) or [""]
            words = [*words[:-1], (words[-1] if words else "") + first, *more]
        return words

    def _string(self, node: Node) -> list[str]:
        text = text_of(node)[1:-1].replace("\\\n", "")
        if whole := _LISTS.fullmatch(text):
            return self.expand(whole.group(1) or whole.group(2), text)
        return [re.sub(r'\\(["$`\\])', r"\1", self.put_in(text))]

    def put_in(self, text: str) -> str:
        """A text with the values of the variables substituted."""

        def value(match: re.Match[str]) -> str:
            return " ".join(self.expand(match.group(1) or match.group(2), match.group(0)))

        return _IN_TEXT.sub(value, text)

    def expand(self, inside: str, whole: str) -> list[str]:
        """The words of ``${inside}``; the text itself if they are not known."""
        if (part := _PART.fullmatch(inside)) and (part.group(1) or "@") in self:
            words = self[part.group(1) or "@"]
            start = int(part.group(2)) - (part.group(1) is None)
            return [whole] if start < 0 else words[start:][: int(part.group(3) or len(words))]
        match = _EXPANSION.fullmatch(inside)
        if match is None:
            return [whole]
        name, operator, default = match.groups()
        words = self.get(name, [])
        is_set = any(words) if operator and operator.startswith(":") else name in self
        if operator is not None and "+" in operator:
            if is_set and any(map(UNKNOWN.search, words)):
                return [whole]
            return [self.put_in(default.strip().strip("\"'"))] if is_set else []
        if is_set:
            return words
        if operator is None:
            is_beyond = name.isdigit() and "#" in self
            return [] if is_beyond else [whole] if name in "@*#" else [f"${{{name}}}"]
        words = [self.put_in(default.strip().strip("\"'"))]
        if "=" in operator:
            self[name] = words
        return words

    def bind(self, words: list[str]) -> None:
        """Make words the arguments; after a word that stands for all arguments of the script they are unknown."""
        self.unbind()
        known = next((i for i, word in enumerate(words) if word in _ALL), len(words))
        self.update({str(i + 1): [word] for i, word in enumerate(words[:known])} | {"@": words, "*": words})
        if known == len(words):
            self["#"] = [str(known)]

    def unbind(self) -> None:
        """Forget the arguments."""
        for name in [name for name in self if is_argument(name)]:
            del self[name]

    def calculate(self, text: str) -> int | None:
        """The value of an expression that may set a variable."""
        match = _ASSIGNED.fullmatch(text)
        if match is None:
            return self.arithmetic(text)
        name, operator, expression = match.groups()
        value = self.arithmetic(f"{name} {operator} ({expression})" if operator else expression)
        self[name] = [f"${{{name}}}" if value is None else str(value)]
        return value


def is_argument(name: str) -> bool:
    """Whether a name is one of a function's arguments."""
    return name.isdigit() or name in "@*#"


def text_of(node: Node) -> str:
    """A node's text."""
    return (node.text or b"").decode()


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))
