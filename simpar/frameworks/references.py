"""Values of YAML configs that refer to others: OmegaConf's ``${section.key}``, and products of them."""

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks.shell_words import UNKNOWN

MAX_DEPTH = 10
"""References to references; OmegaConf has no limit, and circles have no end."""
_INNER = re.compile(r"\$\{([^${}]*)\}")
_PRODUCT = re.compile(r"(?:mul|multiply):(.*)", re.DOTALL)
_VARIABLE = re.compile(r"oc\.env:[^,]+,(.*)", re.DOTALL)
_SELECTED = re.compile(r"oc\.select:\s*([\w.]+)\s*(?:,(.*))?", re.DOTALL)


def is_untold(value: Any) -> bool:
    """Whether a value refers to what the text does not say."""
    return isinstance(value, str) and UNKNOWN.search(value) is not None


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted name with those that they refer to in their place; what refers to nothing here stays.

    Names with leading dots are looked up from the section of the value (``${.x}`` beside it, ``${..x}`` above); a
    variable of the environment and a key that may be absent have their defaults.
    """
    return {key: _put_in(value, key, values, 0) for key, value in values.items()}


def _put_in(value: Any, key: str, values: Mapping[str, Any], depth: int) -> Any:
    if not is_untold(value) or depth > MAX_DEPTH:
        return value
    whole = _INNER.fullmatch(value)
    if whole is not None:
        result = _looked_up(whole[1].strip(), key, values, depth)
        return value if result is None else result
    changed = _INNER.sub(lambda each: _as_text(_looked_up(each[1].strip(), key, values, depth), each[0]), value)
    return value if changed == value else _put_in(changed, key, values, depth + 1)


def _as_text(result: Any, else_: str) -> str:
    return else_ if result is None or isinstance(result, dict | list) else str(result)


def _looked_up(name: str, key: str, values: Mapping[str, Any], depth: int) -> Any:
    """What stands between the braces; None if nothing here says it."""
    if product := _PRODUCT.fullmatch(name):
        factors = [_plain(each) for each in product[1].split(",")]
        return prod(factors) if all(isinstance(each, int | float) for each in factors) else None
    if variable := _VARIABLE.fullmatch(name):
        return _plain(variable[1])
    if selected := _SELECTED.fullmatch(name):
        result = _looked_up(selected[1], key, values, depth)
        return _plain(selected[2] or "") if result is None else result
    dots = len(name) - len(name.lstrip("."))
    at = key.split(".")[: len(key.split(".")) - dots] if dots else []
    place = ".".join([*at, name.lstrip(".")])
    return _put_in(values[place], place, values, depth + 1) if place in values else None


def _plain(text: str) -> Any:
    try:
        return files.read_yaml(text.strip(), "a value", finite=False) if text.strip() else None
    except UserError:
        return text
