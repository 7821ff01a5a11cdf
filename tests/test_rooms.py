"""The rooms of the house, as tests: what may be imported from a room, and where choices of a plan are listed."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from simpar.plan.choices import CHOICES
from tests.test_house import PACKAGE, ROOT, functions, nodes, where


def test_choices_are_listed_by_their_declarations_alone():
    """No list, set or table elsewhere names three choices of a plan: whatever lists choices queries them.

    Exports, imports and the runtime write and read the words of others, choice by choice. What a function makes of a
    plan's values is no list.
    """
    names = {choice.name for choice in CHOICES}
    found = []
    for path in PACKAGE:
        room = path.relative_to(ROOT / "simpar").parts[0]
        if room in ("plan", "layout", "frameworks", "runtime"):
            continue
        for node in nodes(path):
            listed = getattr(node, "elts", None) if isinstance(node, ast.Tuple | ast.List | ast.Set) else None
            listed = node.keys if isinstance(node, ast.Dict) else listed
            named = {item.value for item in listed or () if isinstance(item, ast.Constant) and item.value in names}
            if len(named) > 2 and not (isinstance(node, ast.Dict) and is_in_a_function(node, path)):
                found.append(where(path, node.lineno))
    assert found == []


def is_in_a_function(node: ast.AST, path: Path) -> bool:
    """Whether a node of a file stands in the definition of a function."""
    return any(node is other for function in functions(path) for other in ast.walk(function))


def imported_modules(path: Path) -> Iterator[tuple[str, str]]:
    """The rooms that a file imports from and the modules in them, wherever in the file."""
    for node in nodes(path):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("simpar."):
            continue
        for name in (alias.name for alias in node.names):
            parts = node.module.split(".")[1:]
            inside = (ROOT / "simpar").joinpath(*parts, name)
            parts += [name] * (inside.with_suffix(".py").exists() or (inside / "__init__.py").exists())
            if len(parts) > 1:
                yield parts[0], ".".join(parts[1:])


def test_rooms_are_entered_by_their_doors():
    """A room's ``OPEN`` names the modules that others may import: they import no other, and each that it names."""
    entered = defaultdict(set)
    for path in PACKAGE:
        own = path.relative_to(ROOT / "simpar").parts
        for room, module in imported_modules(path):
            if room != own[0]:
                entered[room].add(module)
    rooms = {path.parent.name for path in PACKAGE if path.name == "__init__.py" and path.parents[1].name == "simpar"}
    doors = {room: set(import_module(f"simpar.{room}").OPEN) for room in rooms}
    assert {room: sorted(entered[room] - doors[room]) for room in rooms if entered[room] - doors[room]} == {}
    assert {room: sorted(doors[room] - entered[room]) for room in rooms if doors[room] - entered[room]} == {}
