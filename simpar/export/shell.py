"""What a shell script would start: its commands with variables, arrays and decided conditions put in.

Nothing is run. A script is read as in an empty environment without arguments: ``${NAME:-default}`` is the default, a
variable that the script does not set stays in the words as ``${NAME}``, and so does what only running would tell, such
as ``$(command)``. Of a condition that the script alone does not decide no branch is read, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from simpar.errors import UserError
from simpar.export.shell_numbers import number

if TYPE_CHECKING:
    from tree_sitter import Node

    Said = list[str] | None

MAX_DEPTH = 30
MAX_STEPS = 100_000
UNKNOWN = re.compile(r"\$[({\w@*#?!]")
OPTION = re.compile(r"--[a-zA-Z][\w-]*")
_IN_TEXT = re.compile(r"(?<!\\)\$(?:\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|(\w+))")
_EXPANSION = re.compile(r"(\w+)(?:\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)
_QUOTED = ("string", "raw_string", "ansi_c_string", "translated_string")
_NESTED = (
    "program", "subshell", "do_group", "pipeline", "else_clause", "variable_assignments",
)  # fmt: skip
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-gt": int.__gt__, "-ge": int.__ge__, "-lt": int.__lt__, "-le": int.__le__,
}  # fmt: skip


class Script:
    """A script as it would run: ``commands`` are the words of each, in order; ``notes`` say what was not read.

    ``variables`` have a list of words for every name; one that only running would tell has its own name, ``${NAME}``.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.commands: list[list[str]] = []
        self.variables: dict[str, list[str]] = {}
        self.notes: list[str] = []
        self.functions: dict[str, Node] = {}
        self.steps = self.depth = 0
        self.run(text)

    def run(self, text: str) -> None:
        """Read a text with what was read before. Raises UserError where it is no shell text."""
        from tree_sitter import Language, Parser
        from tree_sitter_bash import language

        root = Parser(Language(language())).parse(text.encode()).root_node
        if root.has_error:
            wrong = next(_descendants(root, lambda node: node.is_error or node.is_missing), root)
            raise UserError(f"{self.source}:{wrong.start_point.row + 1}: not shell text")
        self._statement(root)

    def _statement(self, node: Node) -> bool | None:
        """Read a statement; whether it succeeds, None where only running it would tell."""
        self.steps += 1
        if self.steps > MAX_STEPS or self.depth > MAX_DEPTH:
            raise UserError(f"{self.source}: a script that goes on without end")
        kind = node.type
        reader = _READ.get(kind)
        if reader is None:
            return self._all(node.named_children) if kind in _NESTED else None
        self.depth += 1
        try:
            return reader(self, node)
        finally:
            self.depth -= 1

    def _all(self, nodes: Sequence[Node]) -> bool | None:
        done: bool | None = True
        for node in nodes:
            done = self._statement(node)
        return done

    def _variable_assignment(self, node: Node) -> bool:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or name.type != "variable_name":
            return True  # one element of an array
        words = [""] if value is None else self._value(value)
        adds = any(child.type == "+=" for child in node.children)
        self._set(_text(name), words, adds=adds, is_list=value is not None and value.type == "array")
        return True

    def _set(self, name: str, words: list[str], *, adds: bool = False, is_list: bool = False) -> None:
        old = self.variables.get(name, []) if adds else []
        if not adds or is_list:
            self.variables[name] = [*old, *words]
        else:
            self.variables[name] = ["".join([*old[:1], *words]), *old[1:]]

    def _declaration_command(self, node: Node) -> bool:
        self._all([child for child in node.named_children if child.type == "variable_assignment"])
        return True

    def _function_definition(self, node: Node) -> bool:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[_text(name)] = body
        return True

    def _command(self, node: Node) -> bool | None:
        parts = [child for child in node.named_children if "redirect" not in child.type]
        before = [part for part in parts if part.type == "variable_assignment"]
        words = [word for part in parts if part.type != "variable_assignment" for word in self._fields(part)]
        if not words:
            self._all(before)
            return True
        if words[0] in self.functions:
            return self._statement(self.functions[words[0]])
        if words[0] in ("source", "."):
            self.notes.append(f"{' '.join(words)}: another file, not read.")
        self.commands.append(words)
        return {"true": True, ":": True, "false": False}.get(words[0])

    def _redirected_statement(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        done = self._statement(body) if body is not None else None
        for here in _descendants(node, lambda child: child.type == "heredoc_redirect"):
            self._here_document(here)
        return done

    def _here_document(self, node: Node) -> None:
        parts = {child.type: child for child in node.children}
        if not {"heredoc_start", "heredoc_body"} <= set(parts):
            return
        start, text = parts["heredoc_start"], parts["heredoc_body"]
        is_literal = _text(start)[:1] in "'\"\\"
        words = _text(text) if is_literal else self._put_in(_text(text)).replace("\\$", "$")
        self.commands.append([word for line in words.splitlines() for word in _split(line)])

    def _list(self, node: Node) -> bool | None:
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((child.type for child in node.children if child.type in ("&&", "||")), ";")
        done = self._statement(left)
        if done is (operator == "||"):
            return done
        if done is None and operator == "||":
            return None  # what stands in for a failure
        return self._statement(right)

    def _negated_command(self, node: Node) -> bool | None:
        done = self._statement(node.named_children[0])
        return None if done is None else not done

    def _if_statement(self, node: Node) -> bool | None:
        condition: list[Node] = []
        body: list[Node] = []
        further: list[Node] = []
        has_begun = False
        for child in node.children:
            has_begun |= child.type == "then"
            if child.type in ("elif_clause", "else_clause"):
                further.append(child)
            elif child.is_named:
                (body if has_begun else condition).append(child)
        decided = self._all(condition)
        if decided is None:
            return self._undecided(node, " ".join(_text(part) for part in condition))
        if decided:
            return self._all(body)
        for clause in further:
            if clause.type == "else_clause":
                return self._statement(clause)
            then = next(i for i, child in enumerate(clause.children) if child.type == "then")
            asked = [child for child in clause.children[:then] if child.is_named]
            decided = self._all(asked)
            if decided is None:
                return self._undecided(node, " ".join(_text(part) for part in asked))
            if decided:
                return self._all([child for child in clause.children[then:] if child.is_named])
        return True

    def _case_statement(self, node: Node) -> bool | None:
        value = node.child_by_field_name("value")
        word = None if value is None else self._tested(value)
        if word is None:
            return self._undecided(node, f"case {'' if value is None else _text(value)}")
        for item in node.named_children:
            patterns = item.children_by_field_name("value") if item.type == "case_item" else []
            if any(fnmatchcase(word, _text(pattern).strip("\"'")) for pattern in patterns):
                return self._all([child for child in item.named_children if child not in patterns])
        return True

    def _for_statement(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if name is None or body is None:
            return None
        for word in [word for part in node.children_by_field_name("value") for word in self._fields(part)]:
            self._set(_text(name), [word])
            self._statement(body)
        return True

    def _loop(self, node: Node) -> bool | None:
        """A loop whose condition fails at once is read as nothing; of others nobody knows when they end."""
        condition = node.child_by_field_name("condition")
        if node.type == "while_statement" and condition is not None and self._statement(condition) is False:
            return True
        return self._undecided(node, _text(node).splitlines()[0])

    def _undecided(self, node: Node, condition: str) -> bool | None:
        """Variables that branches set are as good as not set; arguments that they add are listed."""
        assigned = list(_descendants(node, lambda child: child.type == "variable_assignment"))
        for each in assigned:
            name = each.child_by_field_name("name")
            if name is not None and not any(child.type == "+=" for child in each.children):
                self.variables[_text(name)] = [f"${{{_text(name)}}}"]
        found = list(dict.fromkeys(flag for each in assigned for flag in OPTION.findall(_text(each))))
        if found:
            line, short = node.start_point.row + 1, " ".join(condition.split())[:60]
            self.notes.append(
                f"Line {line}: the file alone does not decide {short}: not read: {', '.join(found)}."
            )
        return None

    def _compound_statement(self, node: Node) -> bool | None:
        if node.children[0].type != "((":
            return self._all(node.named_children)
        value = self._arithmetic(_text(node).removeprefix("((").removesuffix("))"))
        return None if value is None else bool(value)

    def _test_command(self, node: Node) -> bool | None:
        inner = node.named_children
        return self._holds(inner[0]) if len(inner) == 1 else None

    def _holds(self, node: Node) -> bool | None:
        if node.type == "parenthesized_expression":
            return self._holds(node.named_children[0])
        if node.type == "unary_expression":
            return self._holds_of_one(node)
        if node.type != "binary_expression":
            word = self._tested(node)
            return None if word is None else bool(word)
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        sign = node.child_by_field_name("operator")
        if left is None or right is None or sign is None:
            return None
        if (operator := _text(sign)) in ("&&", "||"):
            return _joined(operator == "&&", self._holds(left), self._holds(right))
        return self._compared(operator, left, right)

    def _holds_of_one(self, node: Node) -> bool | None:
        operator = next((_text(child) for child in node.children if child.type in ("!", "test_operator")), "")
        if operator == "!":
            inner = self._holds(node.named_children[-1])
            return None if inner is None else not inner
        word = self._tested(node.named_children[-1])
        if word is None or operator not in ("-z", "-n"):
            return None
        return bool(word) is (operator == "-n")

    def _compared(self, operator: str, left: Node, right: Node) -> bool | None:
        first, second = self._tested(left), self._tested(right)
        if first is None or second is None:
            return None
        if operator in ("=", "==", "!="):
            same = first == second if right.type in _QUOTED else fnmatchcase(first, second)
            return same is (operator != "!=")
        numbers = [self._arithmetic(word) for word in (first, second)]
        if operator not in COMPARISONS or numbers[0] is None or numbers[1] is None:
            return None
        return COMPARISONS[operator](numbers[0], numbers[1])

    def _tested(self, node: Node) -> str | None:
        """A word of a test, where what is not set is empty; None where only running would tell."""
        text = _text(node)
        if node.type == "binary_expression":  # -a and -o, whose order nobody should rely on
            return None
        if (name := re.fullmatch(r'"?\$\{?(\w+)\}?"?', text)) and name.group(1) not in self.variables:
            return ""
        if text in ("$#", '"$#"'):
            return "0"
        word = " ".join(self._value(node))
        return None if UNKNOWN.search(word) else word

    def _arithmetic(self, text: str) -> int | None:
        return number(text, {name: words[0] for name, words in self.variables.items() if words})

    def _value(self, node: Node) -> list[str]:
        """The words of an assignment's right side; one word where it is no array."""
        if node.type == "array":
            return [word for child in node.named_children for word in self._fields(child)]
        return [" ".join(self._fields(node, is_split=False))]

    def _fields(self, node: Node, *, is_split: bool = True) -> list[str]:
        """The words that a word of the script becomes."""
        kind, text = node.type, _text(node)
        if kind in ("comment", "heredoc_body"):
            return []
        if kind == "raw_string":
            return [text[1:-1]]
        if kind == "string":
            return self._string(node)
        if kind in ("simple_expansion", "expansion"):
            found = self._expanded(text.removeprefix("$").removeprefix("{").removesuffix("}"), text)
            return [part for word in found for part in word.split()] if is_split else [" ".join(found)]
        if kind == "arithmetic_expansion":
            value = self._arithmetic(text.removeprefix("$((").removesuffix("))"))
            return [text if value is None else str(value)]
        if kind in ("concatenation", "command_name"):
            return self._concatenated(node, is_split=is_split)
        return [text if kind in ("command_substitution", "process_substitution") else _unescaped(text)]

    def _concatenated(self, node: Node, *, is_split: bool) -> list[str]:
        words: list[str] = []
        for child in node.children:
            first, *more = self._fields(child, is_split=is_split) or [""]
            words = [*words[:-1], (words[-1] if words else "") + first, *more]
        return words

    def _string(self, node: Node) -> list[str]:
        text = _text(node)[1:-1].replace("\\\n", "")
        if whole := re.fullmatch(r"\$\{(\w+)\[@\]\}", text):
            return self._expanded(f"{whole.group(1)}[@]", text)
        return [re.sub(r'\\(["$`\\])', r"\1", self._put_in(text))]

    def _put_in(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            return " ".join(self._expanded(match.group(1) or match.group(2), match.group(0)))

        return _IN_TEXT.sub(value, text)

    def _expanded(self, inside: str, whole: str) -> list[str]:
        """Words of ``${inside}``; the text itself where they are not known."""
        match = _EXPANSION.fullmatch(inside)
        if match is None:
            return [whole]
        name, operator, default = match.groups()
        if name in self.variables:
            words = self.variables[name]
            if operator is None or not operator.startswith(":") or any(words):
                return words
        if operator is None:
            return [f"${{{name}}}"]
        words = [self._put_in(default.strip().strip("\"'"))]
        if "=" in operator:
            self.variables[name] = words
        return words


_READ: dict[str, Callable[[Script, Node], bool | None]] = {
    "variable_assignment": Script._variable_assignment, "declaration_command": Script._declaration_command,
    "function_definition": Script._function_definition, "command": Script._command,
    "redirected_statement": Script._redirected_statement, "list": Script._list,
    "negated_command": Script._negated_command, "if_statement": Script._if_statement,
    "case_statement": Script._case_statement, "for_statement": Script._for_statement,
    "while_statement": Script._loop, "c_style_for_statement": Script._loop, "test_command": Script._test_command,
    "compound_statement": Script._compound_statement,
}  # fmt: skip


def _joined(both: bool, left: bool | None, right: bool | None) -> bool | None:
    """``and`` or ``or`` of two answers of which each may be unknown."""
    if (not both) in (left, right):
        return not both
    return None if None in (left, right) else both


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))


def _split(line: str) -> list[str]:
    return line.replace("\\", " ").split()


def _descendants(node: Node, wanted: Callable[[Node], bool]) -> Iterator[Node]:
    if wanted(node):
        yield node
    for child in node.children:
        yield from _descendants(child, wanted)
