"""Cells of a table of measured runs: text, numbers, values, and the reason if one cannot be used."""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from simpar.files import suggest, wording

Row = Mapping[str, str]


class Unmodelled(Exception):
    """A row outside of what is modelled; the text is the reason, which the report counts."""


def text(row: Row, name: str) -> str:
    """A column as text, empty if it is missing."""
    return (row.get(name) or "").strip()


def format_cell(row: Row, name: str) -> str:
    """A column as printed: without the ".0" that spreadsheets add to whole numbers."""
    return text(row, name).removesuffix(".0")


def number(row: Row, name: str) -> float | None:
    """A column as a finite number, None if blank. Raises Unmodelled for anything else."""
    value = text(row, name)
    if not value:
        return None
    try:
        read = float(value)
    except ValueError:
        raise Unmodelled(f"{name} is not a number") from None
    if not math.isfinite(read):
        raise Unmodelled(f"{name} is not finite")
    return read


def measurement(row: Row, name: str) -> float | None:
    """A measured quantity, None if blank or zero. Raises Unmodelled for values that no measurement can have."""
    value = number(row, name)
    if value is not None and value < 0:
        raise Unmodelled(f"{name} = {value:g} is negative")
    return value or None


def read_count(row: Row, name: str, default: int | None = None) -> int:
    """A column as a positive integer. Raises Unmodelled if it is missing and has no default."""
    value = number(row, name)
    if value is None:
        if default is None:
            raise Unmodelled(f"{name} not published")
        return default
    if value < 1 or value != int(value):
        raise Unmodelled(f"{name} = {value:g} is not a positive integer")
    return int(value)


def read_word(row: Row, name: str, values: Mapping[str, Any], default: Any) -> Any:
    """What a column's word stands for, in any case; the default if blank. Raises Unmodelled for other words."""
    word = text(row, name).lower()
    if word and word not in values:
        raise Unmodelled(f"{name} {word!r} is not a known word; allowed: {', '.join(values)}")
    return values[word] if word else default


def plain(row: Row, name: str) -> Any:
    """A column as a plan file has it: a JSON number, list or mapping, true or false, or text; None if blank."""
    value = text(row, name)
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        read = json.loads(value)
    except ValueError:
        return value or None
    return int(read) if isinstance(read, float) and read.is_integer() else read


def values_with_prefix(row: Row, prefix: str) -> dict[str, Any]:
    """Values of the columns ``prefix.KEY`` that are not blank, by key."""
    start = f"{prefix}."
    names = [name for name in row if name and name.startswith(start) and text(row, name)]
    return {name.removeprefix(start): plain(row, name) for name in names}


def check_value(part: BaseModel, key: str, value: Any, column: str) -> Any:
    """A value as the field at a dotted key of a profile takes it. Raises Unmodelled naming the column."""
    name, _, rest = key.partition(".")
    fields = type(part).model_fields
    if name not in fields:
        raise Unmodelled(f"column {column}: unknown field {name!r}{suggest(name, fields)}")
    kept = getattr(part, name)
    if isinstance(kept, BaseModel) and rest:
        return check_value(kept, rest, value, column)
    if rest and not isinstance(kept, Mapping):
        raise Unmodelled(f"column {column}: {name} has no fields")
    try:
        changed = {**dict(part), name: {**kept, rest: value} if rest else value}
        read = getattr(type(part).model_validate(changed), name)
    except ValidationError as error:
        raise Unmodelled(f"{column} = {value!r}: {wording(error.errors()[0])}") from None
    return read[rest] if rest else read
