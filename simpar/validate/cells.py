"""Cells of a table of measured runs: text, numbers, and the reason if one cannot be used."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

Row = Mapping[str, str]


class Unmodelled(Exception):
    """A row outside of what is modelled; the text is the reason, which the report counts."""


def text(row: Row, name: str) -> str:
    """A column as text, empty if it is missing."""
    return (row.get(name) or "").strip()


def shown(row: Row, name: str) -> str:
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


def throttled(row: Row) -> bool:
    """Whether a row is of the B200 whose own tables of products stay at two thirds of other sources' rates."""
    device, source = text(row, "gpu_type").lower(), text(row, "source").lower()
    return re.search(r"\bb200", device) is not None and "simumax" in source


def is_primus(row: Row) -> bool:
    """Whether a run used AMD's Primus on top of Megatron-LM."""
    return "primus" in f"{text(row, 'source')} {text(row, 'citation')}".lower()


def whole(row: Row, name: str, default: int | None = None) -> int:
    """A column as a positive integer. Raises Unmodelled if it is missing and has no default."""
    value = number(row, name)
    if value is None:
        if default is None:
            raise Unmodelled(f"{name} not published")
        return default
    if value < 1 or value != int(value):
        raise Unmodelled(f"{name} = {value:g} is not a positive integer")
    return int(value)


_PAPER = re.compile(r"arxiv[ :]*(\d\d)(\d\d)\.\d{4,5}")


def paper_release(row: Row) -> str | None:
    """Year and month ("22.05") of the arXiv paper that a row cites, None without one."""
    found = _PAPER.search(text(row, "citation").lower())
    return f"{found[1]}.{found[2]}" if found else None
