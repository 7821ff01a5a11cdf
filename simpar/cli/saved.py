"""The argument of commands that show a result: results, searches, plans and scenarios alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpar.cli.app import working

if TYPE_CHECKING:
    from simpar.report.result import Result


def result_of(name: str) -> Result:
    """A saved result, or one simulated now. Raises UserError."""
    from simpar.verbs import load_result

    with working(f"simulating {name}"):
        return load_result(name)
