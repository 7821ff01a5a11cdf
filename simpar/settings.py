"""Values of a scenario by dotted key: those given with --set, and those that are required."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from simpar import files
from simpar.errors import UserError


def with_value(data: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with the value at a dotted key replaced; missing sections on the way are made.

    A nested key of the plan (plan.mesh.tp) also removes its flat twin (plan.tp), so that the later setting wins.
    Raises UserError where a part of the key is a value and not a section.
    """
    head, *rest = key.split(".", 1)
    changed = dict(data)
    if not rest:
        return changed | {head: value}
    section = changed.get(head, {})
    if not isinstance(section, Mapping):
        raise UserError(f"--set {key}: {head} is {section!r} and has no parts")
    changed[head] = with_value(section, rest[0], value)
    if head == "plan" and "." in rest[0]:
        changed[head].pop(rest[0].rsplit(".", 1)[1], None)
    return changed


def parse_setting(text: str) -> tuple[str, Any]:
    """Key and value of "dotted.key=value"; the value is a YAML scalar. Raises UserError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text}: needs dotted.key=value, such as plan.zero=1")
    read = _scalar(text, value)
    return key.strip(), list(read) if isinstance(read, list) else read


def check_key(kind: type[BaseModel], text: str) -> None:
    """Raises UserError for a setting whose key lacks its section ("zero=1"), if some section has such a key."""
    key = parse_setting(text)[0]
    if "." in key or key in kind.model_fields:
        return
    if sections := files.homes(kind, key):
        raise UserError(f"--set {text}: {key} is a key of a section; did you mean --set {sections[0]}=...?")


@lru_cache(maxsize=1024)
def _scalar(text: str, value: str) -> Any:
    """A YAML 1.2 scalar, or a flow list of scalars."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        read = YAML(typ="safe", pure=True).load(value)
    except (YAMLError, ValueError):
        raise UserError(f"--set {text}: {value!r} is not a YAML value") from None
    if isinstance(read, dict) and (name := str(next(iter(read), ""))).isalnum():
        raise UserError(f"--set {text}: is set key by key: --set {text.partition('=')[0]}.{name}=VALUE")
    items = read if isinstance(read, list) else [read]
    if not all(item is None or isinstance(item, str | int | float) for item in items):
        raise UserError(f"--set {text}: needs a number, text, true, false, null or a list of these")
    return read


REMEDY = {
    "model": "--model NAME",
    "cluster.hardware": "--hardware NAME",
    "training.seq_len": "--seq-len TOKENS",
    "training.global_batch": "--global-batch SEQUENCES",
}


INSTEAD = {"operation.days": "training.tokens"}
"""Keys that replace keys of PARTS: a run's number of tokens gives its length in days."""


PARTS = {"perturbation.jitter.sigma": "--jitter DEVIATION", "operation.days": "--days DAYS"}
"""Keys that are required where their section is present, each with the flag that gives it."""


def require(data: Mapping[str, Any], source: str, needs: Iterable[str]) -> None:
    """Raises UserError that names all missing keys at once, with the flags that give them."""
    missing = [key for key in needs if not _has(data, key)]
    if missing:
        flags = " ".join((REMEDY | PARTS)[key] for key in missing)
        file = ", or a scenario file" if source == files.COMMAND_LINE and not PARTS.keys() & set(missing) else ""
        raise UserError(f"{source}: {', '.join(missing)} missing: give {flags}{file}")


def _has(data: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(data, Mapping) or part not in data:
            return not isinstance(data, Mapping)
        data = data[part]
    return data is not None
