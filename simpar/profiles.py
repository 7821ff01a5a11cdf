"""Profiles in files: written with units, and several of them in the one file that ``simpar learn`` writes.

Such a learnt file has a ``learned`` part, which states where its numbers come from, and ``stacks`` and ``clusters`` by
the name of the profile from which each was learnt. It is accepted wherever a profile is: ``ours.yaml``, or
``ours.yaml#nemo`` where it has several.

A profile with ``like: dgx-h100`` takes every field that it does not state from that profile.
"""

import io
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from simpar import files
from simpar.errors import UserError
from simpar.files import Document, allowed
from simpar.units import dimension_of, with_unit

Read = TypeVar("Read")

LEARNED = "learned"
LIKE = "like"
ORIGIN = ("provenance", "sources")
EXACT = 15
"""Digits of quantities that are written out: all that a byte count of a host's memory has."""
DIGITS = 12  # of quantities, so that a file that is read again gives the same predictions
REVISION = 1
"""Revision of the meaning of parameters; raised when a formula changes so that learnt values mean something else."""


def once_if_shipped(kind: str) -> Callable[[Callable[[str | Path], Read]], Callable[[str | Path], Read]]:
    """Decorator of a loader by name: shipped files do not change while simpar runs, those of users do."""

    def keeping(load: Callable[[str | Path], Read]) -> Callable[[str | Path], Read]:
        kept = cache(load)

        @wraps(load)
        def loaded(name: str | Path) -> Read:
            shipped = str(name).partition("@")[0] in files.bundled(kind)
            return kept(str(name)) if shipped else load(name)

        return loaded

    return keeping


def load_profile(name: str | Path, kind: str, what: str) -> tuple[Document, Path]:
    """(Data, path) of a profile by bundled name or file; of a learnt file, its profile of this ``kind``.

    Raises UserError, also where a learnt file was written under another revision or has several profiles of the kind.
    """
    return _load(name, kind, what, ())


def _load(name: str | Path, kind: str, what: str, heirs: tuple[str, ...]) -> tuple[Document, Path]:
    """As :func:`load_profile`; ``heirs`` are the profiles that are like this one, to detect one that is like itself."""
    named, _, part = str(name).partition("#")
    path = files.find(named if part else name, kind, what)
    document = files.load(path)
    if is_learned(document):
        document = _part(document, kind, part, what)
    elif part:
        raise UserError(f"{path}: is not a learnt file, so it has no part {part!r}")
    here = f"{path.resolve()}#{part}"
    if here in heirs:
        raise UserError(f"{path} inherits from itself through 'like'")
    device = document.data.get("device") if isinstance(document.data, dict) else None
    own_device = kind == "clusters" and isinstance(device, dict) and LIKE in device
    if own_device:
        document = _with_device(document, path.parent)
    return _inherited(document, path.parent, (kind, what), (*heirs, here), own_device=own_device), path


def resolve_profile(document: Document, folder: Path, kind: str, what: str) -> Document:
    """The data of a profile in ``folder``, with all fields that it takes from the profile that it is like."""
    return _inherited(document, folder, (kind, what), ())


def _with_device(document: Document, folder: Path) -> Document:
    """A cluster document whose device is written out in it and is like another, with that device resolved."""
    device = document.data["device"]
    lines = {place[1:]: line for place, line in document.line_of.items() if place[0] == "device"}
    result = _inherited(Document(device, document.source, lines), folder, ("devices", "device"), ())
    elsewhere = {("device", *place): where for place, where in result.elsewhere.items()}
    return replace(document, data={**document.data, "device": result.data}, elsewhere=elsewhere)


def _inherited(
    document: Document, folder: Path, wanted: tuple[str, str], heirs: tuple[str, ...], *, own_device: bool = False
) -> Document:
    """The document laid over the one that it is like; files that it names are relative to its folder.

    With ``own_device`` (a device that states itself what it is like) nothing is taken from the other document's device;
    otherwise single fields of a device are laid over the device of the other document.
    """
    data = document.data
    if not isinstance(data, dict) or LIKE not in data:
        return document
    (kind, what), name, place = wanted, data[LIKE], document.place((LIKE,))
    if not isinstance(name, str) or not name:
        raise UserError(f"{place}: like = {name!r}: allowed: the name or the file of a {what}")
    if not data.get("name"):
        raise UserError(f"{place}: name is missing: what is like {name} has a name of its own")
    try:
        base, path = _load(_beside(name, folder), kind, what, heirs)
    except UserError as error:
        raise UserError(f"{place}: like = {name}: {error}") from None
    if not isinstance(base.data, dict):
        raise UserError(f"{place}: like = {name}: {base.source} is not a mapping")
    if "groups" in data and "groups" not in base.data:
        raise UserError(f"{place}: like = {name}: has one kind of nodes, and this file has groups of several")
    given = _rebased(base.data, path.parent, folder)
    device, named = data.get("device"), given.get("device")
    if kind == "clusters" and isinstance(device, dict) and isinstance(named, str) and not own_device:
        as_like = replace(document, data={**data, "device": {LIKE: named, **device}})
        document, own_device = _with_device(as_like, folder), True
    own = {key: value for key, value in document.data.items() if key != LIKE}
    if kind == "clusters":
        given = _fitted_to(own.get("devices_per_node"), given)
    if own_device:
        given.pop("device", None)
    elsewhere = {**base.elsewhere, **{at: f"{base.source}:{line}" for at, line in base.line_of.items()}}
    merged = lay_over(given, own) | _origin(given, own)
    elsewhere |= document.elsewhere
    return replace(document, data=merged, lines=document.line_of, elsewhere=elsewhere)


def _fitted_to(devices: Any, base: dict[str, Any]) -> dict[str, Any]:
    """A cluster's data for smaller nodes: PCIe switches and NICs that ``devices`` have of those of a node."""
    whole, host, out = base.get("devices_per_node"), base.get("host"), base.get("scale_out")
    if not isinstance(devices, int) or not isinstance(whole, int) or not 0 < devices < whole:
        return base
    result = dict(base)
    if isinstance(host, Mapping) and isinstance(shared := host.get("devices_per_switch"), int):
        result["host"] = {**host, "devices_per_switch": shared_switch(devices, shared)}
    if isinstance(out, Mapping) and isinstance(nics := out.get("nics_per_node"), int):
        result["scale_out"] = {**out, "nics_per_node": share_of_nics(devices, whole, nics)}
    return result


def shared_switch(devices: int, per_switch: int) -> int:
    """Devices below a PCIe switch of nodes with ``devices``, of those that have ``per_switch`` of them."""
    return math.gcd(devices, per_switch)


def share_of_nics(devices: int, whole: int, nics: int) -> int:
    """NICs of ``devices`` of a node, in proportion to the ``nics`` of the ``whole`` number of them; one at least."""
    return max(1, nics * devices // whole)


def lay_over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Sections merged field by field; a value or a list replaces the other's."""
    result = dict(base)
    for key, value in own.items():
        under = base.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            value = lay_over(under, value)
        result[key] = value
    return result


def _origin(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance and sources: those that the file states itself, and those of the profile that it is like."""
    words = [own.get("provenance"), f"like {base.get('name')}", base.get("provenance")]
    said, more = own.get("sources", []), base.get("sources", [])
    result: dict[str, Any] = {"provenance": "; ".join(str(each) for each in words if each)}
    if isinstance(said, list) and isinstance(more, list) and (said or more):
        result["sources"] = [*said, *(each for each in more if each not in said)]
    return result


def is_file(name: str) -> bool:
    """Whether a name is that of a file, and not of a shipped profile."""
    return Path(name.partition("#")[0]).suffix in (".yaml", ".yml", ".json") or "/" in name


def _beside(name: str, folder: Path) -> str:
    """The path of a file that is named relative to ``folder``; shipped names stay."""
    return str(folder / name) if is_file(name) else name


def _rebased(data: Mapping[str, Any], folder: Path, to: Path) -> dict[str, Any]:
    """A profile of ``folder`` moved to the folder ``to``, with the names of its files adapted."""

    def moved(name: object) -> object:
        if not isinstance(name, str) or not is_file(name):
            return name
        return os.path.relpath(folder / name, to)

    result = dict(data)
    if "device" in data:
        result["device"] = moved(data["device"])
    if isinstance(groups := data.get("groups"), list):
        result["groups"] = [
            {**group, "hardware": moved(group.get("hardware"))} if isinstance(group, dict) else group
            for group in groups
        ]
    return result


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
    parts = document.data.get(kind)
    return tuple(parts) if isinstance(parts, dict) else ()


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
    """The shipped profile for which a name or a learnt file stands; "" for any other file."""
    file, _, part = name.partition("#")
    if part or file in files.bundled(kind):
        return part or file
    document = files.load(files.find(file, kind, what))
    names = parts_of(document, kind) if is_learned(document) else ()
    return names[0] if len(names) == 1 else ""


def about_learned(name: str, kind: str, what: str) -> Mapping[str, Any]:
    """The ``learned`` part of a learnt file, which states where its numbers come from; empty for other profiles."""
    file, _, _ = name.partition("#")
    if file in files.bundled(kind):
        return {}
    document = files.load(files.find(file, kind, what))
    return document.data[LEARNED] if is_learned(document) else {}


def as_written(model: BaseModel, digits: int = DIGITS) -> dict[str, Any]:
    """A pydantic model as files write it: quantities with units and ``digits`` digits, defaults left out."""
    result: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value == field.get_default(call_default_factory=True):
            continue
        dimension = dimension_of(field.metadata) or _inner_dimension(field.annotation)
        result[name] = _written(value, dimension, digits)
    return result


def _written(value: Any, dimension: str | None, digits: int) -> Any:
    if isinstance(value, BaseModel):
        return as_written(value, digits)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _written(each, dimension, digits) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_written(each, dimension, digits) for each in value]
    return with_unit(value, dimension, digits) if dimension and isinstance(value, float | int) else value


def _inner_dimension(annotation: Any) -> str | None:
    """The dimension of the values of a dict, or of an optional quantity."""
    for part in get_args(annotation):
        if result := dimension_of(getattr(part, "__metadata__", ())):
            return result
    return None


def yaml_text(data: Mapping[str, Any]) -> str:
    """Plain data as YAML."""
    from ruamel.yaml import YAML

    writer, stream = YAML(), io.StringIO()
    writer.width = 120
    writer.dump(data, stream)
    return stream.getvalue()
