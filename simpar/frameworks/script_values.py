"""What expressions of a script come to without running it: literals, names, attributes of settings, and simple calls.

Names are followed that a file assigns once, or several times in a row outside of functions; parameters of functions
that are called once; fields of classes and namespaces that hold settings; and arguments of the command line, whose
flags go before their defaults.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from simpar.dataclass import dataclass

SUPPORTED = re.compile(r"bf(loat)?16_supported$")
"""Functions that ask the device whether it has bf16."""
MOST_STEPS = 20
"""Names that one value may stand on."""
MOST_PARTS = 200_000
"""Parts of expressions that are worked out in a file."""
MOST_TEXT = 10_000
"""Characters of a text that is worked out."""
MOST = 2**53
"""Beyond it floats leave out whole numbers."""
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
             ast.Div: operator.truediv}  # fmt: skip
COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip
OF_TEXT = ("split", "lower", "upper", "strip", "replace")
OF_VALUES: Mapping[str, Callable[..., Any]] = {"int": int, "float": float, "str": str, "bool": bool, "list": list,
                                               "len": len, "min": min, "max": max, "tuple": list}  # fmt: skip
SETTINGS = ("SimpleNamespace", "Namespace", "dict")
"""Calls whose keywords are settings by name."""
CHANGES = ("update", "append", "extend", "pop", "setdefault", "insert", "remove")
"""Methods that change what a name stands for."""
OF_ITSELF = {"__name__": "__main__"}
"""Names that Python gives to a script."""


class Untold:
    """What only running tells, as the code writes it."""

    def __init__(self, node: ast.expr) -> None:
        self.node = node

    @property
    def text(self) -> str:
        """The expression."""
        return ast.unparse(self.node)


OF_DEVICE = Untold(ast.Constant("which 16 bits the device has"))


@dataclass(frozen=True)
class ScriptNames:
    """What a script's names stand for.

    ``once`` are those with one value; ``in_turn`` those that are assigned several times outside of functions, with the
    line of each; ``fields`` the settings that a name holds. ``functions`` are the lines of functions, loops and
    branches, in which the latter are not followed. ``asked`` collects the settings and parameters that were asked for,
    ``spent`` counts what was worked out.
    """

    once: Mapping[str, ast.expr] = field(default_factory=dict)
    in_turn: Mapping[str, tuple[tuple[int, ast.expr], ...]] = field(default_factory=dict)
    fields: Mapping[str, Mapping[str, ast.expr]] = field(default_factory=dict)
    functions: tuple[tuple[int, int], ...] = ()
    asked: set[str] = field(default_factory=set)
    spent: list[int] = field(default_factory=lambda: [0])

    def of_name(self, node: ast.Name) -> ast.expr | None:
        """What a name stands for where it is written; None if only running tells."""
        self.asked.add(node.id)
        if node.id in self.once:
            return self.once[node.id]
        line = node.lineno
        if any(first <= line <= last for first, last in self.functions):
            return None
        earlier = [value for at, value in self.in_turn.get(node.id, ()) if at < line]
        return earlier[-1] if earlier else None


def known_of(
    tree: ast.Module,
    parsed: Mapping[str, Mapping[str, ast.expr]],
    given: Mapping[str, ast.expr],
    asked: Iterable[str] = (),
) -> ScriptNames:
    """What the names of a file stand for.

    ``parsed`` are arguments of the command line by the name that holds them, ``given`` parameters that are such, and
    ``asked`` those that were asked for before.
    """
    told: dict[str, list[tuple[int, ast.expr | None]]] = {name: [(0, value)] for name, value in given.items()}
    for name, line, value in (*_assignments(tree), *parameters_of(tree)):
        told.setdefault(name, []).append((line, value))
    outer = {id(each) for each in tree.body}
    apart = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.Try, ast.With)
    spans = tuple((node.lineno, node.end_lineno or node.lineno) for node in ast.walk(tree) if isinstance(node, apart))
    at_top = {each.lineno for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign) and id(each) in outer}
    once: dict[str, ast.expr] = {}
    in_turn: dict[str, tuple[tuple[int, ast.expr], ...]] = {}
    for name, several in told.items():
        values = [value for _, value in several if value is not None]
        if len(values) < len(several):
            continue
        if len({ast.dump(value) for value in values}) == 1:
            once[name] = values[0]
        elif all(line in at_top for line, _ in several):
            in_turn[name] = tuple((line, value) for line, value in several if value is not None)
    return ScriptNames(once, in_turn, _fields(tree, once, parsed), spans, {*asked})


def _assignments(tree: ast.AST) -> Iterator[tuple[str, int, ast.expr | None]]:
    """Names that a file assigns, with the line and the value; None where it is no single one."""
    in_classes = {id(each) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(
            node, ast.AnnAssign | ast.AugAssign | ast.For) else []  # fmt: skip
        if id(node) in in_classes:
            continue
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target in targets:
            for each in (each for each in ast.walk(target) if isinstance(each, ast.Name)):
                if isinstance(each.ctx, ast.Store) or isinstance(target, ast.Subscript):
                    yield each.id, target.lineno, value if len(targets) == 1 and each is target else None
        changed = node.func if isinstance(node, ast.Call) else None
        if isinstance(changed, ast.Attribute) and changed.attr in CHANGES and isinstance(changed.value, ast.Name):
            yield changed.value.id, changed.lineno, None


def parameters_of(tree: ast.AST) -> Iterator[tuple[str, int, ast.expr | None]]:
    """Parameters of functions that are called once, with what they get there, or by default."""
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.setdefault(node.func.id, []).append(node)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.args.vararg or len(calls.get(node.name, ())) != 1:
            continue
        call = calls[node.name][0]
        if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
            continue
        names = [each.arg for each in node.args.args]
        defaults = dict(zip(reversed(names), reversed(node.args.defaults), strict=False))
        told = {each.arg: each.value for each in call.keywords if each.arg is not None}
        for name, value in {**defaults, **dict(zip(names, call.args, strict=False)), **told}.items():
            if not (isinstance(value, ast.Name) and value.id == name):
                yield name, node.lineno, value


def _fields(
    tree: ast.AST, once: Mapping[str, ast.expr], parsed: Mapping[str, Mapping[str, ast.expr]]
) -> dict[str, dict[str, ast.expr]]:
    """Settings that classes and their only object hold: fields with values, and keywords of the call that makes it.

    With those that are ``parsed``; all without what is set later, which may be anywhere.
    """
    classes = {node.name: _of_class(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    result = {**classes, **{name: dict(settings) for name, settings in parsed.items()}}
    for name, value in once.items():
        if isinstance(value, ast.Call) and (called := name_of(value.func)) in (*classes, *SETTINGS):
            own = {each.arg: each.value for each in value.keywords if each.arg is not None}
            is_plain = not value.args and len(own) == len(value.keywords)
            result[name] = {**classes.get(called, {}), **own} if is_plain else {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) == "setattr" and node.args:
            result.pop(name_of(node.args[0]), None)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(
            node, ast.AugAssign) else []  # fmt: skip
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                result.get(target.value.id, {}).pop(target.attr, None)
    return result


def _of_class(node: ast.ClassDef) -> dict[str, ast.expr]:
    """The fields of a class that have a value: ``batch: int = 4``, ``field(default=4)``."""
    result = {}
    for each in node.body:
        target = each.target if isinstance(each, ast.AnnAssign) else each.targets[0] if isinstance(
            each, ast.Assign) else None  # fmt: skip
        value = each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and name_of(value.func) in ("field", "Field"):
            value = next((own.value for own in value.keywords if own.arg == "default"), None)
        if isinstance(target, ast.Name) and value is not None:
            result[target.id] = value
    return result


def calls_in(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls anywhere in a part of a file."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def name_of(node: ast.expr) -> str:
    """The last part of a dotted name; "" for what is none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def truth_of(node: ast.expr, known: ScriptNames) -> bool | None:
    """Whether a condition holds; None where only running tells."""
    value = value_of(node, known)
    return None if isinstance(value, Untold) else bool(value)


def value_of(node: ast.expr, known: ScriptNames, steps: int = 0) -> Any:
    """What an expression is, :class:`Untold` where only running tells."""
    untold = Untold(node)
    known.spent[0] += 1
    if steps > MOST_STEPS or known.spent[0] > MOST_PARTS:
        return untold

    def inner(each: ast.expr) -> Any:
        return value_of(each, known, steps + 1)

    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | int | float | None) else untold
    if isinstance(node, ast.Name):
        if node.id in OF_ITSELF:
            return OF_ITSELF[node.id]
        meant = known.of_name(node)
        return untold if meant is None else inner(meant)
    if isinstance(node, ast.Attribute):
        return _of_attribute(node, known, inner, untold)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        items = [inner(each) for each in node.elts]
        return untold if any(isinstance(each, Untold) for each in items) else items
    if isinstance(node, ast.Dict):
        keys = [inner(each) if each is not None else untold for each in node.keys]
        values = [inner(each) for each in node.values]
        told = all(isinstance(key, str) for key in keys) and not any(isinstance(each, Untold) for each in values)
        return dict(zip(keys, values, strict=True)) if told else untold
    if isinstance(node, ast.UnaryOp):
        value = inner(node.operand)
        if isinstance(node.op, ast.Not):
            return value if value is OF_DEVICE else untold if isinstance(value, Untold) else not value
        is_number = isinstance(value, int | float) and isinstance(node.op, ast.USub)
        return value if value is OF_DEVICE else -value if is_number else untold
    if isinstance(node, ast.IfExp):
        test = inner(node.test)
        return test if test is OF_DEVICE else untold if isinstance(test, Untold) else inner(
            node.body if test else node.orelse)  # fmt: skip
    if isinstance(node, ast.BoolOp | ast.Compare):
        return _of_condition(node, inner, untold)
    if isinstance(node, ast.Subscript):
        held, key = inner(node.value), inner(node.slice)
        try:
            return untold if isinstance(held, Untold) or isinstance(key, Untold) else held[key]
        except (KeyError, IndexError, TypeError):
            return untold
    if isinstance(node, ast.JoinedStr):
        return _of_parts(node, inner, untold)
    if isinstance(node, ast.Call):
        return _of_call(node, inner, untold)
    return _computed(node, inner, untold)


def _of_attribute(node: ast.Attribute, known: ScriptNames, inner: Callable[[ast.expr], Any], untold: Untold) -> Any:
    """A dtype of torch, or a setting that a name holds."""
    held = name_of(node.value)
    if held == "torch":
        return node.attr
    if held not in known.fields and isinstance(meant := known.once.get(held), ast.Name):
        held = meant.id  # a parameter that is given them
    value = known.fields.get(held, {}).get(node.attr) if isinstance(node.value, ast.Name) else None
    if value is None:
        return untold
    known.asked.add(node.attr)
    return inner(value)


def _of_condition(node: ast.BoolOp | ast.Compare, inner: Callable[[ast.expr], Any], untold: Untold) -> Any:
    """What a comparison, or several conditions, come to."""
    if isinstance(node, ast.BoolOp):
        values = [inner(each) for each in node.values]
        ends = isinstance(node.op, ast.Or)
        told = [bool(each) for each in values if not isinstance(each, Untold)]
        if ends in told:
            return ends
        if len(told) == len(values):
            return not ends
        return OF_DEVICE if all(each is OF_DEVICE for each in values if isinstance(each, Untold)) else untold
    one, other = inner(node.left), inner(node.comparators[0])
    if len(node.ops) > 1 or isinstance(one, Untold) or isinstance(other, Untold):
        return untold
    try:
        return COMPARISONS[type(node.ops[0])](one, other)
    except TypeError:
        return untold


def _of_parts(node: ast.JoinedStr, inner: Callable[[ast.expr], Any], untold: Untold) -> Any:
    """The text of ``f"{ORG}/{NAME}"``."""
    parts = []
    for each in node.values:
        is_plain = isinstance(each, ast.FormattedValue) and each.conversion == -1 and each.format_spec is None
        part = inner(each.value) if isinstance(each, ast.FormattedValue) and is_plain else inner(each)
        if isinstance(part, Untold) or not isinstance(part, str | int | float):
            return untold
        parts.append(str(part))
    return "".join(parts) if sum(map(len, parts)) < MOST_TEXT else untold


def _of_call(node: ast.Call, inner: Callable[[ast.expr], Any], untold: Untold) -> Any:
    """What a simple call of a text or a value comes to; whether there is a device, which there is."""
    called = name_of(node.func)
    if SUPPORTED.search(called):
        return OF_DEVICE
    if called == "is_available" and isinstance(node.func, ast.Attribute):
        return True if name_of(node.func.value) == "cuda" else untold
    if called in ("dict", *SETTINGS) and not node.args:
        values = {each.arg: inner(each.value) for each in node.keywords}
        told = None not in values and not any(isinstance(each, Untold) for each in values.values())
        return values if told else untold
    given = [inner(each) for each in node.args]
    if node.keywords or any(isinstance(each, Untold) for each in given):
        return untold
    try:
        if isinstance(node.func, ast.Name) and called in OF_VALUES:
            return OF_VALUES[called](*given)
        text = inner(node.func.value) if isinstance(node.func, ast.Attribute) and called in OF_TEXT else untold
        if isinstance(text, str):
            result = getattr(text, called)(*given)
            return result if len(result) < MOST_TEXT else untold
    except (TypeError, ValueError, OverflowError):
        return untold
    return untold


def _computed(node: ast.expr, inner: Callable[[ast.expr], Any], untold: Untold) -> Any:
    """What arithmetic of numbers comes to, and texts put together."""
    if not isinstance(node, ast.BinOp) or type(node.op) not in OPERATORS:
        return untold
    left, right = inner(node.left), inner(node.right)
    if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
        return left + right if len(left) + len(right) < MOST_TEXT else untold
    numbers = all(isinstance(each, int | float) and abs(each) < MOST for each in (left, right))
    if not numbers or (right == 0 and isinstance(node.op, ast.Div | ast.FloorDiv)):
        return untold
    return OPERATORS[type(node.op)](left, right)
