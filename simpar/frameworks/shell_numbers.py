"""Arithmetic of a shell script, evaluated without running it."""

import ast
import operator
import re
from collections.abc import Callable, Mapping

MAX_DIGITS = 18
_NAME = re.compile(r"\$\{?(\w+)\}?|\b([A-Za-z_]\w*)")
_SIGNS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.Div: operator.floordiv, ast.Pow: lambda base, times: _power(base, times),
}  # fmt: skip
_ORDERS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip

_UNKNOWN = "@"  # no expression has it
_WORDS = ((re.compile(r"&&"), " and "), (re.compile(r"\|\|"), " or "), (re.compile(r"!(?!=)"), " not "))


def number(text: str, variables: Mapping[str, str]) -> int | None:
    """The integer value of an expression of + - * / % **, comparisons, && || ! ?: and names; None if it is unknown."""

    def put_in(match: re.Match[str]) -> str:
        return variables.get(match.group(1) or match.group(2), _UNKNOWN)

    try:
        return _value(ast.parse(_as_python(_NAME.sub(put_in, text).strip()), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _as_python(text: str) -> str:
    """The expression with Python's words for logical operators and for choices, but for those in inner parentheses."""
    for sign, word in _WORDS:
        text = sign.sub(word, text)
    text = text.strip()
    chosen, rest = _split(text, "?")
    if rest is None:
        is_whole = "?" in text and text.startswith("(") and text.endswith(")")
        return f"({_as_python(text[1:-1])})" if is_whole else text
    yes, no = _split(rest, ":")
    if no is None:
        raise ValueError
    return f"({_as_python(yes)}) if ({chosen.strip()}) else ({_as_python(no)})"


def _split(text: str, sign: str) -> tuple[str, str | None]:
    """What is before and behind the first ``sign`` outside of parentheses and inner choices; None if there is none."""
    depth = choices = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == sign and not depth and not choices:
            return text[:at], text[at + 1 :]
        choices += not depth and ((letter == "?") - (letter == ":"))
    return text, None


def _power(base: int, times: int) -> int:
    """A power. Raises ValueError for one that no script's number has."""
    if not 0 <= times < 64:
        raise ValueError
    return int(base**times)


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 10**MAX_DIGITS:
        return int(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return int(not _value(node.operand))
    if isinstance(node, ast.BoolOp):
        values = [_value(each) for each in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test) else node.orelse)
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        result = _SIGNS[type(node.op)](_value(node.left), _value(node.right))
        if abs(result) < 10**MAX_DIGITS:
            return result
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _ORDERS:
        return int(_ORDERS[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    raise ValueError
