"""The commands that a shell script would start, with variables, arrays and decided conditions substituted.

Nothing is run. A script is read as in an empty environment without arguments: ``${NAME:-default}`` is the default, a
variable that the script does not set stays in the words as ``${NAME}``, and so does anything that only running would
tell, such as ``$(command)``. A function is read with the arguments of its call. If the script alone does not decide a
condition, none of its branches is read, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING

from simpar.errors import UserError
from simpar.frameworks.shell_words import UNKNOWN, Variables, is_argument, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 30
MAX_STEPS = 100_000
OPTION = re.compile(r"--[a-zA-Z][\w-]*")
_WITH_VALUE = "adinNptu"
"""Options of ``read`` that take a value."""
_QUOTED = ("string", "raw_string", "ansi_c_string", "translated_string")
_NESTED = ("program", "subshell", "do_group", "pipeline", "else_clause", "variable_assignments")
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-gt": int.__gt__, "-ge": int.__ge__, "-lt": int.__lt__, "-le": int.__le__,
}  # fmt: skip


class Script:
    """A script as it would run: ``commands`` are the words of each, in order; ``notes`` tell what was not read.

    ``environments`` has the variables of every command: those that the script set by then, and those before its words.

    ``variables`` have a list of words for every name; a value that only running would tell is the name itself,
    ``${NAME}``. The arguments of a function exist while it is read: as ``1``, ``@`` and, if all are known, ``#``.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.variables = Variables()
        self.notes: list[str] = []
        self.functions: dict[str, Node] = {}
        self.outside: list[dict[str, list[str] | None]] = []  # hidden by each call
        self.steps = self.depth = 0
        self.run(text)

    def run(self, text: str) -> None:
        """Read a text, keeping what was read before. Raises UserError if it is not a shell script."""
        from tree_sitter import Language, Parser
        from tree_sitter_bash import language

        text = re.sub(r"\\[ \t]*\s*\Z", "\n", text)  # a line that goes on behind the end of the file
        root = Parser(Language(language())).parse(text.encode()).root_node
        if root.has_error:
            wrong = next(_descendants(root, lambda node: node.is_error or node.is_missing), root)
            raise UserError(f"{self.source}:{wrong.start_point.row + 1}: not shell text")
        self._statement(root)

    def _statement(self, node: Node) -> bool | None:
        """Read a statement; returns whether it succeeds, None if only running would tell."""
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
            return True  # assigns one element of an array
        words = [""] if value is None else self.variables.value(value)
        adds = any(child.type == "+=" for child in node.children)
        self._set(text_of(name), words, adds=adds, is_list=value is not None and value.type == "array")
        return True

    def _set(self, name: str, words: list[str], *, adds: bool = False, is_list: bool = False) -> None:
        old = self.variables.get(name, []) if adds else []
        if not adds or is_list:
            self.variables[name] = [*old, *words]
        else:
            self.variables[name] = ["".join([*old[:1], *words]), *old[1:]]

    def _declaration_command(self, node: Node) -> bool:
        is_own = self.outside and node.children[0].type in ("local", "declare", "typeset")
        for child in node.named_children:
            name = child.child_by_field_name("name") if child.type == "variable_assignment" else child
            hidden = self.variables.get(text_of(name)) if name is not None else None
            if child.type == "variable_assignment":
                self._statement(child)
            if is_own and name is not None and name.type == "variable_name":
                self.outside[-1].setdefault(text_of(name), hidden)
        return True

    def _function_definition(self, node: Node) -> bool:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[text_of(name)] = body
        return True

    def _command(self, node: Node) -> bool | None:
        parts = [child for child in node.named_children if "redirect" not in child.type]
        before = [part for part in parts if part.type == "variable_assignment"]
        if len(before) == len(parts):
            return self._all(before)
        lines = [i + 1 for i, part in enumerate(before) if _ends_line(part)]
        own = lines[-1] if lines else 0  # the grammar gives the command the preceding lines' assignments, too
        self._all(before[:own])
        words = [word for part in parts[len(before) :] for word in self.variables.words(part)]
        if not words:
            return True
        if words[0] in self.functions:
            return self._call(self.functions[words[0]], words[1:], before[own:])
        if words[0] in _BUILT_IN:
            return _BUILT_IN[words[0]](self, words[1:], self._input(node, before[own:]))
        if words[0] in ("source", "."):
            self.notes.append(f"{' '.join(words)}: another file, not read.")
        self._launched(words, before[own:])
        return {"true": True, ":": True, "false": False}.get(words[0])

    def _launched(self, words: list[str], given: Sequence[Node] = ()) -> None:
        """Keep a command; ``given`` are the variables before its words, for it alone."""
        known = self.variables
        names = [text_of(node) for each in given if (node := each.child_by_field_name("name")) is not None]
        outside = {name: known.get(name) for name in names}
        self._all(given)
        environment = {name: " ".join(words) for name, words in known.items() if not is_argument(name)}
        for name, hidden in outside.items():
            if hidden is None:
                known.pop(name, None)
            else:
                known[name] = hidden
        while words and words[0] == "env":
            own = list(takewhile(lambda word: "=" in word, words[1:]))
            environment |= dict(word.split("=", 1) for word in own)
            words = words[1 + len(own) :]
        self.commands.append(words)
        self.environments.append(environment)

    def _call(self, body: Node, words: list[str], given: Sequence[Node]) -> bool | None:
        """Read a function's body with its arguments; afterwards these and its local variables are gone.

        ``given`` are variables that are set for this call only.
        """
        arguments = {name: words for name, words in self.variables.items() if is_argument(name)}
        names = [text_of(node) for each in given if (node := each.child_by_field_name("name")) is not None]
        self.outside.append({name: self.variables.get(name) for name in names})
        self._all(given)
        self.variables.bind(words)
        try:
            return self._statement(body)
        finally:
            for name, hidden in self.outside.pop().items():
                if hidden is None:
                    self.variables.pop(name, None)
                else:
                    self.variables[name] = hidden
            self.variables.unbind()
            self.variables |= arguments

    def _built_in_set(self, words: list[str], _: str | None) -> bool:
        if "--" in words:
            self.variables.bind(words[words.index("--") + 1 :])
        return True

    def _built_in_shift(self, words: list[str], _: str | None) -> bool:
        count = words[0] if words else "1"
        if "@" in self.variables and count.isdigit():
            self.variables.bind(self.variables["@"][int(count) :])
        return True

    def _built_in_let(self, words: list[str], _: str | None) -> bool | None:
        value: int | None = None
        for word in words:
            value = self.variables.calculate(word)
        return None if value is None else bool(value)

    def _built_in_read(self, words: list[str], text: str | None) -> bool | None:
        """Variables from a here-document or a here-string; other input is unknown."""
        names: list[str] = []
        whole = is_list = False
        rest = iter(words)
        for word in rest:
            if not word.startswith("-") or len(word) < 2:
                names.append(word)
                continue
            is_list |= "a" in word
            if word[-1] in _WITH_VALUE:
                value = next(rest, "")
                whole |= word[-1] == "d" and value == ""
                names += [value] if word[-1] == "a" else []
        if text is None:
            self.variables |= {name: [f"${{{name}}}"] for name in names}
            return None
        read = text if whole else text.partition("\n")[0]
        if is_list:
            self.variables |= {name: read.split() for name in names}
        else:
            result = read.strip().split(None, len(names) - 1)
            self.variables |= {name: [word] for name, word in zip_longest(names, result, fillvalue="")}
        return not whole  # the text ends before the delimiter

    def _input(self, node: Node, given: Sequence[Node]) -> str | None:
        """The input of a command, if it is written beside it; None if not, or if it is split at other characters."""
        if any(text_of(each).startswith("IFS=") and each.child_by_field_name("value") for each in given):
            return None
        parent = node.parent
        around = parent.named_children if parent is not None and parent.type == "redirected_statement" else []
        for child in (*node.named_children, *around):
            if child.type == "heredoc_redirect":
                return self._here_text(child)
            if child.type == "herestring_redirect":
                return " ".join(self.variables.value(child.named_children[0]))
        return None

    def _redirected_statement(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        done = self._statement(body) if body is not None else None
        name = body.child_by_field_name("name") if body is not None else None
        if name is None or text_of(name) not in _BUILT_IN:
            for here in _descendants(node, lambda child: child.type == "heredoc_redirect"):
                words = self._here_text(here) or ""
                self._launched([word for line in words.splitlines() for word in _split(line)])
        return done

    def _here_text(self, node: Node) -> str | None:
        parts = {child.type: child for child in node.children}
        if not {"heredoc_start", "heredoc_body"} <= set(parts):
            return None
        start, text = parts["heredoc_start"], parts["heredoc_body"]
        is_literal = text_of(start)[:1] in "'\"\\"
        return text_of(text) if is_literal else self.variables.put_in(text_of(text)).replace("\\$", "$")

    def _list(self, node: Node) -> bool | None:
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((child.type for child in node.children if child.type in ("&&", "||")), ";")
        done = self._statement(left)
        if done is (operator == "||"):
            return done
        if done is None and operator == "||":
            return None  # the alternative after a failure
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
            return self._undecided(node, " ".join(text_of(part) for part in condition))
        if decided:
            return self._all(body)
        for clause in further:
            if clause.type == "else_clause":
                return self._statement(clause)
            then = next(i for i, child in enumerate(clause.children) if child.type == "then")
            asked = [child for child in clause.children[:then] if child.is_named]
            decided = self._all(asked)
            if decided is None:
                return self._undecided(node, " ".join(text_of(part) for part in asked))
            if decided:
                return self._all([child for child in clause.children[then:] if child.is_named])
        return True

    def _case_statement(self, node: Node) -> bool | None:
        value = node.child_by_field_name("value")
        word = None if value is None else self._tested(value)
        if word is None:
            return self._undecided(node, f"case {'' if value is None else text_of(value)}")
        for item in node.named_children:
            patterns = item.children_by_field_name("value") if item.type == "case_item" else []
            if any(fnmatchcase(word, text_of(pattern).strip("\"'")) for pattern in patterns):
                return self._all([child for child in item.named_children if child not in patterns])
        return True

    def _for_statement(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if name is None or body is None:
            return None
        parts = node.children_by_field_name("value")
        words = [word for part in parts for word in self.variables.words(part)]
        if not any(child.type == "in" for child in node.children):
            words = self.variables.get("@", [])
        for word in words:
            self._set(text_of(name), [word])
            self._statement(body)
        return True

    def _loop(self, node: Node) -> bool | None:
        """A loop whose condition fails at once is empty; of others it is not known when they end."""
        condition = node.child_by_field_name("condition")
        if node.type == "while_statement" and condition is not None and self._statement(condition) is False:
            return True
        return self._undecided(node, text_of(node).splitlines()[0])

    def _undecided(self, node: Node, condition: str) -> bool | None:
        """Variables that branches set become unknown; arguments that they add are listed."""
        assigned = list(_descendants(node, lambda child: child.type == "variable_assignment"))
        for each in assigned:
            name = each.child_by_field_name("name")
            if name is not None and not any(child.type == "+=" for child in each.children):
                self.variables[text_of(name)] = [f"${{{text_of(name)}}}"]
        flags = list(dict.fromkeys(flag for each in assigned for flag in OPTION.findall(text_of(each))))
        if flags:
            line, short = node.start_point.row + 1, " ".join(condition.split())[:60]
            self.notes.append(f"Line {line}: the file alone does not decide {short}: not read: {', '.join(flags)}.")
        return None

    def _compound_statement(self, node: Node) -> bool | None:
        if node.children[0].type != "((":
            return self._all(node.named_children)
        value = self.variables.calculate(text_of(node).removeprefix("((").removesuffix("))"))
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
        if (operator := text_of(sign)) in ("&&", "||"):
            return _joined(operator == "&&", self._holds(left), self._holds(right))
        return self._compared(operator, left, right)

    def _holds_of_one(self, node: Node) -> bool | None:
        operator = next((text_of(child) for child in node.children if child.type in ("!", "test_operator")), "")
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
        numbers = [self.variables.arithmetic(word) for word in (first, second)]
        if operator not in COMPARISONS or numbers[0] is None or numbers[1] is None:
            return None
        return COMPARISONS[operator](numbers[0], numbers[1])

    def _tested(self, node: Node) -> str | None:
        """A word of a test, with unset variables empty; None if only running would tell."""
        text = text_of(node)
        if node.type == "binary_expression":  # -a and -o, whose precedence is ambiguous
            return None
        if (name := re.fullmatch(r'"?\$\{?(\w+)\}?"?', text)) and name.group(1) not in self.variables:
            return ""
        if text in ("$#", '"$#"') and "#" not in self.variables:
            return "0"
        word = " ".join(self.variables.value(node))
        return None if UNKNOWN.search(word) else word


_READ: dict[str, Callable[[Script, Node], bool | None]] = {
    "variable_assignment": Script._variable_assignment, "declaration_command": Script._declaration_command,
    "function_definition": Script._function_definition, "command": Script._command,
    "redirected_statement": Script._redirected_statement, "list": Script._list,
    "negated_command": Script._negated_command, "if_statement": Script._if_statement,
    "case_statement": Script._case_statement, "for_statement": Script._for_statement,
    "while_statement": Script._loop, "c_style_for_statement": Script._loop, "test_command": Script._test_command,
    "compound_statement": Script._compound_statement,
}  # fmt: skip


_BUILT_IN: dict[str, Callable[[Script, list[str], str | None], bool | None]] = {
    "set": Script._built_in_set, "shift": Script._built_in_shift, "let": Script._built_in_let,
    "read": Script._built_in_read,
}  # fmt: skip
"""Shell built-ins that set variables; they take their words and their input."""


def _ends_line(node: Node) -> bool:
    """Whether the text after a node is on another line, without a backslash at the line's end."""
    after = node.next_sibling
    whole = node.parent
    if after is None or whole is None:
        return False
    between = (whole.text or b"")[node.end_byte - whole.start_byte : after.start_byte - whole.start_byte]
    return b"\n" in between.replace(b"\\\n", b"")


def _joined(both: bool, left: bool | None, right: bool | None) -> bool | None:
    """``and`` or ``or`` of two results that may be unknown."""
    if (not both) in (left, right):
        return not both
    return None if None in (left, right) else both


def _split(line: str) -> list[str]:
    return line.replace("\\", " ").split()


def _descendants(node: Node, wanted: Callable[[Node], bool]) -> Iterator[Node]:
    if wanted(node):
        yield node
    for child in node.children:
        yield from _descendants(child, wanted)
