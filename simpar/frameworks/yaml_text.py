"""Options by dotted name as YAML text."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simpar.frameworks.launch import comment, launchers
from simpar.frameworks.recipes import nest_names
from simpar.frameworks.subject import Subject


def yaml_file(s: Subject, given: Mapping[str, Any]) -> str:
    """A YAML file with dotted names as nested sections, after the comment of every exported file."""
    return "\n".join([*comment(s), *_lines(nest_names(given))]) + "\n"


def config_and_launchers(
    name: str, *command: str, environment: Mapping[str, str] | None = None
) -> Callable[[Subject, Mapping[str, Any]], Mapping[str, str]]:
    """The ``files`` of a target that reads its options from one YAML file, which ``command`` names."""
    return lambda s, given: {name: yaml_file(s, given), **launchers(s, command, environment)}


def _lines(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A mapping in block style; list items and strings are written as JSON, which is valid YAML."""
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
    """A scalar that YAML 1.1 reads with the right type: no exponent without a decimal point."""
    return f"{value:.10f}".rstrip("0") if isinstance(value, float) else json.dumps(value)
