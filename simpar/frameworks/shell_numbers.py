"""Arithmetic of a shell script, evaluated without running it."""

import ast
import operator
import re
from collections.abc import Callable, Mapping

MAX_DIGITS = 18
_NAME = re.compile(r"\$\{?(\w+)\}?|\b([A-Za-z_]\w*)")
_SIGNS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.Div: operator.floordiv,
}  # fmt: skip
_ORDERS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def number(text: str, variables: Mapping[str, str]) -> int | None:
    """The integer value of an expression of +, -, *, /, %, comparisons and names; None if it is not known."""

    def put_in(match: re.Match[str]) -> str:
        return variables.get(match.group(1) or match.group(2), "?")

    try:
        return _value(ast.parse(_NAME.sub(put_in, text).strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 10**MAX_DIGITS:
        return int(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        result = _SIGNS[type(node.op)](_value(node.left), _value(node.right))
        if abs(result) < 10**MAX_DIGITS:
            return result
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _ORDERS:
        return int(_ORDERS[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    raise ValueError
