"""Writes what editors know of a plan's flat keys: ``simpar/plan/flat_keys.pyi``, from the declarations of the choices.

    python benchmarks/plan_keys.py

A plan takes its keys from what every section declares, which only a running Python sees. Editors and type checkers
read this file instead: they complete ``simpar.Plan(`` and ``plan.``, and see a misspelt key before anything runs. A
test compares the file with what this writes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from simpar.plan.choices import SECTIONS
from simpar.plan.plan import Plan
from simpar.units import dimension_of

PATH = Path(__file__).parents[1] / "simpar" / "plan" / "flat_keys.pyi"
HEAD = '''"""The keys of a plan, for editors and type checkers; ``benchmarks/plan_keys.py`` writes this file."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

'''
GIVEN = '''
class PlanKeys(TypedDict, total=False):
    """What a plan may be made of. Other frameworks' words for keys are read as well, but not listed here."""

'''
READ = '''
class FlatKeys(Record):
    """What is read of a plan under its flat keys."""

'''


def source() -> str:
    """The file, as the declarations have it."""
    sections = {each for field in Plan.model_fields.values() for each in _alternatives(field.annotation)}
    homes = {(each.__module__, each.__name__) for each in sections if _is_section(each)}
    homes.add(("simpar.plan.plan", "Record"))
    imports = [
        f"from {module} import {', '.join(sorted(name for home, name in homes if home == module))}\n"
        for module in sorted({module for module, _ in homes})
    ]
    own = ((name, field.annotation) for name, field in Plan.model_fields.items())
    given = [f"    {name}: {_type(kind, True)}\n" for name, kind in (*own, *_flat(), ("rank_order", str))]
    read = [f"    {name}: {_answered(name) or _type(kind, False)} = ...\n" for name, kind in _flat()]
    return "".join((HEAD, *imports, GIVEN, *given, READ, *read))


def _flat() -> Iterator[tuple[str, Any]]:
    """Flat keys, each with the type of its field."""
    for section, names in SECTIONS.items():
        fields = Plan.model_fields[section].annotation.model_fields
        for name in names:
            yield name, fields[name].annotation


def _answered(name: str) -> str | None:
    """The type of what a plan answers in its own way: its schedule has a name also where none is given."""
    own = vars(Plan).get(name)
    return own.fget.__annotations__["return"] if isinstance(own, property) else None


def _type(kind: Any, given: bool) -> str:
    """The source of a type: of what is ``given``, which is then checked and converted, or of what is read."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is None:
        name = "None" if kind is NoneType else kind.__name__
        return f"{name} | Mapping[str, Any]" if given and _is_section(kind) else name
    if origin is Annotated:
        return _type(inner[0], given) + (" | str" if given and dimension_of(inner[1:]) else "")
    if origin is Literal:
        if given and all(type(each) is int for each in inner):
            return "int"  # a loop over numbers has no literals
        return f"Literal[{', '.join(json.dumps(each) for each in inner)}]"
    parts = ["..." if each is ... else _type(each, given) for each in inner]
    if origin in (Union, UnionType):
        return " | ".join(parts)
    if given and parts[-1] == "...":
        return f"Sequence[{parts[0]}]"
    return f"{'Mapping' if given and origin is dict else origin.__name__}[{', '.join(parts)}]"


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def main() -> None:
    """Write the file."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PATH.write_text(source())


if __name__ == "__main__":
    main()
