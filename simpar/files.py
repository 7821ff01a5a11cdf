"""Files in and out: strict YAML and JSON, one-line errors with a suggestion, atomic writes, bundled data."""

from __future__ import annotations

import difflib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from simpar.errors import UserError
from simpar.units import MIB

Model = TypeVar("Model", bound=BaseModel)
MAX_BYTES = 8 * MIB
MAX_DEPTH = 40


@dataclass(frozen=True)
class Document:
    """Data read from a file: plain dicts, lists and scalars, and where each key stands."""

    data: Any
    source: str
    lines: Mapping[tuple[Any, ...], int]

    def place(self, location: tuple[Any, ...]) -> str:
        """``file:line`` of a key, or of its nearest parent that has one."""
        for end in range(len(location), 0, -1):
            if location[:end] in self.lines:
                return f"{self.source}:{self.lines[location[:end]]}"
        return self.source


def load(path: Path | str) -> Document:
    """Read a YAML 1.2 or JSON file. Raises UserError in one line for anything that is not plain, finite data."""
    path = Path(path)
    text = _read_text(path)
    data = _read_json(text, path) if path.suffix == ".json" else _read_yaml(text, path)
    if data is None:
        raise UserError(f"{path}: is empty")
    lines: dict[tuple[Any, ...], int] = {}
    plain = _plain(data, (), lines, path)
    return Document(plain, str(path), lines)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: larger than {MAX_BYTES // MIB} MiB")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text (UTF-8)") from None
    except ValueError as error:
        raise UserError(f"{path!r}: cannot be read ({error})") from None
    if "\0" in text:
        raise UserError(f"{path}: is not text")
    return text


def _read_json(text: str, path: Path) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for index, (key, _) in enumerate(pairs):
            if any(key == other for other, _ in pairs[:index]):
                raise UserError(f"{path}: key {key!r} appears twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON ({error.msg})") from None
    except (RecursionError, ValueError):
        raise UserError(f"{path}: nested too deeply or a number too long") from None


def _read_yaml(text: str, path: Path) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    parser = YAML(typ="rt", pure=True)
    parser.allow_duplicate_keys = False
    if text.count("*") > 200 and text.count("&") > 2:
        raise UserError(f"{path}: too many aliases")
    try:
        return parser.load(text)
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: not valid YAML ({str(error.problem).splitlines()[0]})") from None
    except (YAMLError, RecursionError, ValueError, TypeError, AttributeError, KeyError, IndexError, NotImplementedError,
            AssertionError) as error:  # fmt: skip
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not valid YAML ({reason})") from None


def _plain(value: Any, location: tuple[Any, ...], lines: dict[tuple[Any, ...], int], path: Path) -> Any:
    """Plain Python data; refuses tags, exotic keys, and numbers that are not finite."""
    if len(location) > MAX_DEPTH:
        raise UserError(f"{path}: nested more than {MAX_DEPTH} levels deep")
    tag = getattr(value, "tag", None)
    if tag is not None and getattr(tag, "value", None):
        raise UserError(f"{path}: tag {tag.value} is not allowed, plain data only")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise UserError(f"{path}: key {key!r} is no text")
            position = getattr(getattr(value, "lc", None), "data", None)
            if position and key in position:
                lines[(*location, str(key))] = position[key][0] + 1
        return {str(k): _plain(v, (*location, str(k)), lines, path) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(item, (*location, index), lines, path) for index, item in enumerate(value)]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UserError(f"{path}: {'.'.join(map(str, location))} = {value}: must be finite")
        return float(value)
    return str(value)


def parse(model: type[Model], document: Document | Mapping[str, Any], *, source: str = "input") -> Model:
    """Validate data against a pydantic model.

    Raises UserError with a line per problem: ``file:line: key = value: rule``. Bare numbers in dimensional
    fields are refused, in files and in mappings alike.
    """
    if not isinstance(document, Document):
        document = Document(document, source, {})
    try:
        return model.model_validate(document.data, context={"file": True})
    except ValidationError as error:
        raise UserError("\n".join(_problem(document, model, item) for item in error.errors())) from None


def _problem(document: Document, model: type[BaseModel], item: Any) -> str:
    location = tuple(
        part for part in item["loc"] if not (isinstance(part, str) and part.startswith("function-"))
    )
    key = ".".join(map(str, location)) or "document"
    place = document.place(location)
    if item["type"] == "extra_forbidden":
        names = _field_names(model, location[:-1])
        return f"{place}: unknown key {key}{suggest(str(location[-1]), names) or allowed(names)}"
    if item["type"] == "missing":
        return f"{place}: {key} is missing"
    message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    given = repr(item.get("input"))
    return f"{place}: {key} = {given if len(given) < 60 else given[:57] + '...'}: {message}"


def _field_names(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    for part in location:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def suggest(name: str, options: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest option, or nothing."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def allowed(options: Iterable[str]) -> str:
    """``; allowed: a, b, c`` (at most 40 names)."""
    names = sorted(options)
    return f"; allowed: {', '.join(names[:40])}{', ...' if len(names) > 40 else ''}" if names else ""


def choose(name: str, options: Iterable[str], what: str) -> str:
    """The name if it is an option; else UserError with the nearest one and the list."""
    names = list(options)
    if name in names:
        return name
    raise UserError(f"unknown {what} {name!r}{suggest(name, names)}{allowed(names)}")


def write_atomic(path: Path | str, content: str | bytes) -> None:
    """Write a file under a temporary name beside it and rename it: readers see the old file or the new one."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent or Path(), prefix=f".{path.name}.")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


_FOLDERS = {
    "devices": ("hardware_profiles", "devices"),
    "clusters": ("hardware_profiles", "clusters"),
    "stacks": ("hardware_profiles", "stacks"),
    "scenarios": ("scenarios",),
}


def bundled(kind: str) -> dict[str, Path]:
    """Files that travel with simpar, by name: devices, clusters, stacks, scenarios."""
    package = Path(__file__).resolve().parent
    for root in (package / "_data", package.parent):
        folder = root.joinpath(*_FOLDERS[kind])
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def find(name: str, kind: str, what: str) -> Path:
    """The path of a bundled name or of a file the user names. Raises UserError with a suggestion."""
    if name.endswith((".yaml", ".yml", ".json")) or "/" in name:
        return Path(name)
    files = bundled(kind)
    return files[choose(name, files, what)]
