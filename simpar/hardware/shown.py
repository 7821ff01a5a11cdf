"""A profile as it is shown: resolved, with the origin of its values and the intervals of fitted ones."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simpar import files
from simpar.files import Document
from simpar.hardware.intervals import interval_of
from simpar.profiles import ORIGIN, yaml_text


def annotate_profile(document: Document, kind: str) -> str:
    """A resolved profile as YAML, with comments: from which profile a value is taken, and intervals of fitted ones.

    ``kind`` is "clusters" or "devices". An interval holds nine in ten of a constant's plausible values.
    """
    from ruamel.yaml.comments import CommentedMap

    shipped = files.bundled(kind)

    def notes(at: tuple[str | int, ...]) -> Iterator[str]:
        where = document.elsewhere.get(at) if at not in document.line_of else None
        home = Path(where.rpartition(":")[0] if where else document.source)
        if where:
            yield f"like {home.stem}"
        known = home.stem in shipped and home.resolve() == Path(shipped[home.stem]).resolve()
        if ends := interval_of(kind, home.stem, ".".join(map(str, at))) if known else None:
            yield f"{ends[0]:g} to {ends[1]:g}"

    def commented(data: Mapping[str, Any], at: tuple[str | int, ...]) -> CommentedMap:
        result = CommentedMap()
        for key, value in data.items():
            here = (*at, key)
            result[key] = commented(value, here) if isinstance(value, dict) and value else value
            if key not in ORIGIN and not isinstance(value, dict | list) and (said := ", ".join(notes(here))):
                result.yaml_add_eol_comment(said, key)
        return result

    return yaml_text(commented(document.data, ()))
