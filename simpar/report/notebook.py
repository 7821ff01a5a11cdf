"""A result as a few lines of HTML: what a notebook shows, and a page around one picture."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from simpar.report.words import figures, headline
from simpar.units import format_seconds

if TYPE_CHECKING:
    from simpar.report.result import Result


def to_html(result: Result) -> str:
    """The figures and the time breakdown as HTML, for notebooks and pages."""
    rows = [*figures(result)]
    rows += [
        (name.replace("_", " "), f"{format_seconds(value)} ({value / result.step_time_s:.1%})")
        for name, value in result.time_breakdown_s.model_dump().items()
        if value > 0
    ]
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    reasons = "".join(f"<li>{html.escape(line)}</li>" for line in (*result.why.binds, *result.why.hints))
    return f"<p><b>{html.escape(headline(result))}</b></p><table>{cells}</table><ul>{reasons}</ul>"


def html_page(result: Result, *, title: str, picture: str) -> str:
    """One self-contained page: picture (inline SVG) above the figures."""
    style = (
        "body{font:15px/1.45 system-ui,sans-serif;color:#333;max-width:1200px;margin:2em auto;padding:0 1em}"
        "svg{width:100%;height:auto}th{text-align:left;font-weight:500;padding-right:2em}td{padding:.1em 0}"
    )
    name = html.escape(f"simpar: {title}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{style}</style></head><body>{picture}{to_html(result)}</body></html>\n"
    )
