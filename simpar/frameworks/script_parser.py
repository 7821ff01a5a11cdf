"""Arguments of a script's own command line: what ``argparse`` and ``fire`` give it, by flags or by default."""

import ast
from collections.abc import Collection, Mapping
from typing import Any

from simpar.frameworks.script_values import calls_in, name_of, parameters_of
from simpar.frameworks.words import plain

ADDS, PARSES = "add_argument", ("parse_args", "parse_known_args")
SETS = "set_defaults"
SWITCHES = {"store_true": False, "store_false": True}
"""Actions of arguments that are switches, and what these are unless they are given."""
BY_FUNCTION = ("Fire", "run", "cli")
"""Functions of fire and typer that give a function's parameters from the command line."""


def parsed_arguments(tree: ast.AST, flags: Mapping[str, Any]) -> dict[str, dict[str, ast.expr]]:
    """Arguments that a script parses, by every name that holds them: the value of a flag, or else the default.

    ``flags`` are those of the command by plain name. Arguments that two parsers declare unlike are left out.
    """
    declared: dict[str, ast.expr | None] = {}
    for call in calls_in(tree):
        if name_of(call.func) != ADDS or not (name := _destination(call)):
            continue
        value = next(filter(None, (_given(flags, option) for option in _options(call))), None) or _default(call)
        same = name not in declared or _dump(declared[name]) == _dump(value)
        declared[name] = value if same else None
    later = {each.arg for call in calls_in(tree) if name_of(call.func) == SETS for each in call.keywords}
    told = {name: value for name, value in declared.items() if value is not None and name not in later}
    return dict.fromkeys(_holders(tree), told) if declared else {}


def parameters_parsed(tree: ast.AST, flags: Mapping[str, Any]) -> dict[str, ast.expr]:
    """Parameters of the function that fire or typer starts, by name."""
    started = {
        call.args[0].id
        for call in calls_in(tree)
        if name_of(call.func) in BY_FUNCTION and len(call.args) == 1 and isinstance(call.args[0], ast.Name)
    }
    result: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in started:
            names = [each.arg for each in node.args.args]
            defaults = dict(zip(reversed(names), reversed(node.args.defaults), strict=False))
            result |= {name: value for name in names if (value := _given(flags, name) or defaults.get(name))}
    return result


def flags_parsed(tree: ast.AST, asked: Collection[str]) -> dict[str, bool]:
    """Plain names of the flags that a script has, with whether their values were ``asked`` for."""
    adding = [(call, name) for call in calls_in(tree) if name_of(call.func) == ADDS and (name := _destination(call))]
    declared = {plain(option): name in asked for call, name in adding for option in _options(call)}
    return {**declared, **{plain(name): name in asked for name in parameters_parsed(tree, {})}}


def _given(flags: Mapping[str, Any], name: str) -> ast.expr | None:
    """The value of a flag as an expression."""
    value = flags.get(plain(name))
    if isinstance(value, list):
        return ast.List([ast.Constant(each) for each in value], ast.Load())
    return None if value is None else ast.Constant(value)


def _default(call: ast.Call) -> ast.expr | None:
    """What an argument is that no flag gives; None where one must be given."""
    told = {each.arg: each.value for each in call.keywords}
    action = told.get("action")
    if isinstance(action, ast.Constant) and action.value in SWITCHES:
        return told.get("default", ast.Constant(SWITCHES[action.value]))
    required = told.get("required")
    if isinstance(required, ast.Constant) and required.value is True:
        return None
    return told.get("default", ast.Constant(None))


def _destination(call: ast.Call) -> str:
    """The name of an argument's value; "" for one without a flag."""
    told = next((each.value for each in call.keywords if each.arg == "dest"), None)
    if isinstance(told, ast.Constant) and isinstance(told.value, str):
        return told.value
    options = _options(call)
    return next((name for name in options if len(name) > 1), options[0] if options else "").replace("-", "_")


def _options(call: ast.Call) -> list[str]:
    """The flags of an argument, as they are declared, without dashes before them."""
    names = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return [name.lstrip("-") for name in names if name.startswith("-")]


def _dump(node: ast.expr | None) -> str:
    return "" if node is None else ast.dump(node)


def _holders(tree: ast.AST) -> set[str]:
    """Names that hold parsed arguments: those of the call that parses, and of functions that return it."""
    makers = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(name_of(call.func) in PARSES for call in calls_in(node))
        and any(isinstance(each, ast.Return) and each.value is not None for each in ast.walk(node))
    }
    given = ((name, value) for name, _, value in parameters_of(tree) if isinstance(value, ast.Call))
    result = {name for name, value in given if name_of(value.func) in (*PARSES, *makers)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target = node.targets[0].elts[0] if isinstance(node.targets[0], ast.Tuple) else node.targets[0]
            is_listed = any(isinstance(each, ast.List) and each.elts for each in node.value.args)
            if name_of(node.value.func) in (*PARSES, *makers) and isinstance(target, ast.Name) and not is_listed:
                result.add(target.id)
    return result
