"""Files in and out: strict YAML and JSON, one-line errors with a suggestion, atomic writes, bundled data."""

import errno
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from simpar.dataclass import dataclass
from simpar.errors import BadCall, UserError
from simpar.json_text import json_lines, line_in_json
from simpar.json_text import read_json as read_json
from simpar.kept import cache_folder, digest, kept_json, replace_file
from simpar.plain import Location, YamlConverter, dotted, is_slice, plain_name, printable, split_count
from simpar.plain import OtherNames as OtherNames
from simpar.plain import allowed as allowed
from simpar.plain import choose as choose
from simpar.plain import short as short
from simpar.plain import suggest as suggest
from simpar.regular_files import check_is_file, resolved
from simpar.units import KB, KIB, MIB

Model = TypeVar("Model", bound=BaseModel)
MAX_BYTES = 64 * MIB  # a result with its timeline
MAX_YAML_BYTES = MIB  # the parser reads some 100 kB/s: what is larger is data, and data is JSON
MOST_LINED = 4 * MIB  # of JSON whose lines are kept; those of more are looked up one by one
MAX_SHOWN = 4  # keys of a section that is written out
COMMAND_LINE = "command line"
GZIP = b"\x1f\x8b"
"""How a file begins that gzip packed."""
KEPT = "yaml 1"  # raised when the same text becomes other data
UNKNOWN, MISSING = "extra_forbidden", "missing"  # what pydantic calls them
NO_MAPPING = ("model_type", "model_attributes_type")
LARGER = {"tuple_type": "a list", "list_type": "a list", "dict_type": "a mapping"}


@dataclass(frozen=True)
class Document:
    """Data read from a file: plain dicts, lists and scalars, and where each key stands.

    The JSON parser gives no lines: they are looked up in ``text`` when an error needs one. Keys in ``laid_over`` were
    given on the command line beside the file; ``elsewhere`` has, as ``file:line``, the keys from another file on which
    this one builds.
    """

    data: Any
    source: str
    lines: Mapping[Location, int]
    text: str = field(default="", repr=False)
    laid_over: frozenset[Location] = frozenset()
    elsewhere: Mapping[Location, str] = field(default_factory=dict, repr=False)

    @property
    def line_of(self) -> Mapping[Location, int]:
        """The line of every key of the file itself."""
        return self.lines or (json_lines(self.text) if len(self.text) <= MOST_LINED else {})

    def place(self, location: tuple[Any, ...]) -> str:
        """``file:line`` of a key, or of its nearest parent with a line; "command line" for keys that were laid over."""
        if any(location[: len(each)] == each for each in self.laid_over):
            return COMMAND_LINE
        if len(self.text) > MOST_LINED:
            return f"{self.source}:{line_in_json(self.text, location)}"
        lines = self.line_of
        for end in range(len(location), 0, -1):
            if location[:end] in lines:
                return f"{self.source}:{lines[location[:end]]}"
            if location[:end] in self.elsewhere:
                return self.elsewhere[location[:end]]
        return self.source

    def check_name(self, location: tuple[str, ...], check: Callable[[str], object]) -> None:
        """Check the name at a location. Raises the UserError of ``check`` with file, line and key in front.

        Nothing is checked where there is no text, or where it was laid over the file: its user reports the error.
        """
        name = self.data
        for part in location:
            name = name.get(part) if isinstance(name, Mapping) else None
        if not isinstance(name, str) or (place := self.place(location)) == COMMAND_LINE:
            return
        try:
            check(name)
        except UserError as error:
            raise UserError(f"{place}: {dotted(location)} = {name}: {error}") from None


def load(path: Path | str, *, finite: bool = True) -> Document:
    """Read a YAML 1.2 or JSON file. Raises UserError in one line for anything that is not plain, finite data.

    With ``finite`` false it may have infinity and NaN, as Python writes them: their reader checks them.
    """
    path = Path(path)
    text = read_text(path)
    lines: Mapping[Location, int] = {}
    if path.suffix == ".json":
        data = read_json(text, str(path), finite=finite)
    else:
        data, lines = _read_yaml(text, str(path), finite=finite)
    if data is None:
        raise UserError(f"{path}: is empty")
    return Document(data, str(path), lines, text if not lines else "")


def read_text(path: Path | str, most: int | None = None) -> str:
    """The text of a user's file: UTF-8, at most ``most`` bytes (default: the limit of configs). Raises UserError."""
    check_is_file(path := Path(path))
    is_json = path.suffix in (".json", ".ipynb")
    hint = f"; as .json up to {MAX_BYTES // MIB} MiB" if most is None and not is_json else ""
    most = most or (MAX_BYTES if is_json else MAX_YAML_BYTES)
    try:
        with path.open("rb") as stream:  # read no more than that, whatever size the file claims to have
            content = stream.read(most + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise UserError(f"{str(path)!r}: cannot be read ({error})") from None
    if len(content) > most:
        raise UserError(f"{path}: larger than {most // MIB} MiB{hint}")
    return as_text(content, path)


def as_text(content: bytes, path: Path | str) -> str:
    """The text of a file's bytes. Raises UserError naming the line and the first byte that is of no text in UTF-8."""
    at = content.find(b"\0")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start if at < 0 else min(at, error.start)
    if at < 0:
        return text
    line = content.count(b"\n", 0, at) + 1
    raise UserError(f"{path}:{line}: is not text (UTF-8): byte 0x{content[at]:02x} at offset {at:,}")


def look_beside(name: str, source: str) -> Path | None:
    """The file that a text names: as it says, beside the text's own file, or from a folder above; None if not there.

    Folders above the current one count up to that of the repository which the text's file is in.
    """
    places = (Path(os.path.expanduser(name)), *(above / name for above in Path(source).parents))
    here = next((path for path in places if os.path.isfile(path)), None)
    above = look_above(name, source) if here is None else None
    return here if above is None else Path(above)


def look_above(name: str, source: str = "") -> str | None:
    """The file that a text names in the folders of the repository which the text's own file is in; None if none."""
    return next((str(path) for above in _in_repository(Path(source)) if os.path.isfile(path := above / name)), None)


def _in_repository(path: Path) -> tuple[Path, ...]:
    """The folders of a file from its own up to its repository's; none if it is in no repository."""
    folders = path.absolute().parents if path.is_file() else ()
    above = next((count for count, folder in enumerate(folders) if (folder / ".git").exists()), -1)
    return tuple(folders[: above + 1])


def find_beside(name: str, source: str) -> Path:
    """As :func:`look_beside`. Raises UserError where the file is not there."""
    if (result := look_beside(name, source)) is None:
        raise UserError(f"{source}: {name}: no such file; allowed: a file here, beside the text or above it")
    return result


def read_yaml(text: str, source: str, *, finite: bool = True) -> Any:
    """Plain data of a YAML 1.2 text; ``source`` names it in errors. Raises UserError.

    With ``finite`` false it may have ``.inf`` and ``.nan``: its reader checks them.
    """
    return _read_yaml(text, source, finite=finite)[0]


def read_yaml_of_python(text: str, source: str) -> tuple[Any, tuple[str, ...]]:
    """Data of a YAML as PyYAML reads it, where the last of several values of a key counts; notes on such keys."""
    reader = YamlConverter(source, last=True, finite=False)
    data = _composed(text, reader)
    return data, tuple(f"{source}:{line}: {key} appears twice; the last counts, as read by PyYAML." for key, line in
                       reader.twice)  # fmt: skip


def lines_of(text: str, source: str) -> Mapping[Location, int]:
    """The line of every key of a YAML or JSON text that ``source`` names. Raises UserError for what is neither."""
    return json_lines(text) if source.endswith(".json") else _parsed_yaml(text, source, finite=False)[1]


def _read_yaml(text: str, source: str, *, finite: bool = True) -> tuple[Any, dict[Location, int]]:
    """Data, and the line of every key and list item."""
    data, lines = _parsed_yaml(text, source, finite=finite)
    return _copied(data), dict(lines)


def _copied(data: Any) -> Any:
    """Plain data that the caller may change."""
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data


@lru_cache(maxsize=256)  # profiles are read again and again, and parsing takes longer than a small simulation
def _parsed_yaml(text: str, source: str, *, finite: bool = True) -> tuple[Any, dict[Location, int]]:
    """As :func:`_read_yaml`, but shared: callers must not change it.

    What is shipped is kept as JSON from the first command on; users' files, which may hold tokens, are not.
    """
    reader = YamlConverter(source, finite=finite)
    if not source.startswith(_shipped_folders()):
        return _composed(text, reader), reader.lines

    def make() -> list[Any]:
        data = _composed(text, reader)
        return [data, [[list(at), line] for at, line in reader.lines.items()]]

    data, lines = kept_json(cache_folder("shipped") / f"{digest(KEPT, text)}.json", make)
    return data, {tuple(at): line for at, line in lines}


@cache
def _shipped_folders() -> tuple[str, ...]:
    package = Path(__file__).resolve().parent
    return tuple(
        f"{each}{os.sep}" for each in (package, *(package.parent / folders[0] for folders in _FOLDERS.values()))
    )


def _composed(text: str, reader: YamlConverter) -> Any:
    """Data of the YAML parser's nodes, of which it makes no objects; the reader has their lines then."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, MarkedYAMLWarning, YAMLError, YAMLWarning

    source = reader.source
    if text[:100].lstrip().lower().startswith(("<!doctype html", "<html")):
        raise UserError(f"{source}: is a page to look at; allowed: YAML, or JSON as --json writes it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", YAMLWarning)  # an anchor used twice, for one
            root = YAML(typ="safe", pure=True).compose(text)
    except (MarkedYAMLError, MarkedYAMLWarning) as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{source}{line}: not valid YAML ({_first_line(error.problem)})") from None
    except (YAMLError, YAMLWarning, RuntimeError, ValueError, TypeError, AttributeError, LookupError,
            AssertionError) as error:  # fmt: skip
        raise UserError(f"{source}: not valid YAML ({_first_line(error) or type(error).__name__})") from None
    return None if root is None else reader.value(root, ())


def _first_line(message: object) -> str:
    return printable((str(message).strip().splitlines() or [""])[0])


def parse(
    model: type[Model], document: Document | Mapping[str, Any], *, source: str = "input", also: Iterable[str] = ()
) -> Model:
    """Validate data against a pydantic model; ``also`` are further keys that files may have.

    Raises UserError with a line per problem, ``file:line: key = value: rule``: unknown keys first, then values out of
    range, then missing keys (not reported beside unknown ones, which may be misspellings of them). Numbers without a
    unit are refused in dimensional fields, in files and in mappings alike.
    """
    if not isinstance(document, Document):
        document = Document(document, source, {})
    try:
        return model.model_validate(document.data, context={"file": True})
    except ValidationError as error:
        raise UserError("\n".join(_problems(document, model, error, also))) from None


def refused(model: type[BaseModel], error: ValidationError) -> BadCall:
    """The error of a call of a pydantic ``model``: its name, and the first problem as :func:`parse` words it."""
    return BadCall(_problems(Document({}, model.__name__, {}), model, error)[0])


def _problems(
    document: Document, model: type[BaseModel], error: ValidationError, also: Iterable[str] = ()
) -> list[str]:
    """The problems in words, in the order of :func:`parse`."""
    order = {UNKNOWN: 0, MISSING: 2}
    problems = sorted(_meant(error.errors()), key=lambda item: order.get(item["type"], 1))
    if problems[0]["type"] == UNKNOWN:
        problems = [item for item in problems if item["type"] != MISSING]
    return [_problem(document, model, item, also) for item in problems]


def _meant(problems: Sequence[Any]) -> Sequence[Any]:
    """The problems without those of alternatives that were not meant, where a value may be a text or a mapping.

    Where it may be one of several mappings, those of the mapping with the fewest problems stay.
    """
    text = next((item for item in problems if item["loc"][-1:] == ("str",)), None)
    if text is None:
        return problems
    place = text["loc"][:-1]
    inside = [item for item in problems if item["loc"][: len(place)] == place and item is not text]
    count = Counter(item["loc"][len(place)] for item in inside)
    nearest = min(count, key=lambda name: count[name], default=None)
    meant = [{**text, "loc": place, "msg": "allowed: a text or a mapping"}]
    if isinstance(text["input"], Mapping):
        own = [item for item in inside if item["loc"][len(place)] == nearest]
        meant = [{**item, "loc": (*place, *item["loc"][len(place) + 1 :])} for item in own]
    return _meant([*(item for item in problems if item is not text and item not in inside), *meant])


def location_of(item: Any) -> tuple[Any, ...]:
    """The location of a pydantic problem without validators' names; an unknown key, which may look like one, stays."""
    kept = len(item["loc"]) - (item["type"] in (UNKNOWN, "unknown_key"))
    named = [part for part in item["loc"][:kept] if not str(part).startswith("function-")]
    return (*named, *item["loc"][kept:])


def _problem(document: Document, model: type[BaseModel], item: Any, also: Iterable[str]) -> str:
    location = location_of(item)
    key = dotted(location) or "document"
    place = document.place(location)
    if item["type"] == UNKNOWN:
        names = [*_field_names(model, location[:-1]), *(also if len(location) == 1 else ())]
        own = suggest(str(location[-1]), names) if location[1:] else ""  # a key of a section is rather another of it
        if not own and (there := homes(model, str(location[-1]))):
            return f"{place}: unknown key {key}; did you mean {' or '.join(there)}?"
        return f"{place}: unknown key {key}{suggest(str(location[-1]), names) or allowed(names)}"
    if item["type"] == MISSING:
        return f"{place}: {key} is missing"
    if item["type"] in NO_MAPPING:
        return f"{place}: {key} = {short(item['input'])}: {_mapping(model, location, item['input'])}"
    message = wording(item)
    message += written_out(item.get("input")) if item["type"].startswith("int_") else ""
    if isinstance(item.get("input"), Mapping) and item["type"] in ("value_error", "assertion_error"):
        return f"{place}: {dotted(location) + ': ' if location else ''}{message}"
    return f"{place}: {key} = {short(item.get('input'))}: {message}"


def wording(item: Any) -> str:
    """What a pydantic problem says, in the words of simpar's own."""
    if kind := LARGER.get(item["type"]):
        one = f", as [{printable(item['input'])}]" if kind == "a list" and isinstance(item.get("input"), str) else ""
        return f"allowed: {kind}{one}"
    message = _first_line(item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, "))
    return message.replace("Input should be ", "allowed: ").partition(", unable to parse")[0]


def _mapping(model: type[BaseModel], location: tuple[Any, ...], value: Any) -> str:
    """The message where a section is needed and a value was given; that may be the value of its only required key."""
    section = _section(model, location)
    fields = section.model_fields if section else {}
    needed = [name for name, info in fields.items() if info.is_required()]
    texts = dict.fromkeys((*needed, *getattr(section, "FLAT", ()), *fields), "...")
    if len(needed) == 1 and isinstance(value, str | int | float):
        texts[needed[0]] = printable(str(value))
    shown = [f"{name}: {text}" for name, text in texts.items()][:MAX_SHOWN]
    more = ", ..." if len(texts) > MAX_SHOWN else ""
    return f"is not a mapping; allowed: {{{', '.join(shown)}{more}}}"


def _field_names(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    section = _section(model, location)
    return list(section.model_fields) if section else []


def _section(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """The pydantic model of a section, or None."""
    section: type[BaseModel] | None = model
    for part in location:
        info = section.model_fields.get(str(part)) if section else None
        section = _inner_model(info.annotation) if info else None
    return section


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as ``ScaleOut | None``."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def homes(model: type[BaseModel], key: str) -> list[str]:
    """Dotted keys under which sections of a model have ``key``; ``FLAT`` are further keys of a section."""
    inner = {name: _inner_model(info.annotation) for name, info in model.model_fields.items()}
    own = {name: (*part.model_fields, *getattr(part, "FLAT", ())) for name, part in inner.items() if part}
    return [f"{name}.{key}" for name, keys in own.items() if key in keys]


def written_out(text: object) -> str:
    """A hint to write "4k" out where a whole number is needed; "" for other texts."""
    match = re.fullmatch(r"(\d{1,6})([km])", str(text).strip().lower())
    if match is None:
        return ""
    count, power = int(match[1]), {"k": 1, "m": 2}[match[2]]
    return f"; write the number out: {count * KIB**power} or {count * KB**power}"


def write_atomic(path: Path | str, content: str | bytes) -> None:
    """Write a file under a temporary name beside it and rename it: readers see the old file or the new one.

    Devices and pipes are written to directly. Raises UserError.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
        target = resolved(path)
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            replace_file(target, data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be written ({reason})") from None


def check_writable(*paths: Path | str | None) -> None:
    """Raises UserError, as :func:`write_atomic` would, where a file cannot be written to its folder.

    It is called before long work whose result is written at the end. None is no file, "-" standard output.
    """
    for path in paths:
        if path is None or str(path) == "-":
            continue
        target = resolved(path)
        code = 0 if os.access(target.parent, os.W_OK) else errno.EACCES
        code = code if target.parent.exists() else errno.ENOENT
        if target.is_dir() or (code and not target.exists()):
            raise UserError(f"{path}: cannot be written ({os.strerror(code or errno.EISDIR)})")


_FOLDERS = {
    "devices": ("hardware_profiles", "devices"),
    "clusters": ("hardware_profiles", "clusters"),
    "stacks": ("hardware_profiles", "stacks"),
    "reliability": ("hardware_profiles", "reliability"),
    "scenarios": ("scenarios",),
}


def bundled(kind: str) -> dict[str, Path]:
    """Files shipped with simpar, by name; ``kind`` is devices, clusters, stacks, reliability or scenarios."""
    return dict(_bundled(kind))


@cache
def _bundled(kind: str) -> dict[str, Path]:
    package = Path(__file__).resolve().parent
    for root in (package / "_data", package.parent):
        folder = root.joinpath(*_FOLDERS[kind])
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def find(name: str | Path, kind: str, what: str) -> Path:
    """The path for a bundled name or for a user's file; ``what`` names it in errors. Raises UserError."""
    text = str(name)
    if isinstance(name, Path) or text.endswith((".yaml", ".yml", ".json")) or "/" in text:
        return Path(name)
    files = bundled(kind)
    if text in files or Path(text).is_file():  # other names take as long to read as several profiles
        return files.get(text, Path(text))
    if Path(text).is_dir():
        raise UserError(f"{text}: is a folder; a {what} is a file or a shipped name")
    return files[choose(meant_by(text, kind) or text, files, what, _others(text, kind))]


def meant_by(text: str, kind: str) -> str | None:
    """The shipped file that another name means, also with a count behind it; None if it is none."""
    known, (alone, _) = aliases(kind), split_count(text)
    return known.get(plain_name(text)) or (alone if alone in bundled(kind) else known.get(plain_name(alone)))


def _others(text: str, kind: str) -> OtherNames:
    """What may be meant by a name that no shipped file of a kind has."""
    data, plain = other_names(kind), {plain_name(text), plain_name(split_count(text)[0])}
    near: dict[str, Any] = next((each for each in data.get("near", {}).get(kind, ()) if plain & {*each["names"]}), {})
    what = "a slice of a device (MIG)" if is_slice(text) else near.get("is", "")
    usual, are_products = data.get("usual", {}).get(kind, ()), kind == "clusters"
    remedy = "simpar list hardware prints all" if are_products else ""
    return OtherNames(aliases(kind), near.get("like", ()), what, usual, remedy, are_products)


@cache
def aliases(kind: str) -> dict[str, str]:
    """The shipped file that each other name of a kind means, by its letters and digits."""
    data = other_names(kind)
    table = {name: [*data[kind].get(name, ()), name] for name in bundled(kind)} if kind in data else {}
    for part in data.get("parts", {}).get(kind, ()):
        table[part["of"]].extend(part["names"])
    return {plain_name(name): meant for meant, names in table.items() for name in names}


@cache
def other_names(kind: str) -> dict[str, Any]:
    """What the file of other names beside the shipped files of a kind says; nothing where they have none."""
    shipped = bundled(kind)
    path = next(iter(shipped.values())).parent.parent / "aliases.yaml" if shipped else None
    return load(path).data if path is not None and path.is_file() else {}
