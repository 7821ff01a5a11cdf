"""A result as a few lines of HTML: what a notebook shows, and what stands under a picture."""

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
