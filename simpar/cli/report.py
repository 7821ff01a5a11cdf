"""``simpar report``: a saved result as one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simpar.cli.app import app, console, working
from simpar.cli.saved import result_of

if TYPE_CHECKING:
    from simpar.report.result import Result


@app.command(epilog="Example: simpar report result.json -o report.html")
def report(
    result: Annotated[
        str,
        typer.Argument(help="A result, a search, a grid or a sweep (--json), a plan or a scenario", metavar="RESULT"),
    ],
    output: Annotated[str, typer.Option("-o", "--output", help="Page to write")] = "report.html",
    advise: Annotated[
        bool, typer.Option("--advise", help="Simulate neighbouring layouts and show what each would gain")
    ] = False,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary",
            help="For a search: one page to pass on that explains the choice of the plan or of the number of nodes",
        ),
    ] = False,
) -> None:
    """Write a result as one page to open in a browser.

    A zoomable timeline, memory over time, where the step goes, limiting factors and layouts to try next. A grid of
    searches, or a sweep, is a table of all its cells. The page loads nothing from the network.
    """
    from simpar.errors import UserError
    from simpar.report.grid import load_grid
    from simpar.report.html import save_report

    if summary:
        _save_summary(result, output)
    elif result.endswith(".json") and (grid := load_grid(result, is_drawn=False)) is not None:
        from simpar.report.grid_page import save_grid_page

        if advise:
            raise UserError(f"--advise: {result} is a grid; allowed: a search or a result")
        save_grid_page(grid, output)
    else:
        section, loaded = _found(result), result_of(result)
        save_report(_advised(loaded) if advise else loaded, output, section)
    console().print(f"wrote {output}", soft_wrap=True)


def _save_summary(name: str, output: str) -> None:
    """The summary page of a search, or of an answer by numbers of nodes. Raises UserError for another file."""
    from simpar.formats import HOW_MANY
    from simpar.report.result import read_object

    if HOW_MANY.key in read_object(name):
        from simpar.budget.answer import HowMany
        from simpar.budget.summary import save_summary as save_how_many

        save_how_many(HowMany.load(name), output)
        return
    from simpar.planner.answer.summary import save_summary
    from simpar.planner.result import SearchResult

    save_summary(SearchResult.load(name), output)


def _found(name: str) -> dict[str, Any] | None:
    """What a saved search found; None for other files."""
    from simpar.formats import SEARCH
    from simpar.report.result import read_object

    if not name.endswith(".json") or SEARCH.key not in read_object(name):
        return None
    from simpar.planner.answer.found import found_section
    from simpar.planner.result import SearchResult

    search = SearchResult.load(name)
    return found_section(search) if search.candidates else None


def _advised(result: Result) -> Result:
    from simpar.neighbours import advise, inputs_of
    from simpar.workers import Workers

    with working("simulating again") as status:
        return advise(result, inputs_of(result), lambda change: status.update(f"trying {change} ..."), Workers.usual())
