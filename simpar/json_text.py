"""JSON texts: strict reading into plain, finite data, and the lines of their keys."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from simpar.errors import UserError
from simpar.plain import MAX_DEPTH, Location, check_digits, dotted, scalar_fault, short


def read_json(text: str, source: str, *, finite: bool = True) -> Any:
    """Plain, finite data of a JSON text; ``source`` names it in errors. Raises UserError."""
    if not text.strip():
        return None
    try:
        data = json.loads(text, object_pairs_hook=_without_twins)
    except json.JSONDecodeError as error:
        raise UserError(f"{source}:{error.lineno}: not valid JSON ({error.msg})") from None
    except _TwiceError:
        line, key = _twice(text)
        raise UserError(f"{source}:{line}: key {key!r} appears twice") from None
    except (RecursionError, ValueError):
        check_digits(text, source)
        raise UserError(f"{source}{_deep(text)}: nested too deeply") from None
    if fault := _fault_of(data, finite=finite):
        location, what = fault
        raise UserError(f"{source}:{line_in_json(text, location)}: {what}")
    return data


class _TwiceError(Exception):
    """A key stands twice in a JSON object."""


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise _TwiceError
    return result


def _twice(text: str) -> tuple[int, str]:
    """The line of the first key that a JSON text has a second time, and its name."""
    seen = set[Location]()
    for place, line in json_places(text):
        if place in seen:
            return line, str(place[-1])
        seen.add(place)
    return 1, ""


def _deep(text: str) -> str:
    """``:line`` of what is nested too deeply in a JSON text."""
    return next((f":{line}" for place, line in json_places(text) if len(place) > MAX_DEPTH), "")


def _fault_of(value: Any, location: Location = (), *, finite: bool = True) -> tuple[Location, str] | None:
    """What of data JSON can express and simpar cannot use: where, and what is wrong; None if nothing is."""
    if len(location) > MAX_DEPTH:
        return location, f"nested more than {MAX_DEPTH} levels deep"
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if fault := scalar_fault(key):
                return (*location, key), f"key {key!r} {fault}"
            if inside := _fault_of(item, (*location, key), finite=finite):
                return inside
    elif fault := scalar_fault(value, finite=finite):
        return location, f"{dotted(location)} = {short(value)}: {fault}"
    return None


@lru_cache(maxsize=1)
def json_lines(text: str) -> Mapping[Location, int]:
    """Line of every key and list item in a JSON text."""
    return dict(json_places(text))


def line_in_json(text: str, location: Location) -> int:
    """The line of a key in a JSON text, where it stands last, or of its nearest parent; 1 for the whole."""
    depth, line = 0, 1
    for place, at in json_places(text):
        if len(place) >= depth and place == location[: len(place)]:
            depth, line = len(place), at
    return line


def line_of_value(text: str, word: str) -> int:
    """The line of the first value of a JSON text that is written as ``word``, which is no string."""
    at = next((match.start() for match in _TOKEN.finditer(text) if match[0] == word), 0)
    return text.count("\n", 0, at) + 1


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def json_places(text: str) -> Iterator[tuple[Location, int]]:
    """Each key and list item of a JSON text, as it comes, with its line; ends where the text is no JSON."""
    path: list[str | int] = []
    line, counted, is_key = 1, 0, False
    for match in _TOKEN.finditer(text):
        token = match[0]
        line, counted = line + text.count("\n", counted, match.start()), match.start()
        last = path[-1] if path else None
        if token in "]}":
            if not path:
                return
            path.pop()
            is_key = False
        elif token == ",":
            is_key = isinstance(last, str)
            if isinstance(last, int):
                path[-1] = last + 1
        elif token == ":":
            is_key = False
        elif is_key:
            path[-1] = _decoded(token)
            yield tuple(path), line
        else:
            if isinstance(last, int):
                yield tuple(path), line
            if token in "[{":
                is_key = token == "{"
                path.append("" if is_key else 0)


def _decoded(token: str) -> str:
    """The text that a JSON string stands for; what is none stays."""
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token
