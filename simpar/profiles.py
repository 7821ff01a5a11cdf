"""Profiles as files have them: written with units, and several of them in the one file that ``simpar learn`` writes.

Such a file has a ``learned`` part, which says where its numbers come from, and ``stacks`` and ``clusters`` by the name
of the profile that each was learnt from. It is named wherever a profile is: ``ours.yaml``, or ``ours.yaml#nemo`` where
it has several.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from simpar import files
from simpar.errors import UserError
from simpar.files import Document, allowed
from simpar.units import dimension_of, with_unit

LEARNED = "learned"
DIGITS = 12  # of quantities: what is read again predicts the same
REVISION = 1
"""Of what parameters mean. Where a formula changes so that learnt values mean something else, it is raised."""


def load_profile(name: str | Path, kind: str, what: str) -> tuple[Document, Path]:
    """The data of a profile by bundled name or file, and the file; of a learnt file the one of this kind.

    Raises UserError, also where a learnt file was written under another revision or has several of them.
    """
    named, _, part = str(name).partition("#")
    path = files.find(named if part else name, kind, what)
    document = files.load(path)
    if is_learned(document):
        return _part(document, kind, part, what), path
    if part:
        raise UserError(f"{path}: is no learnt file, it has no part {part!r}")
    return document, path


def is_learned(document: Document) -> bool:
    """Whether a file was written by ``simpar learn``."""
    return isinstance(document.data, dict) and LEARNED in document.data


def parts_of(document: Document, kind: str) -> tuple[str, ...]:
    """Names of the profiles of a kind in a learnt file, "stacks" or "clusters". Raises UserError for an old one."""
    about = document.data[LEARNED]
    revision = about.get("revision") if isinstance(about, dict) else None
    if revision != REVISION:
        version = about.get("simpar") if isinstance(about, dict) else None
        older = f"simpar {version}" if version else "an older simpar"
        raise UserError(
            f"{document.source}: learnt under {older}, whose parameters mean something else today; "
            "learn again from the same runs"
        )
    found = document.data.get(kind)
    return tuple(found) if isinstance(found, dict) else ()


def _part(document: Document, kind: str, part: str, what: str) -> Document:
    names = parts_of(document, kind)
    if part and part not in names:
        raise UserError(f"{document.source}: has no {what} {part!r}{allowed(names)}")
    if not part and len(names) != 1:
        several = f"has {len(names)}: name one, such as {document.source}#{names[0]}" if names else "has none"
        raise UserError(f"{document.source}: {what} wanted, the file {several}")
    at = (kind, part or names[0])
    lines = {place[2:]: line for place, line in document.lines.items() if place[:2] == at}
    return Document(document.data[kind][at[1]], document.source, lines)


def base_name(name: str, kind: str, what: str) -> str:
    """The shipped profile that a name or a learnt file stands for; nothing for a file of the user's own."""
    file, _, part = name.partition("#")
    if part or file in files.bundled(kind):
        return part or file
    document = files.load(files.find(file, kind, what))
    names = parts_of(document, kind) if is_learned(document) else ()
    return names[0] if len(names) == 1 else ""


def about_learned(name: str, kind: str, what: str) -> Mapping[str, Any]:
    """What a learnt file says of where its numbers come from; nothing of any other profile."""
    file, _, _ = name.partition("#")
    if file in files.bundled(kind):
        return {}
    document = files.load(files.find(file, kind, what))
    return document.data[LEARNED] if is_learned(document) else {}


def as_written(model: BaseModel) -> dict[str, Any]:
    """A model as a file has it: quantities with their units, defaults left out."""
    found: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value == field.get_default(call_default_factory=True):
            continue
        found[name] = _written(value, dimension_of(field.metadata) or _inner_dimension(field.annotation))
    return found


def _written(value: Any, dimension: str | None) -> Any:
    if isinstance(value, BaseModel):
        return as_written(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _written(each, dimension) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_written(each, dimension) for each in value]
    return with_unit(value, dimension, DIGITS) if dimension and isinstance(value, float | int) else value


def _inner_dimension(annotation: Any) -> str | None:
    """The dimension of the values of a dict, or of an optional quantity."""
    for part in get_args(annotation):
        if found := dimension_of(getattr(part, "__metadata__", ())):
            return found
    return None


def yaml_text(data: Mapping[str, Any]) -> str:
    """Plain data as YAML."""
    from ruamel.yaml import YAML

    writer, stream = YAML(), io.StringIO()
    writer.width = 120
    writer.dump(dict(data), stream)
    return stream.getvalue()
