"""The expansion of words of a shell script: variables, arithmetic and function arguments, with nothing run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from simpar.frameworks.shell_numbers import number

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_WORD = 1_000_000
UNKNOWN = re.compile(r"\$[(\[{\w@*#?!]")
"""Remains of a value that only running would tell."""
_NEXT = re.compile(r"\\.|\$\(\(|\$\(|\$\{|\$\[|`|\$([A-Za-z_]\w*|\d|[@*#])", re.DOTALL)
"""What a text may go on with that is not taken as it stands; of digits only the first is a name."""
_EXPANSION = re.compile(
    r"(?P<name>\w+|[@*#])(?:\[(?P<index>[^\]]*)\])?(?:(?P<operator>:?[-=+?]|%%?|##?|//?|,,?|\^\^?)(?P<rest>.*))?",
    re.DOTALL,
)
_LENGTH = re.compile(r"#(\w+|[@*])(?:\[[@*]\])?")
_PART = re.compile(r"(?:(\w+)\[[@*]\]|[@*]):\s*(\d+)(?::\s*(\d+))?")
_LETTERS = re.compile(r"(\w+):(?![-=+?])([^:]+)(?::(.+))?")
_LISTS = re.compile(r"\$\{(\w+\[@\](?::[\s\d:]+)?|@(?::[\s\d:]+)?)\}|\$(@)")
"""Expansions to several words, also inside quotes."""
ALL_ARGUMENTS = ("$@", "$*", "${@}", "${*}")
_ASSIGNED = re.compile(r"\s*(\w+)\s*([-+*/%]?)=(?!=)(.+)", re.DOTALL)
_SPACE = "\0"
"""Stands for a space that parts no words; no argument of a program has one."""
_TENS = re.compile(r"\$(\d)(\d+)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
"""Letters behind a backslash in ``$'...'``."""


class Variables(dict[str, list[str]]):
    """A list of words for every name; a value that only running would tell is the name itself, ``${NAME}``.

    A function's arguments exist while it is read: as ``1``, ``@`` and, if all of them are known, ``#``. An element of
    an array that was set by itself is ``NAME[KEY]``. ``implied`` are variables that the shell or the batch system sets.
    ``output`` works out the text of a command substitution; None if only running would tell.
    """

    implied: dict[str, list[str]]

    def __init__(self, output: Callable[[str], str | None] = lambda _: None) -> None:
        super().__init__()
        self.output = output
        self.implied = {}

    def is_set(self, name: str) -> bool:
        """Whether the script, the shell or the batch system has set a variable."""
        return name in self or name in self.implied

    def all_of(self, name: str, index: str | None = None) -> list[str] | None:
        """The words of a variable, or of an element of it; None if it is not set."""
        known = self if name in self else self.implied
        if index in (None, "@", "*"):
            elements = [word for key, words in self.items() if key.startswith(f"{name}[") for word in words]
            return known.get(name, elements or None) if index is None or not elements else elements
        key = self.put_in(str(index)).strip("\"'")
        if f"{name}[{key}]" in self:
            return self[f"{name}[{key}]"]
        words, at = known.get(name), self.arithmetic(key)
        return [words[at]] if words and at is not None and -len(words) <= at < len(words) else None

    def arithmetic(self, text: str) -> int | None:
        """The integer value of an expression; None if it is not known."""
        known = {**self.implied, **self}
        return number(self.put_in(text), {name: words[0] for name, words in known.items() if words})

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
        if kind == "ansi_c_string":
            return [re.sub(r"\\(.)", lambda match: _ESCAPED.get(match[1], match[1]), text[2:-1])]
        if kind == "string":
            return self._string(node)
        if kind in ("simple_expansion", "expansion", "command_substitution"):
            expanded = self._expanded(text) if kind != "command_substitution" else [self.put_in(text)]
            return [part for word in expanded for part in split(word)] if is_split else [" ".join(expanded)]
        if kind == "arithmetic_expansion":
            value = self.arithmetic(text[2:-1] if text.startswith("$[") else text[3:-2])
            return [text if value is None else str(value)]
        if kind in ("concatenation", "command_name"):
            return self._concatenated(node, is_split=is_split)
        return [text if kind == "process_substitution" else _unescaped(text)]

    def _expanded(self, text: str) -> list[str]:
        if tens := _TENS.fullmatch(text):  # $10 is ${1}0
            *words, last = self.expand(tens[1], f"${tens[1]}") or [""]
            return [*words, last + tens[2]]
        return self.expand(text.removeprefix("$").removeprefix("{").removesuffix("}"), text)

    def _concatenated(self, node: Node, *, is_split: bool) -> list[str]:
        words: list[str] = []
        for child in node.children:
            first, *more = self.words(child, is_split=is_split) or [""]
            words = [*words[:-1], _short((words[-1] if words else "") + first), *more]
        return words

    def _string(self, node: Node) -> list[str]:
        text = text_of(node)[1:-1].replace("\\\n", "")
        if whole := _LISTS.fullmatch(text):
            return self.expand(whole.group(1) or whole.group(2), text)
        return [re.sub(r'\\(["$`\\])', r"\1", self.put_in(text))]

    def put_in(self, text: str) -> str:
        """A text with the values of variables, expressions and pure commands substituted."""
        result, at = list[str](), 0
        while match := _NEXT.search(text, at):
            result.append(text[at : match.start()])
            opens, at = match.group(0), match.end()
            if match.group(1):
                result.append(" ".join(self.expand(match.group(1), opens)))
            elif opens.startswith("\\") or (end := _end_of(text, at, opens)) is None:
                result.append(opens)
            else:
                result.append(self._nested(text[match.start() : end], opens))
                at = end
        return _short("".join((*result, text[at:])))

    def _nested(self, whole: str, opens: str) -> str:
        """The value of ``${...}``, ``$((...))``, ``$[...]``, ``$(...)`` or ```...```."""
        if opens == "${":
            return " ".join(self.expand(whole[2:-1], whole))
        if opens in ("$((", "$["):  # the second is how shells before POSIX spell it
            value = self.arithmetic(whole[3:-2] if opens == "$((" else whole[2:-1])
            return whole if value is None else str(value)
        inner = whole[1:-1] if opens == "`" else whole[2:-1]
        text = self.output(inner)
        return f"$({inner})" if text is None else text

    def expand(self, inside: str, whole: str) -> list[str]:
        """The words of ``${inside}``; the text itself if they are not known."""
        if (part := _PART.fullmatch(inside)) and (part.group(1) or "@") in self:
            listed = self[part.group(1) or "@"]
            start = int(part.group(2)) - (part.group(1) is None)
            return [whole] if start < 0 else listed[start:][: int(part.group(3) or len(listed))]
        if (length := _LENGTH.fullmatch(inside)) and inside != "#":
            words = self.all_of(length[1], "@")
            told = None if words is None or any(map(UNKNOWN.search, words)) else words
            is_text = told is not None and not inside.endswith("]")
            return [whole] if told is None else [str(len(" ".join(told)) if is_text else len(told))]
        if (letters := _LETTERS.fullmatch(inside)) and (words := self.all_of(letters[1])) is not None:
            text, first = " ".join(words), self.arithmetic(letters[2])
            count = self.arithmetic(letters[3]) if letters[3] else len(text)
            if UNKNOWN.search(text) or first is None or count is None:
                return [whole]
            return [text[first:][:count] if first >= -len(text) else ""]
        if inside.startswith("!"):
            words = self.all_of(inside[1:])
            return [whole] if words is None else self.expand(words[0], whole)
        match = _EXPANSION.fullmatch(inside)
        if match is None:
            return [whole]
        name, index, operator, rest = match.groups()
        words = self.all_of(name, index)
        if operator is None:
            if words is not None:
                return words
            is_beyond = (name.isdecimal() and "#" in self) or (index is not None and name in self)
            return [] if is_beyond else [whole] if name in "@*#" else [whole if index else f"${{{name}}}"]
        if operator.strip(":") not in "-=+?":
            return self._changed(words, operator, rest, whole)
        return self._else(name, words, operator, rest, whole)

    def _else(self, name: str, words: list[str] | None, operator: str, rest: str, whole: str) -> list[str]:
        """The words of ``${name:-rest}`` and its like."""
        is_set = any(words or ()) if operator.startswith(":") else words is not None
        if "+" in operator:
            if is_set and any(map(UNKNOWN.search, words or ())):
                return [whole]
            return [self.put_in(rest.strip().strip("\"'"))] if is_set else []
        if is_set:
            return words or []
        if "?" in operator:
            return [whole]
        words = [self.put_in(rest.strip().strip("\"'"))]
        if "=" in operator:
            self[name] = words
        return words

    def _changed(self, words: list[str] | None, operator: str, rest: str, whole: str) -> list[str]:
        """The words of ``${name%rest}`` and its like: without an end, with a part replaced, in other letters."""
        if words is None or any(map(UNKNOWN.search, words)):
            return [whole]
        if operator[0] in ",^":
            change: Callable[[str], str] = str.lower if operator[0] == "," else str.upper
            return [change(word) if len(operator) == 2 else change(word[:1]) + word[1:] for word in words]
        if operator[0] == "/":
            old, _, new = self.put_in(rest).partition("/")
            return [_replaced(word, old, new, -1 if operator == "//" else 1) for word in words]
        return [_without_end(word, operator, self.put_in(rest)) for word in words]

    @property
    def arguments(self) -> dict[str, list[str]]:
        """The arguments of what is read."""
        return {name: words for name, words in self.items() if is_argument(name)}

    def restore(self, hidden: Mapping[str, list[str] | None]) -> None:
        """Give variables the words that they had; None: they were not set."""
        for name, words in hidden.items():
            if words is None:
                self.pop(name, None)
            else:
                self[name] = words

    def bind(self, words: list[str]) -> None:
        """Make words the arguments; after a word that stands for all arguments of the script they are unknown."""
        self.unbind()
        known = next((i for i, word in enumerate(words) if word in ALL_ARGUMENTS), len(words))
        self.update({str(i + 1): [word] for i, word in enumerate(words[:known])} | {"@": words, "*": words})
        if known == len(words):
            self["#"] = [str(known)]

    def unbind(self) -> None:
        """Forget the arguments."""
        for name in [name for name in self if is_argument(name)]:
            del self[name]

    def here_text(self, node: Node) -> str | None:
        """The text of a here-document; None if it has none."""
        parts = {child.type: child for child in node.children}
        if not {"heredoc_start", "heredoc_body"} <= set(parts):
            return None
        start, text = parts["heredoc_start"], parts["heredoc_body"]
        is_literal = text_of(start)[:1] in "'\"\\"
        if is_literal:
            return text_of(text)
        return self.put_in(text_of(text).replace("\\\n", "")).replace("\\$", "$")

    def redirected(self, node: Node, words: Sequence[str]) -> tuple[str, bool]:
        """The file to which the output of a statement goes ("" for none), and whether it is added there."""
        signs = [child for child in descendants(node, lambda each: each.type == "file_redirect") if child.children]
        ends = [child for child in signs if text_of(child.children[0]) in (">", ">>", ">|")]
        end = ends[0].child_by_field_name("destination") if ends else None
        to = " ".join(self.value(end)) if end is not None else words[-1] if words[0] == "tee" else ""
        return to, (bool(ends) and text_of(ends[0].children[0]) == ">>") or "-a" in words

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
    return name.isdecimal() or name in "@*#"


def text_of(node: Node) -> str:
    """A node's text."""
    return (node.text or b"").decode()


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))


def split(text: str, separated: Callable[[str], list[str]] = str.split) -> list[str]:
    """The words of an expanded text; what only running would tell is left in one piece, with its own words.

    ``separated`` parts a text in which no such command has spaces.
    """
    kept, at = list[str](), 0
    while match := _NEXT.search(text, at):
        is_whole = match.group(0) in ("$((", "$(", "${", "$[", "`")
        end = _end_of(text, match.end(), match.group(0)) if is_whole else None
        kept.append(text[at : match.end() if end is None else match.start()])
        kept.append("" if end is None else re.sub(r"\s", _SPACE, text[match.start() : end]))
        at = match.end() if end is None else end
    return [word.replace(_SPACE, " ") for word in separated("".join((*kept, text[at:])))]


def _end_of(text: str, at: int, opens: str) -> int | None:
    """Where what ``opens`` before ``at`` has ended; None if it does not."""
    if opens == "`":
        return text.find("`", at) + 1 or None
    left, right = {"${": ("{", "}"), "$[": ("[", "]")}.get(opens, ("(", ")"))
    depth = opens.count(left)
    while depth and at < len(text):
        at += text[at] == "\\"
        depth += (text[at : at + 1] == left) - (text[at : at + 1] == right)
        at += 1
    return None if depth else at


def _without_end(word: str, operator: str, pattern: str) -> str:
    """A word without the shortest (``#``, ``%``) or longest (``##``, ``%%``) beginning or end that a pattern fits."""
    lengths = range(len(word) + 1) if len(operator) == 1 else range(len(word), -1, -1)
    for length in lengths:
        cut = word[:length] if operator[0] == "#" else word[len(word) - length :]
        if fnmatchcase(cut, pattern):
            return word[length:] if operator[0] == "#" else word[: len(word) - length]
    return word


def _replaced(word: str, old: str, new: str, most: int) -> str:
    """A word with a part replaced. Raises TooLong for one that grows without end."""
    if len(word) + word.count(old) * (len(new) - len(old)) > MAX_WORD:
        raise TooLong
    return word.replace(old, new, most)


class TooLong(Exception):
    """A word of more than :data:`MAX_WORD` characters."""


def _short(word: str) -> str:
    """A word. Raises TooLong for one that was doubled again and again."""
    if len(word) > MAX_WORD:
        raise TooLong
    return word


def ends_line(node: Node) -> bool:
    """Whether the text after a node is on another line, without a backslash at the line's end."""
    after = node.next_sibling
    whole = node.parent
    if after is None or whole is None:
        return False
    between = (whole.text or b"")[node.end_byte - whole.start_byte : after.start_byte - whole.start_byte]
    return b"\n" in between.replace(b"\\\n", b"")


def descendants(node: Node, wanted: Callable[[Node], bool]) -> Iterator[Node]:
    """The nodes in a node, itself included, that are ``wanted``."""
    left = [node]
    while left:
        each = left.pop()
        if wanted(each):
            yield each
        left += reversed(each.children)


def names_of(assignments: Iterable[Node]) -> list[str]:
    """The variables that are assigned."""
    return [text_of(node) for each in assignments if (node := each.child_by_field_name("name")) is not None]


def elements_of(name: str, words: Sequence[str]) -> dict[str, list[str]]:
    """The elements of an array whose words have keys, ``([8b]=32 [70b]=80)``; empty for other arrays."""
    pairs = [re.fullmatch(r"\[([^\]]*)\]=(.*)", word, re.DOTALL) for word in words]
    return {f"{name}[{pair[1]}]": [pair[2]] for pair in pairs if pair} if all(pairs) else {}
