"""Nested sections as the lines of a YAML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def lines(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A mapping in block style; items of lists and texts as JSON has them, which YAML reads."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield f"{indent}{key}:"
            yield from lines(item, f"{indent}  ")
        elif isinstance(item, list):
            yield f"{indent}{key}:"
            for entry in item:
                yield f"{indent}  - {json.dumps(entry)}"
        else:
            yield f"{indent}{key}: {scalar(item)}"


def scalar(value: Any) -> str:
    """A scalar that YAML 1.1 reads with its type: no exponent without a point."""
    return f"{value:.10f}".rstrip("0") if isinstance(value, float) else json.dumps(value)
