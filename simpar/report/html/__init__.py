"""One self-contained page per result: a zoomable timeline, memory, breakdown, limiting factors, and changes to try.

The page holds its data, style and scripts, loads nothing from the network, and declares that in its content security
policy. ``data`` turns a Result into the page's data, ``page.html.j2`` lays it out, ``style.css`` and the scripts are
copied in.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simpar.files import write_atomic
from simpar.report.html.data import page_data

if TYPE_CHECKING:
    from simpar.report.result import Result

FOLDER = Path(__file__).parent
SCRIPTS = ("view.js", "timeline.js", "memory.js", "page.js")


def save_report(result: Result, path: str | Path, section: Mapping[str, Any] | None = None) -> None:
    """Write the page atomically; equal results give equal bytes. ``section`` is what the search found that chose it."""
    write_atomic(path, render(result, section))


def render(result: Result, section: Mapping[str, Any] | None = None) -> str:
    """The page as text."""
    page = {**page_data(result), "found": section}
    return fill_template(_template(), page)


def fill_template(template: Any, page: Any) -> str:
    """A template filled with a page's data, the style and the scripts."""
    return str(
        template.render(
            page=page,
            style=(FOLDER / "style.css").read_text(encoding="utf-8"),
            scripts=[(FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS],
        )
    )


def sections(page: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Sections of a page's data as HTML, by the names of the macros in ``sections.html.j2``."""
    macros = environment().get_template("sections.html.j2").module
    return {name: str(getattr(macros, name)(page)) for name in names}


def _template() -> Any:
    return environment().get_template("page.html.j2")


@cache
def environment(beside: Path | None = None) -> Any:
    """The Jinja environment with the templates of this folder and of a folder ``beside``; output is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([FOLDER, *([beside] if beside else [])]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    return environment
