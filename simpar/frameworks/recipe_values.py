"""Values of recipes in Python: calls for configs, what is not known, operators, and the files that imports name."""

import ast
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

from simpar.dataclass import dataclass

SIGNS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
PLAIN: dict[str, Callable[..., Any]] = {
    "int": int, "float": float, "str": str, "bool": bool, "len": len, "dict": dict, "list": list,
    "range": lambda *ends: [*range(*ends)], "min": min, "max": max, "sum": sum, "divmod": lambda a, b: [*divmod(a, b)],
}  # fmt: skip
OF_TEXT = ("lower", "upper", "startswith", "endswith", "replace", "strip", "removeprefix", "removesuffix")
"""Methods of text."""
TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}
FOLLOWED = ("recipes", "perf_recipes")
"""Packages whose modules are recipes: imports from these, and from the file's own folder, are followed."""


class Mark:
    """Markers that are not values."""


NOT_KNOWN = Mark()
"""What only running would tell."""


@dataclass(frozen=True)
class Unresolved:
    """A value that only running would tell: its source text and line."""

    text: str
    line: int


@dataclass
class ConfigCall:
    """The result of a call: the dotted name that was called, its arguments, and fields set since."""

    called: str
    args: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    line: int = 0

    @property
    def name(self) -> str:
        """The last part of the called name; for ``Name.Config``, Name."""
        return self.called.removesuffix(".Config").rpartition(".")[2]

    def put(self, name: str, value: Any) -> None:
        """Set a field by dotted name."""
        section, _, rest = name.partition(".")
        if not rest:
            self.fields[section] = value
            return
        inner = self.fields.get(section)
        if not isinstance(inner, ConfigCall):
            inner = self.fields[section] = ConfigCall("")
        inner.put(rest, value)

    def flat(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Fields by dotted name; nested objects contribute their own fields."""
        for key, value in self.fields.items():
            if isinstance(value, ConfigCall) and value.fields:
                yield from value.flat(f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value


def known_of(value: Any) -> Any:
    """A value that is plain data. Raises ValueError for others."""
    if isinstance(value, Unresolved | ConfigCall):
        raise ValueError
    return value


def known_items(value: list[Any]) -> list[Any]:
    """A list of plain data. Raises ValueError if an item is none."""
    return [known_of(each) for each in value]


def as_key(value: Any) -> Any:
    """A value as the key of a dict. Raises ValueError if it is no plain data."""
    return tuple(value) if isinstance(value, list) else known_of(value)


def is_tested(name: str, value: Any, asked: ast.expr) -> Any:
    """Whether a value is of a class, or a config has a field; NOT_KNOWN if only running would tell."""
    if isinstance(value, Unresolved):
        return NOT_KNOWN
    if name == "hasattr":
        has = isinstance(value, ConfigCall) and isinstance(asked, ast.Constant) and asked.value in value.fields
        return has or NOT_KNOWN
    kind = ast.unparse(asked)
    if isinstance(value, ConfigCall):
        return value.called.rpartition(".")[2] == kind or (False if kind in TYPES else NOT_KNOWN)
    return isinstance(value, TYPES[kind]) if kind in TYPES else False


def find_import(node: ast.ImportFrom, importer: Path) -> Path | None:
    """The file that an import names, beside the importer or where Python finds it; None if it is none of recipes."""
    parts = tuple((node.module or "").split(".")) if node.module else ()
    here = importer.absolute().parent
    if node.level:
        folders = [here.parents[node.level - 2] if node.level > 1 else here]
    elif len(parts) == 1:
        folders = [here]
    elif set(parts) & set(FOLLOWED):
        folders = [*here.parents, *(Path(each) for each in sys.path if each)]
    else:
        return None
    places = (folder.joinpath(*parts) for folder in folders)
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return next((file for file in files if file.is_file()), None)
