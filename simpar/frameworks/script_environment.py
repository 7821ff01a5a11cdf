"""Variables that a script in Python sets for itself, before it loads what reads them."""

import ast
from collections.abc import Iterator, Mapping

from simpar.frameworks.script_statements import trained_at
from simpar.frameworks.script_values import ScriptNames, truth_of, value_of

_PUTS = ("putenv", "setenv")


def variables_of_code(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Variables that code sets in ``os.environ``, in the place of those ``given``; {} where it is no Python.

    Values that only running tells are left out, and so is what a condition decides.
    """
    if "environ" not in text and not any(each in text for each in _PUTS):
        return {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    result: dict[str, str] = {}
    ends = trained_at(tree)
    for name, value, is_default in _set_in(tree.body):
        if name.lineno > ends:
            continue
        key, said = _told(name), _told(value)
        if key is not None and said is not None and not (is_default and (key in given or key in result)):
            result[key] = said
    return result


def _told(node: ast.expr) -> str | None:
    """The text of a value that the code writes out; None for all else."""
    value = value_of(node, ScriptNames())
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _set_in(body: list[ast.stmt]) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """(Name, value, whether a value that is there stays) of variables that statements set, one after the other."""
    for one in body:
        if isinstance(one, ast.If) and not truth_of(one.test, ScriptNames()):
            continue
        if isinstance(one, ast.Assign):
            named = (each for each in one.targets if isinstance(each, ast.Subscript) and _is_environ(each.value))
            yield from ((each.slice, one.value, False) for each in named)
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            yield from _set_by_call(one.value)
        for name in ("body", "finalbody"):
            yield from _set_in(getattr(one, name, []))


def _is_environ(node: ast.expr) -> bool:
    """Whether an expression is ``os.environ`` or ``environ``."""
    return ast.unparse(node) in ("os.environ", "environ")


def _set_by_call(call: ast.Call) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """What ``environ.setdefault``, ``environ.update`` and ``os.putenv`` set."""
    if not isinstance(call.func, ast.Attribute):
        return
    method, of, given = call.func.attr, call.func.value, call.args
    if method in _PUTS and len(given) == 2:
        yield given[0], given[1], False
    if not _is_environ(of):
        return
    if method == "setdefault" and len(given) == 2:
        yield given[0], given[1], True
    if method == "update":
        for each in given:
            if isinstance(each, ast.Dict):
                yield from ((key, value, False) for key, value in zip(each.keys, each.values, strict=True) if key)
        for keyword in call.keywords:
            if keyword.arg:
                yield ast.copy_location(ast.Constant(keyword.arg), keyword.value), keyword.value, False
