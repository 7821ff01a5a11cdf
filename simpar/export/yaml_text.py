"""Options by dotted name as the text of a YAML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from simpar.export.launch import comment
from simpar.export.recipes import nested
from simpar.export.subject import Subject


def yaml_file(s: Subject, given: Mapping[str, Any]) -> str:
    """A YAML file of dotted names as nested sections, under the comment of every exported file."""
    return "\n".join([*comment(s), *_lines(nested(given))]) + "\n"


def _lines(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A mapping in block style; items of lists and texts as JSON has them, which YAML reads."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(item, f"{indent}  ")
        elif isinstance(item, list):
            yield f"{indent}{key}:"
            for entry in item:
                yield f"{indent}  - {json.dumps(entry)}"
        else:
            yield f"{indent}{key}: {_scalar(item)}"


def _scalar(value: Any) -> str:
    """A scalar that YAML 1.1 reads with its type: no exponent without a point."""
    return f"{value:.10f}".rstrip("0") if isinstance(value, float) else json.dumps(value)
