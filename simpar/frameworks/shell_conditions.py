"""Whether the test of a shell script holds, as far as the script alone decides it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from simpar.frameworks.shell_words import UNKNOWN, Variables, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_QUOTED = ("string", "raw_string", "ansi_c_string", "translated_string")
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-gt": int.__gt__, "-ge": int.__ge__, "-lt": int.__lt__, "-le": int.__le__,
}  # fmt: skip


def holds(node: Node, variables: Variables) -> bool | None:
    """Whether a test holds; None if only running would tell."""
    if node.type == "parenthesized_expression":
        return holds(node.named_children[0], variables)
    if node.type == "unary_expression":
        return _holds_of_one(node, variables)
    if node.type != "binary_expression":
        word = value_in_test(node, variables)
        return None if word is None else bool(word)
    return _holds_of_several(list(_in_order(node)), variables)


def _in_order(node: Node) -> Iterator[Node]:
    """Operands and operators of a test in their order: the grammar binds ``=`` less closely than ``&&`` and ``||``."""
    if node.type != "binary_expression":
        yield node
        return
    for name in ("left", "operator", "right"):
        if (child := node.child_by_field_name(name)) is not None:
            yield from _in_order(child)


def _holds_of_several(parts: list[Node], variables: Variables) -> bool | None:
    """Whether operands with operators between them hold, which are joined by ``||``, then by ``&&``."""
    for sign in ("||", "&&"):
        at = next((at for at in range(len(parts) - 2, 0, -2) if text_of(parts[at]) == sign), None)
        if at is not None:
            both = (_holds_of_several(each, variables) for each in (parts[:at], parts[at + 1 :]))
            return _joined(sign == "&&", *both)
    if len(parts) == 1:
        return holds(parts[0], variables)
    return _compared(text_of(parts[1]), parts[0], parts[2], variables) if len(parts) == 3 else None


def _holds_of_one(node: Node, variables: Variables) -> bool | None:
    operator = next((text_of(child) for child in node.children if child.type in ("!", "test_operator")), "")
    if operator == "!":
        inner = holds(node.named_children[-1], variables)
        return None if inner is None else not inner
    word = value_in_test(node.named_children[-1], variables)
    if word is None or operator not in ("-z", "-n"):
        return None
    return bool(word) is (operator == "-n")


def _compared(operator: str, left: Node, right: Node, variables: Variables) -> bool | None:
    first, second = value_in_test(left, variables), value_in_test(right, variables)
    if first is None or second is None:
        return None
    if operator in ("=", "==", "!="):
        same = first == second if right.type in _QUOTED else fnmatchcase(first, second)
        return same is (operator != "!=")
    numbers = [variables.arithmetic(word) for word in (first, second)]
    if operator not in COMPARISONS or numbers[0] is None or numbers[1] is None:
        return None
    return COMPARISONS[operator](numbers[0], numbers[1])


def value_in_test(node: Node, variables: Variables) -> str | None:
    """A word of a test, with unset variables empty; None if only running would tell."""
    text = text_of(node)
    if node.type == "binary_expression":  # -a and -o, whose precedence is ambiguous
        return None
    if (name := re.fullmatch(r'"?\$\{?(\w+)\}?"?', text)) and not variables.is_set(name.group(1)):
        return ""
    if text in ("$#", '"$#"') and "#" not in variables:
        return "0"
    word = " ".join(variables.value(node))
    return None if UNKNOWN.search(word) else word


def _joined(both: bool, left: bool | None, right: bool | None) -> bool | None:
    """``and`` or ``or`` of two results that may be unknown."""
    if (not both) in (left, right):
        return not both
    return None if None in (left, right) else both
